"""CPU and wall seconds of Spark's start and of a night's jobs, with archived classes and without.

    python -m benchmarks.start [--repeats 5] [--night]

Each is a spark-submit of its own: a session with a first query and a read of a topic's table, then
the jobs of a night on one small topic. With and without take turns in two lakes, and shown are
medians. CPU is that of the whole process tree. `--night` adds the sample's two nights as `make run`
has them, once each. Whoever has no archive lacks conf/spark-env.sh too: so Spark started before.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.jobs.submit import BIN
from tests.lake_sandbox import ROOT, LakeSandbox

SAMPLE = ROOT / "sample" / "log"
NOW = "2027-01-01T00:00:00+00:00"
FIRST_READ = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sql("SELECT 1").collect()
spark.table("lake.{cluster}.audit").limit(1).collect()
"""
START = "session, query, read"
NIGHT = "make run"


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

    def make_run(self) -> Taken:
        """The sample's two nights, Airflow's own start included and its database made before."""
        render = [sys.executable, "conf/render.py", "conf/airflow.env"]
        measured([*render, f"{self.sandbox.home}/conf"], self.environment())
        load = f"set -a; . {self.sandbox.home}/conf/airflow.env; set +a; "
        measured(["bash", "-c", load + "airflow db migrate"], self.environment())
        quickstart = "exec python -m ebbtide.local.quickstart"
        return measured(["bash", "-c", load + quickstart], self.environment())

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


def report(taken: dict[str, dict[str, list[Taken]]]) -> str:
    """A line a step: medians without and with the archive, and the share that is left."""
    header = f"{'':<22}{'CPU s without':>14}{'with':>7}{'ratio':>7}"
    lines = [header + f"{'wall s without':>16}{'with':>7}{'ratio':>7}"]
    for step, by_home in taken.items():
        cpu = [median(t.cpu_seconds for t in by_home[name]) for name in ("without", "with")]
        wall = [median(t.wall_seconds for t in by_home[name]) for name in ("without", "with")]
        left = f"{step:<22}{cpu[0]:>14.1f}{cpu[1]:>7.1f}{cpu[1] / cpu[0]:>7.2f}"
        lines.append(left + f"{wall[0]:>16.1f}{wall[1]:>7.1f}{wall[1] / wall[0]:>7.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--night", action="store_true", help="the nights of `make run` too")
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "conf" / "python")
    taken: dict[str, dict[str, list[Taken]]] = defaultdict(lambda: defaultdict(list))
    print(f"load before {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as temporary:
        homes = [
            Home(Path(temporary) / name, has_archive=name == "with") for name in ("with", "without")
        ]
        for _ in range(args.repeats):
            homes.reverse()
            for steps in zip(*(home.night() for home in homes), strict=True):
                for home, (step, spent) in zip(homes, steps, strict=True):
                    taken[step][home.name].append(spent)
        for home in homes if args.night else ():
            taken[NIGHT][home.name].append(home.make_run())
    print(report(taken))


if __name__ == "__main__":
    main()
