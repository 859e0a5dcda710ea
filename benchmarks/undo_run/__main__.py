"""Seconds of an undo over those of the round that it takes back, and of nights that can be undone.

    python -m benchmarks.undo_run [--cell 8m-5] [--repeats 3] [--night-records 1000000] [--nights 5]

A topic of a cell of benchmarks.clean_log is cleaned and undone in turns. Then two topics of the
same log grow night by night; one notes undo points, as by default, the other has
`ebbtide.undo.retention.ms=0`. They take turns at being first. All jobs run in one process; its
start is in no number, and the first round, undo and night warm it up and do not count. Snapshots
expire at once, so that only undo points keep files. What was measured is kept in
benchmarks/results/undo_run.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.clean_log.contenders.meter import Meter
from benchmarks.clean_log.data.cells import FIRST_TIMESTAMP_MS, NOW_MS, TOMBSTONES, Cell
from benchmarks.clean_log.data.log_files import SEED, TOPIC, Part, append_part, write_log
from benchmarks.clean_log.data.tables import NAME, SETTINGS, make_topic
from benchmarks.clean_log.report.kept import now, this_machine
from benchmarks.undo_run.kept import DEFAULT, RESULTS, WITHOUT, KeptUndo, Taken, undo_tables
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.settings.names import TopicName
from jobs import clean_log, expire_segments, expire_snapshots, mark_tombstones, undo_run
from tests.lake_sandbox import LakeSandbox

DAY_MS = 86_400_000
PAUSED_DAYS = 8  # what came back is left alone for seven
BATCH_RECORDS = 100
NIGHT = (mark_tombstones, clean_log, expire_segments, expire_snapshots)
YOUNG = {"history.expire.max-snapshot-age-ms": "1"}
NIGHT_SETTINGS = {
    DEFAULT: {**SETTINGS, "history.expire.max-snapshot-age-ms": "1"},
    WITHOUT: {
        **SETTINGS,
        "history.expire.max-snapshot-age-ms": "1",
        "ebbtide.undo.retention.ms": "0",
    },
}
_numbers = count(1)


def run_id() -> str:
    """One that no run has had."""
    return f"measured-{next(_numbers)}"


def run(job: ModuleType, name: TopicName, run_id: str, now_ms: int, *more: str) -> None:
    """A job as Airflow starts it, in this process."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()
    code = job.main(["--topic", str(name), "--now", at, "--run-id", run_id, *more])
    if code:
        sys.exit(f"expected {job.__name__} of {name} to succeed, found exit code {code}")


def measured(job: ModuleType, name: TopicName, run_id: str, now_ms: int, *more: str) -> Taken:
    """The job, and what it took."""
    with Meter(os.getpid()) as meter:
        run(job, name, run_id, now_ms, *more)
    return Taken(meter.usage.wall_s, meter.usage.cpu_s)


def rounds_and_undos(
    spark: SparkSession, cell: Cell, log: Path, repeats: int
) -> Iterator[tuple[Taken, Taken]]:
    """Clean the cell's topic and take that back; what each of both took."""
    survivors = write_log(cell, log)
    make_topic(spark, cell, log)
    began_ms = max(NOW_MS, int(time.time() * 1000))  # a pause ends by the machine's clock
    for number in range(repeats + 1):
        now_ms, cleaning = began_ms + number * PAUSED_DAYS * DAY_MS, run_id()
        cleaned = measured(clean_log, NAME, cleaning, now_ms)
        check_rows(spark, survivors.records)
        undone = measured(undo_run, NAME, run_id(), now_ms, "--run", cleaning)
        check_rows(spark, cell.records)
        if number:
            yield cleaned, undone


def check_rows(spark: SparkSession, expected: int) -> None:
    """What is fast must have done the work."""
    found = spark.table(NAME.records_table).count()
    if found != expected:
        sys.exit(f"expected {expected} records in {NAME}, found {found}")


class Nights:
    """A log that grows, and its topics with undo points and without."""

    def __init__(self, spark: SparkSession, log: Path, keys: int, percent: float) -> None:
        self._spark, self._log, self._keys = spark, log, keys
        self._dirty = round(keys * percent / 100)
        self._rng = np.random.default_rng(SEED)
        self._end = 0
        self.names = {what: TopicName(what, TOPIC) for what in NIGHT_SETTINGS}

    def run(self, number: int) -> dict[str, Taken]:
        """Night 0 brings every key once; each later one some of them again."""
        keys = self._rng.integers(0, self._keys, self._dirty) if number else np.arange(self._keys)
        part = Part(self._end, keys, TOMBSTONES if number else 0, BATCH_RECORDS)
        append_part(self._log, part, self._rng)
        self._end += len(keys)
        now_ms = FIRST_TIMESTAMP_MS + (number + 1) * DAY_MS
        turns = list(NIGHT_SETTINGS) if number % 2 else list(reversed(NIGHT_SETTINGS))
        return {what: self._night(what, now_ms) for what in turns}

    def _night(self, what: str, now_ms: int) -> Taken:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        source = Source.of_uri(str(self._log), now, settings=NIGHT_SETTINGS[what])
        ingest_segments(self._spark, self.names[what], source)
        night = run_id()
        with Meter(os.getpid()) as meter:
            for job in NIGHT:
                run(job, self.names[what], night, now_ms)
        return Taken(meter.usage.wall_s, meter.usage.cpu_s)


def on_disk(home: Path, name: TopicName) -> int:
    """Bytes of the topic's own tables, with all snapshots."""
    warehouse = home / "lake" / "warehouse"
    tables = [p for p in warehouse.glob(f"{name.cluster}*/{name.topic}") if p.is_dir()]
    assert tables, warehouse
    return sum(p.stat().st_size for table in tables for p in table.rglob("*") if p.is_file())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cell", type=Cell.parse, default="8m-5", help="of benchmarks.clean_log")
    parser.add_argument("--repeats", type=int, default=3, help="rounds and undos that count")
    parser.add_argument("--night-records", type=int, default=1_000_000)
    parser.add_argument("--night-percent", type=float, default=5)
    parser.add_argument("--nights", type=int, default=5, help="nights that count")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "home"
        sandbox = LakeSandbox(home)
        os.environ.update(sandbox.environment())
        spark = sandbox.session
        both = list(rounds_and_undos(spark, args.cell, Path(temporary) / "cell", args.repeats))
        nights = Nights(spark, Path(temporary) / "nights", args.night_records, args.night_percent)
        taken = [nights.run(number) for number in range(args.nights + 1)][1:]
        kept = KeptUndo(
            machine=this_machine(),
            date=now(),
            load=[load, os.getloadavg()[0]],
            cell=args.cell.name,
            rounds=[cleaned for cleaned, _ in both],
            undos=[undone for _, undone in both],
            night_records=args.night_records,
            night_percent=args.night_percent,
            nights={what: [night[what] for night in taken] for what in NIGHT_SETTINGS},
            bytes_on_disk={what: on_disk(home, name) for what, name in nights.names.items()},
        )
    kept.write(args.results)
    print(undo_tables(kept))


if __name__ == "__main__":
    main()
