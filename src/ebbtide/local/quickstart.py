"""Run the demonstration of `make run`: the sample log, two nights of the real DAG, and the reports.

The nights follow from the log's own last append and not from today, so their clock may run ahead of
the real one, and no guard applies to them. So the demonstration has a cluster of its own, and its
nights name its topics: no other topic of the lake is touched, however often it runs.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide import open_lake
from ebbtide.lake.runs import failed
from ebbtide.local.commands import StepError, lines_of
from ebbtide.local.dag_runs import DagRuns, running, several_runs
from ebbtide.local.progress import working
from ebbtide.local.task_logs import ENDING, STARTING, TaskLogs, log_folder
from ebbtide.moments import to_datetime
from ebbtide.orchestration.driver.installation import Paths, paths
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.report import find_run, render_run
from ebbtide.specs.all_specs import SPECS
from ebbtide.text import size

CLUSTER = "demo"
# For topics that can be recreated: a night may remove any share, and at once from the disk.
GUARDS_OFF = ("history.expire.max-snapshot-age-ms=0", "ebbtide.max.delete.ratio=1")
DAG = "nightly_retention"
HOUR_OF_NIGHT = 1

# Airflow's own word for the run that it has made.
RUN_ID = re.compile(r"(manual__[0-9T:.+-]+)")


def print_step(step: str, started: float, note: str = "") -> None:
    """Print one line for a step that began at `started` on the monotonic clock."""
    print(f"  {step:<42}{time.monotonic() - started:>7.1f} s   {note}".rstrip(), flush=True)


def main() -> int:
    """Run everything; 1 when a step failed."""
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
    """Ingest and both nights; the report of each night as it stood when the night was over."""
    source = where.root / "sample" / "log"
    last_append = last_append_of(source / "ebbtide-manifest.json")
    topics = topics_of(source / "ebbtide-manifest.json")
    nights = nights_after(last_append)
    print(f"sample log {source.relative_to(where.root)}, last append {last_append:%F %T} UTC")
    print(warning(topics, nights[-1], datetime.now(UTC)))
    reports = []
    with running(several_runs(DAG)) as runs:  # it imports Airflow meanwhile
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
    """Return bytes of all files below the warehouse, old snapshots and metadata included."""
    files = (where.home / "lake" / "warehouse").rglob("*")
    return size(sum(file.stat().st_size for file in files if file.is_file()))


def last_append_of(manifest: Path) -> datetime:
    """Return when the broker that wrote the log last appended to it."""
    return to_datetime(_read(manifest)["last_append_ms"])


def topics_of(manifest: Path) -> list[str]:
    """Return the topics of the sample, as the lake names them; no night touches any other."""
    return sorted(f"{CLUSTER}.{topic}" for topic in _read(manifest)["topics"])


def warning(topics: Sequence[str], last_night: datetime, wall_clock: datetime) -> str:
    """Describe what is different here from a night on topics that matter."""
    ahead = "its clock is the sample's"
    if last_night > wall_clock:
        ahead = f"its clock runs ahead, to {last_night:%F %T} UTC"
    return (
        f"a demonstration on {' and '.join(topics)} only: {ahead},\n"
        "  and its guards are off: a night may remove any share of a topic\n"
        "  (ebbtide.max.delete.ratio=1), and snapshots keep what it removes for an undo alone\n"
        "  (history.expire.max-snapshot-age-ms=0). Your own topics have both guards on."
    )


def next_steps() -> str:
    """Describe what to do after the demonstration."""
    return (
        "== what next ==\n"
        "make up                           Airflow on http://127.0.0.1:8080; Browse > Retention\n"
        "ingest_topic, ingest_segments     trigger one of them: it brings in your own topics\n"
        "configure_topic                   set what may be removed; without it, nothing is\n"
        "nightly_retention                 unpause it: the next run is the next 2 o'clock"
    )


def _read(manifest: Path) -> dict[str, Any]:
    if not manifest.exists():
        raise StepError(f"expected the sample's {manifest.name}, found none in {manifest.parent}")
    content: dict[str, Any] = json.loads(manifest.read_text())
    return content


def nights_after(last_append: datetime) -> tuple[datetime, datetime]:
    """Return the first 01:00 UTC at or after the last append, and the one a day later."""
    first = last_append.replace(hour=HOUR_OF_NIGHT, minute=0, second=0, microsecond=0)
    if first < last_append:
        first += timedelta(days=1)
    return first, first + timedelta(days=1)


def ingest(where: Paths, source: Path, topics: Sequence[str], now: datetime) -> None:
    """Bring the sample into the lake by the job itself."""
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
    """Return the conf of a night on these topics."""
    return {
        "topics": list(topics),
        "now": now.isoformat(),
        "allow_future_now": now > datetime.now(UTC),
    }


def run_night(runs: DagRuns, conf: Mapping[str, Any], log: Path, watch: Watch) -> None:
    """Run the DAG once; `watch` sees all that it prints."""
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
    """Turns what a run of the DAG prints into one line a task."""

    night: str
    topics_run: Callable[[str, str], list[str]]  # by run id and task
    is_first: bool = True  # of its process
    run_id: str = ""
    has_begun: bool = False
    started: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)

    def see(self, line: str) -> None:
        """Take in one line of output."""
        if not self.run_id and (match := RUN_ID.search(line)):
            self.run_id = match[1]
        if STARTING.search(line) and not self.has_begun:
            self.has_begun = True
            self._lap("Airflow, start")
            if self.is_first:
                self.notes.append("of which most is Airflow's in-process API, once")
        elif match := ENDING.search(line):
            self._note_job(match[1])
            self._lap(match[1])

    def finish(self) -> None:
        """Record the time between the last task and the process's end."""
        self._lap("Airflow, end")

    def _note_job(self, task: str) -> None:
        """Note what a job's rows in `runs` tell; a task without a row has not started Spark."""
        if task in SPECS:
            topics = self.topics_run(self.run_id, task)
            done = f"Spark for {', '.join(topics)}" if topics else "nothing to do, without Spark"
            self.notes.append(done)

    def _lap(self, what: str) -> None:
        print_step(f"{self.night}  {what}", self.started, "; ".join(self.notes))
        self.started = time.monotonic()
        self.notes.clear()


def topics_run(run_id: str, task: str) -> list[str]:
    """Return the topics that a job has run on in this task of the run."""
    with open_lake() as lake:
        return sorted({run.topic for run in find_run(lake, run_id) if run.task == task})


def failures_of(run_id: str) -> str:
    """List each topic that failed in the run with its cause, a line each; empty if none did."""
    with open_lake() as lake:
        runs = find_run(lake, run_id)
    return "\n".join(f"{run.job} {run.topic}: {cause_of(run)}" for run in failed(runs))


def report_of(run_id: str) -> str:
    """Return the report of the newest run."""
    with open_lake() as lake:
        return render_run(lake, run_id, find_run(lake, run_id))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
