"""The demonstration of `make run`: the sample log, two nightly runs of the real DAG, their reports.

The runs' `now` follows from the log's last append, so it may be ahead of the machine clock, and no
guard applies. Therefore the demonstration has a cluster of its own, and its runs name its topics:
no other topic of the lake is changed, however often it runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide import open_lake
from ebbtide.lake.runs import failed
from ebbtide.local.progress import StepError, failure, lines_of, start, working
from ebbtide.moments import to_datetime
from ebbtide.orchestration.driver_inputs import Paths, paths
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.report import find_run, render_run
from ebbtide.specs.all_specs import SPECS
from ebbtide.text import size

SUCCEEDED = "success"  # Airflow's word for the state
# As `ebbtide.orchestration.several_runs` prints it.
_ENDED = re.compile(r"^ebbtide: the run has ended: (\w+)$")


@dataclass(frozen=True, slots=True)
class DagRuns:
    """A process that waits for DAG runs to do. It imports Airflow meanwhile."""

    process: subprocess.Popen[str]

    def run(
        self, conf: Mapping[str, Any], log: Path, cause: Callable[[], str] | None = None
    ) -> Iterator[str]:
        """Run the DAG, yield its output line by line, and write all of it to `log`.

        Raise StepError if the run fails, with the cause or with the end of the output.
        """
        assert self.process.stdin is not None
        state = "with its process"
        with suppress(BrokenPipeError):  # the output shows why the process has ended
            self.process.stdin.write(f"{json.dumps(conf)}\n")
            self.process.stdin.flush()
        with log.open("w") as full:
            for line in self.process.stdout or ():
                if ended := _ENDED.match(line.rstrip("\n")):
                    state = ended[1]
                    break
                full.write(line)
                full.flush()
                yield line
        if state != SUCCEEDED:
            raise failure(f"the run ended: {state}", log, cause)


@contextmanager
def running(command: Sequence[str]) -> Iterator[DagRuns]:
    """Start the process. It ends with the block, or is terminated if the block fails."""
    process = start(command)
    try:
        yield DagRuns(process)
    except BaseException:
        process.terminate()
        raise
    finally:
        process.communicate()


def several_runs(dag: str) -> list[str]:
    """Return the command that runs a DAG once per line of its input."""
    return [sys.executable, "-m", "ebbtide.orchestration.several_runs", dag]


# Task logs for Airflow's UI. A run without the scheduler prints its tasks' output and writes no log
# files, so the UI would show none.


STARTING = re.compile(r"\[DAG TEST\] starting task_id=(\S+) map_index=(-?\d+)")
ENDING = re.compile(r"\[DAG TEST\] end task task_id=(\S+)")


@dataclass(slots=True)
class TaskLogs:
    """Writes a run's output, line by line, to the log file of each task attempt."""

    dag: str
    folder: Path
    current: Path | None = None
    tries: dict[Path, int] = field(default_factory=dict)

    def see(self, line: str, run_id: str) -> None:
        """Process one line of the run's output."""
        if started := STARTING.search(line):
            self._start(run_id, started[1], int(started[2]))
        if self.current is not None:
            with self.current.open("a") as file:
                file.write(line)
        if ENDING.search(line):
            self.current = None

    def _start(self, run_id: str, task: str, map_index: int) -> None:
        """Begin a task's log under Airflow's default log_filename_template."""
        where = self.folder / f"dag_id={self.dag}" / f"run_id={run_id}" / f"task_id={task}"
        if map_index >= 0:
            where /= f"map_index={map_index}"
        self.tries[where] = self.tries.get(where, 0) + 1
        where.mkdir(parents=True, exist_ok=True)
        self.current = where / f"attempt={self.tries[where]}.log"


def log_folder() -> Path:
    """Return Airflow's base_log_folder."""
    home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    given = os.environ.get("AIRFLOW__LOGGING__BASE_LOG_FOLDER")
    return Path(given or f"{home}/logs").expanduser()


CLUSTER = "demo"
# For topics that can be recreated: a run may remove any share, and free its bytes immediately.
GUARDS_OFF = ("history.expire.max-snapshot-age-ms=0", "ebbtide.max.delete.ratio=1")
DAG = "nightly_retention"
HOUR_OF_NIGHT = 1

# Airflow's id of a run that was not scheduled.
RUN_ID = re.compile(r"(manual__[0-9T:.+-]+)")


def print_step(step: str, started: float, note: str = "") -> None:
    """Print one line for a step; `started` is monotonic time."""
    print(f"  {step:<42}{time.monotonic() - started:>7.1f} s   {note}".rstrip(), flush=True)


def main() -> int:
    """Run the demonstration; return 1 if a step failed."""
    where = paths()
    where.logs.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        reports = run_sample(where)
    except StepError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    for night, report in enumerate(reports, start=1):
        print(f"\n== night {night} ==\n{report}")
    print(f"\nall of it took {time.monotonic() - begun:.0f} s\n\n{next_steps()}")
    return 0


def run_sample(where: Paths) -> list[str]:
    """Ingest the sample and run both nights; return the report of each, as of its end."""
    source = where.root / "sample" / "log"
    last_append = last_append_of(source / "ebbtide-manifest.json")
    topics = topics_of(source / "ebbtide-manifest.json")
    nights = nights_after(last_append)
    print(f"sample log {source.relative_to(where.root)}, last append {last_append:%F %T} UTC")
    print(warning(topics, nights[-1], datetime.now(UTC)))
    reports = []
    with running(several_runs(DAG)) as runs:  # imports Airflow during the ingest
        ingest(where, source, topics, last_append)
        print(f"  the lake holds {lake_size(where)}")
        for number, now in enumerate(nights, start=1):
            print(f"night {number}, now = {now:%F %T} UTC")
            night = Watch(f"night {number}", topics_run, is_first=number == 1)
            run_night(runs, conf_of(topics, now), where.logs / f"night-{number}.log", night)
            reports.append(report_of(night.run_id))
            print(f"  the lake holds {lake_size(where)}")
    return reports


def lake_size(where: Paths) -> str:
    """Return the size of all files below the warehouse, old snapshots and metadata included."""
    files = (where.home / "lake" / "warehouse").rglob("*")
    return size(sum(file.stat().st_size for file in files if file.is_file()))


def last_append_of(manifest: Path) -> datetime:
    """Return the time of the last append to the log by its broker."""
    return to_datetime(_read(manifest)["last_append_ms"])


def topics_of(manifest: Path) -> list[str]:
    """Return the topics of the sample by their names in the lake."""
    return sorted(f"{CLUSTER}.{topic}" for topic in _read(manifest)["topics"])


def warning(topics: Sequence[str], last_night: datetime, wall_clock: datetime) -> str:
    """Return the differences between the demonstration and a nightly run on your own topics."""
    ahead = "its clock is the sample's"
    if last_night > wall_clock:
        ahead = f"its clock runs ahead, to {last_night:%F %T} UTC"
    return (
        f"a demonstration on {' and '.join(topics)} only: {ahead},\n"
        "  and two safeguards are off: a nightly run may remove any share of a topic\n"
        "  (ebbtide.max.delete.ratio=1), and snapshots retain removed records only for an undo\n"
        "  (history.expire.max-snapshot-age-ms=0). Your own topics have both on."
    )


def next_steps() -> str:
    """Return the commands to try after the demonstration."""
    return (
        "== what next ==\n"
        "make up                           Airflow on http://127.0.0.1:8080; Browse > Retention\n"
        "ingest_topic, ingest_segments     trigger one of them to ingest your own topics\n"
        "configure_topic                   set retention limits; without them, nothing is removed\n"
        "nightly_retention                 unpause it; it runs every night at 2 o'clock"
    )


def _read(manifest: Path) -> dict[str, Any]:
    if not manifest.exists():
        raise StepError(f"expected the sample's {manifest.name}, found none in {manifest.parent}")
    content: dict[str, Any] = json.loads(manifest.read_text())
    return content


def nights_after(last_append: datetime) -> tuple[datetime, datetime]:
    """Return the first 01:00 UTC at or after the last append, and 01:00 of the next day."""
    first = last_append.replace(hour=HOUR_OF_NIGHT, minute=0, second=0, microsecond=0)
    if first < last_append:
        first += timedelta(days=1)
    return first, first + timedelta(days=1)


def ingest(where: Paths, source: Path, topics: Sequence[str], now: datetime) -> None:
    """Ingest the sample into the lake by the job ingest_segments."""
    started, run_id = time.monotonic(), f"quickstart__{datetime.now(UTC).isoformat()}"
    command = [
        *("spark-submit", "--name", "ebbtide ingest_segments", "--py-files"),
        *(str(where.package_zip), str(where.jobs / "ingest_segments.py")),
        *("--source", str(source), "--cluster", CLUSTER, "--now", now.isoformat()),
        *(argument for topic in topics for argument in ("--topic", topic)),
        *(argument for setting in GUARDS_OFF for argument in ("--set", setting)),
        *("--run-id", run_id, "--task", "ingest_segments"),
    ]
    log = where.logs / "ingest.log"
    with working("ingest_segments"):
        for _ in lines_of(command, log, on_failure=partial(failures_of, run_id)):
            pass
    print_step("ingest_segments", started)


def conf_of(topics: Sequence[str], now: datetime) -> dict[str, Any]:
    """Return the conf of a nightly run on these topics."""
    return {
        "topics": list(topics),
        "now": now.isoformat(),
        "allow_future_now": now > datetime.now(UTC),
    }


def run_night(runs: DagRuns, conf: Mapping[str, Any], log: Path, watch: Watch) -> None:
    """Run the DAG once; `watch` gets each line of its output."""
    task_logs = TaskLogs(DAG, log_folder())
    with working(f"{watch.night}  Airflow starts") as show:
        for line in runs.run(conf, log, lambda: failures_of(watch.run_id)):
            watch.see(line)
            task_logs.see(line, watch.run_id)
            if begun := STARTING.search(line):
                show(f"{watch.night}  {begun[1]}")
    watch.finish()


@dataclass(slots=True)
class Watch:
    """Turns the output of a DAG run into one line per task."""

    night: str
    topics_run: Callable[[str, str], list[str]]  # by run id and task
    is_first: bool = True  # the first run of its process
    run_id: str = ""
    has_begun: bool = False
    started: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)

    def see(self, line: str) -> None:
        """Process one line of output."""
        if not self.run_id and (match := RUN_ID.search(line)):
            self.run_id = match[1]
        if STARTING.search(line) and not self.has_begun:
            self.has_begun = True
            self._lap("Airflow, start")
            if self.is_first:
                self.notes.append("mostly Airflow's in-process API, only once")
        elif match := ENDING.search(line):
            self._note_job(match[1])
            self._lap(match[1])

    def finish(self) -> None:
        """Record the time between the last task and the end of the process."""
        self._lap("Airflow, end")

    def _note_job(self, task: str) -> None:
        """Note the topics that a job ran on, from `runs`.

        Without a row, the task did not start Spark.
        """
        if task in SPECS:
            topics = self.topics_run(self.run_id, task)
            done = f"Spark for {', '.join(topics)}" if topics else "nothing to do, without Spark"
            self.notes.append(done)

    def _lap(self, what: str) -> None:
        print_step(f"{self.night}  {what}", self.started, "; ".join(self.notes))
        self.started = time.monotonic()
        self.notes.clear()


def topics_run(run_id: str, task: str) -> list[str]:
    """Return the topics that this task of the run worked on."""
    with open_lake() as lake:
        return sorted({run.topic for run in find_run(lake, run_id) if run.task == task})


def failures_of(run_id: str) -> str:
    """Return one line per topic that failed in the run, with its cause; empty if none did."""
    with open_lake() as lake:
        runs = find_run(lake, run_id)
    return "\n".join(f"{run.job} {run.topic}: {cause_of(run)}" for run in failed(runs))


def report_of(run_id: str) -> str:
    """Return the report of a run."""
    with open_lake() as lake:
        return render_run(lake, run_id, find_run(lake, run_id))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
