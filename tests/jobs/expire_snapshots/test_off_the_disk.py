"""A deleted value is in a file until the date that the sentence names, and in none after it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import load
from ebbtide.jobs import expire_snapshots
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.lake.reader import LakeTopic
from ebbtide.ledger.own_tables import Run
from ebbtide.orchestration.deletions import newest_deletion
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, set_properties
from tests.waiting import wait_for_clock

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
SECRET = "a secret"
OLD = [Message("a", SECRET), *(Message(key, "1") for key in "bcd")]
AGE_MS = 1_000
AGE = {"history.expire.max-snapshot-age-ms": str(AGE_MS)}
REWRITE_ALL = {"ebbtide.rewrite.deleted.ratio": "0"}


class Nights:
    """The runs of a topic, whose expire_snapshots are at a clock of the test's."""

    def __init__(
        self, sandbox: LakeSandbox, name: TopicName, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.sandbox, self.name, self.patch = sandbox, name, monkeypatch
        self.runs: list[Run] = []
        self.now_ms = FIRST_MS  # of the cleaner

    def segments(self, directory: Path, *segments: list[Message]) -> None:
        """Ingest, mark and clean a log with one more segment that is active."""
        spark, topic = self.sandbox.session, str(self.name)
        write_log(directory, "t", segments, COMPACT)
        ingest(spark, topic, directory, FIRST_MS)
        mark(spark, topic)
        self.now_ms += DAY_MS
        outcome = clean(spark, topic, self.now_ms)
        if outcome.rows_removed:
            self._add("clean_log", self.newest_ms(), outcome)

    def expire(self, clock_ms: int) -> str:
        """Expire snapshots at this moment; what is then said of the newest deletion."""
        self.patch.setattr(expire_snapshots, "_clock_ms", lambda: clock_ms)
        outcome = execute_expire_snapshots(load(self.sandbox.session, self.name))
        self._add("expire_snapshots", clock_ms, outcome)
        properties = load(self.sandbox.session, self.name).properties
        topic, clock = LakeTopic(str(self.name), properties), at(clock_ms)
        deletion = newest_deletion(topic, self.runs, clock)
        assert deletion is not None
        return deletion.in_words().partition(" UTC")[2]

    def newest_ms(self) -> int:
        """When the records table's current snapshot was made."""
        table = java_table(self.sandbox.session, self.name.records_table)
        return int(table.currentSnapshot().timestampMillis())

    def is_on_disk(self) -> bool:
        """Whether any file below the table has the secret, whatever snapshots say."""
        uri = java_table(self.sandbox.session, self.name.records_table).location()
        files = Path(uri.removeprefix("file:")).rglob("*.parquet")
        return any(SECRET.encode() in pq.read_table(f)["value"].to_pylist() for f in files)

    def _add(self, job: str, clock_ms: int, outcome: JobOutcome) -> None:
        when = at(clock_ms)
        self.runs.append(
            Run(
                run_id="r",
                dag="nightly_retention",
                task=job,
                job=job,
                topic=str(self.name),
                started=when,
                ended=when,
                now=when,
                status="succeeded",
                error=None,
                error_class=None,
                is_transient=False,
                result={"topic": outcome.topic},
                rows_removed=outcome.rows_removed,
                files_removed=0,
                bytes_removed=0,
                snapshot_ids=(),
            )
        )


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@pytest.fixture
def nights(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Nights:
    """A topic whose newest deletion is that of the secret."""
    nights = Nights(sandbox, TopicName(cluster, "t"), monkeypatch)
    nights.segments(tmp_path / "1", OLD, [])
    set_properties(sandbox.session, f"{cluster}.t", AGE)
    nights.segments(tmp_path / "2", OLD, [Message("a", "2")], [])
    return nights


@pytest.mark.long
def test_a_file_that_is_rewritten_late_is_there_until_the_date(
    nights: Nights, tmp_path: Path
) -> None:
    removed_ms = nights.newest_ms()
    assert "1 deleted rows are in files with less than 30% deleted rows" in nights.expire(
        removed_ms + 1
    )
    wait_for_clock(removed_ms + AGE_MS)
    nights.segments(tmp_path / "3", OLD, [Message("a", "2")], [Message("e", "1")], [])
    young_ms = nights.newest_ms()
    set_properties(nights.sandbox.session, str(nights.name), REWRITE_ALL)
    # The snapshots that show the record are past their age, and this run rewrites its file.
    assert young_ms > removed_ms + AGE_MS
    assert "; the first expire_snapshots after " in nights.expire(young_ms)
    assert nights.is_on_disk()
    assert "; the next expire_snapshots frees their files, due " in nights.expire(young_ms + AGE_MS)
    assert nights.is_on_disk()
    assert ", and were off the disk by " in nights.expire(young_ms + AGE_MS + 1)
    assert not nights.is_on_disk()


@pytest.mark.long(but="TAG")
@pytest.mark.parametrize("kind", ["TAG", "BRANCH"])
def test_a_ref_of_another_tool_is_named_until_it_is_dropped(nights: Nights, kind: str) -> None:
    table, spark = nights.name.records_table, nights.sandbox.session
    spark.sql(f"ALTER TABLE {table} CREATE {kind} audit")
    if kind == "BRANCH":  # which goes on: its newest snapshot is younger than the deletion
        spark.sql(f"DELETE FROM {table}.branch_audit WHERE key = X'64'")
    set_properties(spark, str(nights.name), REWRITE_ALL)
    late_ms = nights.newest_ms() + DAY_MS
    for clock_ms in (late_ms, late_ms + 1):
        expected = f"; the {kind.lower()} audit of the records table needs old files."
        assert nights.expire(clock_ms) == expected
        assert nights.is_on_disk()
    spark.sql(f"ALTER TABLE {table} DROP {kind} audit")
    assert ", and were off the disk by " in nights.expire(late_ms + 2)
    assert not nights.is_on_disk()
