"""A deleted value is off the disk by the deadline of erasure, and is followed until then."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import Topic
from ebbtide.jobs import expire_snapshots
from ebbtide.jobs.expire_snapshots import Deletions, Due, execute_expire_snapshots
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import DEADLINE_MS, UNDO_MS
from ebbtide.state.deletes import Deletes, Stage, pending
from ebbtide.state.topic_state import to_changes
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS

COMPACT = {"cleanup.policy": "compact"}
AGE_MS = 3_600_000
SETTINGS = {
    DEADLINE_MS: str(12 * DAY_MS),
    UNDO_MS: "0",
    "kafka.delete.retention.ms": "0",
    "kafka.min.cleanable.dirty.ratio": "0",
    "history.expire.max-snapshot-age-ms": str(AGE_MS),
}
SECRET = "a secret"
LOG = [
    [Message(f"k{n}", "1") for n in range(19)] + [Message("p", SECRET)],
    [Message("p", None), *(Message(f"n{n}", "1") for n in range(20))],
    [Message("z", "1")],
]
# The last time at which the next nightly run is early enough to rewrite.
LAST_MS = FIRST_MS + 12 * DAY_MS - AGE_MS - 2 * DAY_MS


class Nights:
    """The runs of expire_snapshots, at a machine clock of the test's."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench, self.patch = bench, monkeypatch

    def expire(self, now_ms: int, *, after_ms: int = 0) -> JobOutcome:
        """Run at a `now`, so long after the table's newest commit."""
        clock_ms = self.newest_ms() + after_ms
        self.patch.setattr(expire_snapshots, "_clock_ms", lambda: clock_ms)
        return execute_expire_snapshots(self.bench.load(), now_ms=now_ms)

    def newest_ms(self) -> int:
        table = java_table(self.bench.spark, self.bench.name.records_table)
        return int(table.currentSnapshot().timestampMillis())

    def followed(self) -> list[Deletes]:
        return list(pending(self.bench.load().partitions[0].deletes))

    def stages(self) -> list[int]:
        return [group.stage for group in self.followed()]

    def is_on_disk(self) -> bool:
        """Whether any file below the table has the secret or the tombstone of its key."""
        uri = java_table(self.bench.spark, self.bench.name.records_table).location()
        files = Path(uri.removeprefix("file:")).rglob("*.parquet")
        return any(b"p" in pq.read_table(file)["key"].to_pylist() for file in files)


@pytest.fixture
def nights(empty: Bench, monkeypatch: pytest.MonkeyPatch) -> Nights:
    """A log in which a forced round and a second one have removed a secret and its tombstone."""
    empty.log([LOG[0], []], COMPACT)
    empty.mark()
    empty.clean(FIRST_MS)
    empty.set(SETTINGS)
    empty.log(LOG, COMPACT, folder="second")
    empty.mark()
    empty.clean(FIRST_MS + DAY_MS)
    empty.clean(FIRST_MS + 2 * DAY_MS)
    assert {19, 20}.isdisjoint(empty.left())
    return Nights(empty, monkeypatch)


def test_a_rewrite_is_forced_in_the_last_night_that_is_in_time(nights: Nights) -> None:
    """One of 20 rows is deleted, which is below ebbtide.rewrite.deleted.ratio."""
    assert nights.followed() == [Deletes(Stage.REMOVED, FIRST_MS, 20, 21)]
    early = nights.expire(LAST_MS).topic
    assert early["files_rewritten"] == 1  # that of the tombstone with its mark
    assert early["deleted_rows_below_ratio"] == 2
    assert nights.stages() == [Stage.REMOVED]
    assert nights.followed()[0].is_seen
    assert nights.expire(LAST_MS + 1).topic["files_rewritten"] == 2
    assert nights.stages() == [Stage.REWRITTEN]
    assert nights.is_on_disk()


def test_files_that_are_merged_are_not_rewritten_for_the_deadline_too(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merging a single segment with its neighbours rewrites its files without deleted rows."""
    order: list[str] = []
    merge, rewrite = expire_snapshots.merge_segments, expire_snapshots.rewrite_files

    def merging(topic: Topic) -> int:
        order.append("merge")
        return merge(topic, at_least=2)

    def rewriting(topic: Topic, deletions: Deletions, table: str | None = None) -> int:
        order.extend([] if table else ["rewrite"])
        return rewrite(topic, deletions, table)

    monkeypatch.setattr(expire_snapshots, "merge_segments", merging)
    monkeypatch.setattr(expire_snapshots, "rewrite_files", rewriting)
    outcome = nights.expire(LAST_MS + 1)
    assert order == ["merge", "rewrite"]
    assert outcome.topic["segments_merged"] > 0
    assert outcome.topic["files_rewritten"] == 0
    assert nights.stages() == [Stage.REWRITTEN]


def test_deletes_are_followed_until_no_snapshot_has_them(nights: Nights) -> None:
    nights.expire(LAST_MS + 1)
    nights.expire(LAST_MS + 2, after_ms=AGE_MS - 60_000)
    assert nights.is_on_disk()
    assert nights.stages() == [Stage.REWRITTEN]
    nights.expire(LAST_MS + 3, after_ms=AGE_MS + 1)
    assert not nights.is_on_disk()
    assert nights.followed() == []


def test_files_without_deleted_rows_of_before_are_not_rewritten_again(nights: Nights) -> None:
    """The deletion of later rows forces nothing for the tombstone that is rewritten."""
    nights.expire(LAST_MS + 1)
    assert nights.expire(LAST_MS + 2).topic["bytes_freed"] == 0
    assert nights.expire(LAST_MS + DAY_MS).topic.get("files_rewritten", 0) == 0


@pytest.mark.parametrize("kind", ["TAG", "BRANCH"])
def test_deletes_are_followed_while_a_tag_or_branch_has_them(nights: Nights, kind: str) -> None:
    table = nights.bench.name.records_table
    nights.bench.spark.sql(f"ALTER TABLE {table} CREATE {kind} before")
    nights.expire(LAST_MS + 1)
    nights.expire(LAST_MS + 2, after_ms=AGE_MS + 1)
    assert nights.stages() == [Stage.REWRITTEN]
    assert nights.is_on_disk()
    nights.bench.spark.sql(f"ALTER TABLE {table} DROP {kind} before")
    nights.expire(FIRST_MS + 12 * DAY_MS + 1, after_ms=AGE_MS + 1)
    assert nights.followed() == []
    assert not nights.is_on_disk()


def test_a_stored_plan_has_the_forced_files(nights: Nights) -> None:
    assert len(Due.of(nights.bench.load(), LAST_MS).files) == 1
    planned = Due.of(nights.bench.load(), LAST_MS + 1)
    assert len(planned.files) == 3
    execute_expire_snapshots(nights.bench.load(), planned, LAST_MS + 1)
    assert nights.stages() == [Stage.REWRITTEN]


@pytest.mark.parametrize("step", [Step.REWRITE_FILES, Step.DELETES_FOLLOWED])
def test_a_forced_rewrite_that_is_killed_ends_as_an_unbroken_one(
    nights: Nights, kill_at: list[Step], step: Step
) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        nights.expire(LAST_MS + 1)
    assert nights.followed() == [Deletes(Stage.REMOVED, FIRST_MS, 20, 21)]
    nights.expire(LAST_MS + 1)
    assert nights.stages() == [Stage.REWRITTEN]
    nights.expire(LAST_MS + 2, after_ms=AGE_MS + 1)
    assert nights.followed() == []
    assert not nights.is_on_disk()


def test_tombstones_below_the_log_start_are_removed_ones(
    empty: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords and retention remove them too, and no round follows."""
    empty.log(LOG, {"cleanup.policy": "compact,delete"})
    empty.set(SETTINGS)
    empty.mark()
    nights = Nights(empty, monkeypatch)
    assert nights.stages() == [Stage.MARKED]
    empty.clean(FIRST_MS)
    assert nights.stages() == [Stage.HORIZON_SET]
    empty.delete({0: 41})
    nights.expire(FIRST_MS + DAY_MS)
    assert nights.stages() == [Stage.REWRITTEN]
    nights.expire(FIRST_MS + DAY_MS, after_ms=AGE_MS + 1)
    assert nights.followed() == []
    assert not nights.is_on_disk()


def test_a_round_that_ends_meanwhile_is_not_taken_for_seen(
    nights: Nights, meanwhile: Meanwhile
) -> None:
    """Its rows may be in files that this run has not looked at."""

    def change_state() -> None:
        state = nights.bench.load().partitions[0]
        more = Deletes(Stage.REMOVED, FIRST_MS, 20, 30)
        changed = state.moved(deletes=(*state.deletes[:1], more))
        nights.bench.set(to_changes(0, changed))

    meanwhile(Step.DELETES_FOLLOWED, change_state)
    nights.expire(LAST_MS + 1)
    assert nights.followed() == [Deletes(Stage.REMOVED, FIRST_MS, 20, 30)]
