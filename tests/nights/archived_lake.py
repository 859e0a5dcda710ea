"""A lake as an older ebbtide left it, with work in flight, to be opened by every later one.

Metadata of Iceberg holds absolute paths, so an archived lake is always unpacked to one place.
`python -m tests.nights.archived_lake NAME` writes one with the code at hand, and beside it what
that code makes of it in the end.
"""

from __future__ import annotations

import base64
import fcntl
import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.log.requests.erase_request import Erasure
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.stages.clean_log.segment_merge import AT_LEAST, merge_segments
from ebbtide.stages.erase_keys.direct_append import append_tombstones, finish_append
from tests.lake_sandbox import LakeSandbox
from tests.tables.contents import contents
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, night

FOLDER = Path(__file__).parent / "archived"
PLACE = Path("/tmp/ebbtide-archived-lake")
COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
NIGHT_MS = FIRST_MS + 10 * DAY_MS
OLD = [[Message("a", str(n)), Message(f"k{n}", "1")] for n in range(AT_LEAST)]
NEW = [[Message("k0", None), Message("a", "last")], [Message("z", "1")]]
# Each topic, and the commit before which the job that worked on it was killed.
TOPICS = {
    "idle": None,
    "planned": Step.ROUND_RECORDS,
    "halfway": Step.ROUND_BATCHES,
    "unsaid": Step.ROUND_STATE,
    "merging": Step.MERGE_BATCHES,
    "appending": Step.APPEND_BATCHES,
}


class Killed(Exception):  # noqa: N818
    """Stands for a process that ends at a commit point."""


@contextmanager
def opened(name: str) -> Iterator[LakeSandbox]:
    """The archived lake, unpacked; one process at a time."""
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        sandbox = LakeSandbox(PLACE)
        shutil.rmtree(PLACE / "lake")
        with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
            archive.extractall(PLACE, filter="data")
        try:
            yield sandbox
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


def expected(name: str) -> dict[str, Any]:
    """What the code that wrote the lake made of each topic in the end."""
    kept: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return kept


def end_all(spark: SparkSession) -> dict[str, Any]:
    """Let a night go over all topics; what they then hold, as JSON has it."""
    for topic in TOPICS:
        finish_append(load(spark, TopicName("log", topic)))
        night(spark, f"log.{topic}", NIGHT_MS + 2 * DAY_MS)
    return {topic: as_json(spark, TopicName("log", topic)) for topic in TOPICS}


def as_json(spark: SparkSession, name: TopicName) -> dict[str, Any]:
    """All that a topic's tables hold, in values that JSON has."""
    tables = contents(spark, name)
    return {
        "records": [_plain(row) for row in tables.records],
        "batches": [_plain(row) for row in tables.batches],
        "states": {str(p): _state(state) for p, state in tables.states.items()},
    }


def _state(state: PartitionState) -> dict[str, Any]:
    names = ("log_start_offset", "log_end_offset", "first_dirty_offset", "first_unmarked_offset")
    names += ("max_event_time_ms", "cleaned_at_ms", "cleaned_end_offset", "next_clean_ms")
    return {name: getattr(state, name) for name in names} | {
        "segments": [list(segment) for segment in state.segments]
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(of) for of in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def write(name: str) -> None:
    """Archive a lake of this code, and what this code makes of it."""
    shutil.rmtree(PLACE, ignore_errors=True)
    sandbox = LakeSandbox(PLACE)
    for topic, step in TOPICS.items():
        _write_topic(sandbox, topic, step)
    FOLDER.mkdir(exist_ok=True)
    with tarfile.open(FOLDER / f"{name}.tar.gz", "w:gz", compresslevel=9) as archive:
        archive.add(PLACE / "lake", "lake")
    text = json.dumps(end_all(sandbox.session), indent=1)
    (FOLDER / f"{name}.json").write_text(text + "\n")
    shutil.rmtree(PLACE)


def _write_topic(sandbox: LakeSandbox, topic: str, step: Step | None) -> None:
    spark, name = sandbox.session, f"log.{topic}"
    log = write_log(sandbox.home / topic, topic, [*OLD, *NEW], COMPACT)
    ingest(spark, name, log, FIRST_MS)
    mark(spark, name)
    work: Callable[[], object] = lambda: clean(spark, name, NIGHT_MS)  # noqa: E731
    if step in (None, Step.MERGE_BATCHES, Step.APPEND_BATCHES):
        work()
    if step is Step.MERGE_BATCHES:
        work = lambda: merge_segments(load(spark, TopicName.parse(name)))  # noqa: E731
    if step is Step.APPEND_BATCHES:
        keys = {0: [b"a", b"k1"]}
        erasure = Erasure(
            run_id="archived", now_ms=NIGHT_MS, requested_by="somebody", reason="a test"
        )
        spark.sql(f"ALTER TABLE lake.{name} UNSET TBLPROPERTIES ('ebbtide.source')")
        work = lambda: append_tombstones(load(spark, TopicName.parse(name)), keys, erasure)  # noqa: E731
    if step is not None:
        _kill_at(step, work)


def _kill_at(step: Step, work: Callable[[], object]) -> None:
    def before_commit(reached: Step) -> None:
        if reached is step:
            raise Killed(step)

    usual, commits.before_commit = commits.before_commit, before_commit
    try:
        work()
    except Killed:
        return
    finally:
        commits.before_commit = usual
    raise AssertionError(f"the job never came to {step}")


if __name__ == "__main__":
    import_module("tests.conftest")  # Spark's Python workers run in this environment
    write(sys.argv[1])
