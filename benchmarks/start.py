"""CPU and wall seconds of Spark's start and of a night's jobs, with archived classes and without.

    python -m benchmarks.start [--repeats 5] [--before TREE]

Each is a spark-submit of its own: a session with a first query and a read of a topic's table, then
the jobs of a night on one small topic. With and without take turns in two lakes, and shown are
medians. CPU is that of the whole process tree. Whoever has no archive lacks conf/spark-env.sh too:
so Spark started before. `--before` adds `make run`, the sample's two nights, here and in another
checkout, each set up already. What was measured is kept in benchmarks/results/start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from tests.lake_sandbox import ROOT, LakeSandbox
from tests.runner.submit import BIN

SAMPLE = ROOT / "sample" / "log"
NOW = "2027-01-01T00:00:00+00:00"
FIRST_READ = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sql("SELECT 1").collect()
spark.table("lake.{cluster}.audit").limit(1).collect()
"""
START = "session, query, read"
NIGHTS = "make run"
# The share of CPU or of wall seconds that may be left.
BOUNDS = {START: ("CPU", 0.55), NIGHTS: ("wall", 0.6)}
KINDS = ("CPU", "wall")
RESULTS = ROOT / "benchmarks" / "results" / "start.json"


@dataclass(frozen=True, slots=True)
class Taken:
    """What one command took."""

    wall_seconds: float
    cpu_seconds: float


class Home:
    """A lake whose Spark starts with the archive, or as it did before there was one."""

    def __init__(self, directory: Path, *, has_archive: bool) -> None:
        self.sandbox = LakeSandbox(directory / "home")
        if not has_archive:
            (self.sandbox.home / "conf" / "spark-env.sh").unlink()
        self.sandbox.package()
        self.first_read = directory / "first_read.py"
        self.name = "with" if has_archive else "without"
        self.round = 0

    def night(self) -> Iterator[tuple[str, Taken]]:
        """The jobs of a night on a topic that is ingested anew, and the first read between."""
        cluster = f"log{self.round}"
        self.round += 1
        topic = ("--topic", f"{cluster}.audit")
        source = ("--source", str(SAMPLE), "--cluster", cluster, *topic)
        yield "ingest_segments", self.job("ingest_segments", *source)
        self.first_read.write_text(FIRST_READ.format(cluster=cluster))
        yield START, self.submit(str(self.first_read))
        for job in ("mark_tombstones", "clean_log", "expire_segments", "expire_snapshots"):
            yield job, self.job(job, *topic)

    def job(self, job: str, *arguments: str) -> Taken:
        """One of our jobs; the sample says what its topics keep."""
        settings = ("--set", "ebbtide.max.delete.ratio=1") if job == "ingest_segments" else ()
        return self.submit(
            *("--py-files", str(self.sandbox.home / "ebbtide.zip"), f"{ROOT}/jobs/{job}.py"),
            *(*arguments, *settings, "--now", NOW, "--run-id", "measured"),
        )

    def submit(self, *arguments: str) -> Taken:
        """Any application."""
        return measured([str(BIN / "spark-submit"), *arguments], self.environment())

    def environment(self) -> dict[str, str]:
        """Spark's and Airflow's."""
        ours = {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{BIN}:{os.environ['PATH']}"}
        return {**os.environ, **self.sandbox.environment(), **ours}


def measured(command: Sequence[str], environment: dict[str, str]) -> Taken:
    """Run it to its end; what it and its children took."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall_seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{command[-1]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(wall_seconds, cpu)


def make_run(tree: Path) -> Taken:
    """The sample's two nights of a checkout that is set up, on an empty lake."""
    measured(["make", "-C", str(tree), "clean", "setup"], dict(os.environ))
    return measured(["make", "-C", str(tree), "run"], dict(os.environ))


@dataclass(frozen=True, slots=True)
class Step:
    """Medians of one step: seconds before and with what makes starting cheap."""

    name: str
    cpu_seconds: tuple[float, float]
    wall_seconds: tuple[float, float]

    @classmethod
    def of(cls, name: str, by_home: Mapping[str, Sequence[Taken]]) -> Step:
        """The medians of what was taken `without` and `with` it."""
        both = [by_home[home] for home in ("without", "with")]
        before_cpu, cpu = (median(taken.cpu_seconds for taken in runs) for runs in both)
        before_wall, wall = (median(taken.wall_seconds for taken in runs) for runs in both)
        return cls(name, (before_cpu, cpu), (before_wall, wall))

    def __str__(self) -> str:
        columns = [f"{self.name:<22}"]
        for before, now in (self.cpu_seconds, self.wall_seconds):
            columns.append(f"{before:>16.1f}{now:>7.1f}{now / before:>7.2f}")
        if self.name in BOUNDS:
            what, bound = BOUNDS[self.name]
            before, now = self.cpu_seconds if what == "CPU" else self.wall_seconds
            holds = "holds" if now <= bound * before else "is missed"
            columns.append(f"  the bound of {bound} for {what} {holds}")
        return "".join(columns)


def report(steps: Sequence[Step]) -> str:
    """A line a step: medians without and with the archive, the share that is left, its bound."""
    header = f"{'':<22}" + "".join(f"{what + ' s without':>16}   with  ratio" for what in KINDS)
    return "\n".join([header, *map(str, steps)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", type=Path, help="a checkout that `make run` is compared with")
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "conf" / "python")
    taken: dict[str, dict[str, list[Taken]]] = defaultdict(lambda: defaultdict(list))
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        homes = [
            Home(Path(temporary) / name, has_archive=name == "with") for name in ("with", "without")
        ]
        for _ in range(args.repeats):
            homes.reverse()
            for pair in zip(*(home.night() for home in homes), strict=True):
                for home, (step, spent) in zip(homes, pair, strict=True):
                    taken[step][home.name].append(spent)
    if args.before:
        taken[NIGHTS]["without"].append(make_run(args.before))
        taken[NIGHTS]["with"].append(make_run(ROOT))
    steps = [Step.of(name, by_home) for name, by_home in taken.items()]
    kept = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "repeats": args.repeats, "load": load}
    RESULTS.write_text(json.dumps({**kept, "steps": [asdict(s) for s in steps]}, indent=1) + "\n")
    print(f"load before {load:.1f}\n{report(steps)}")


if __name__ == "__main__":
    main()
