"""A round that the deadline of erasure forces, and the tombstones that the state follows."""

from __future__ import annotations

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.commits import Step
from ebbtide.kafka.reasons import Reason
from ebbtide.lake.reader import LakeTopic
from ebbtide.moments import to_datetime
from ebbtide.orchestration.erasures import overdue_erasures
from ebbtide.records.attributes import DELETE_HORIZON
from ebbtide.settings.config import DEADLINE_MS
from ebbtide.state.deletes import UNSEEN, Deletes, Stage, pending
from ebbtide.state.topic_state import ROUND, to_changes
from tests import rows
from tests.log.log_files import data_batch, transactional
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, HOUR_MS
from tests.tables.partition_log import write_segments

COMPACT = {"cleanup.policy": "compact"}
# The defaults need nine days, so that the first round may wait for three days.
DEADLINE = {DEADLINE_MS: str(12 * DAY_MS)}
LAST_MS = FIRST_MS + 3 * DAY_MS  # the last time at which the next nightly run is early enough
OLD = [Message(f"k{n}", "1") for n in range(20)]
DELETED = [Message("k3", None)]
LOG = [OLD, DELETED, [Message("z", "1")]]
COUNTED = Deletes(Stage.COUNTED, UNSEEN, 0, 22)


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A clean log with a tombstone, for which Kafka's cleaner would not clean it."""
    empty.log([OLD, []], COMPACT)
    empty.mark()
    empty.clean(FIRST_MS)
    empty.set(DEADLINE)
    empty.log(LOG, COMPACT, folder="second")
    empty.mark()
    return empty


def followed(bench: Bench) -> list[Deletes]:
    return list(pending(bench.load().partitions[0].deletes))


def test_a_round_is_forced_in_the_last_night_that_is_in_time(bench: Bench) -> None:
    assert followed(bench) == [Deletes(Stage.MARKED, FIRST_MS, 20, 21)]
    assert not bench.clean(LAST_MS).partitions[0]["picked"]
    assert bench.left() == list(range(22))
    numbers = bench.clean(LAST_MS + 1).partitions[0]
    assert numbers["picked"]
    assert numbers["reason"] == Reason.DEADLINE
    assert 3 not in bench.left()
    assert 20 in bench.left()
    horizon_ms = LAST_MS + 1 + DAY_MS
    waits = Deletes(Stage.HORIZON_SET, FIRST_MS, 20, 21, horizon_ms)
    assert followed(bench) == [waits]


def test_a_tombstone_stays_for_its_window_whatever_the_deadline(bench: Bench) -> None:
    bench.clean(LAST_MS + 1)
    assert not bench.clean(LAST_MS + DAY_MS).partitions[0]["picked"]
    assert 20 in bench.left()
    assert bench.clean(LAST_MS + 1 + DAY_MS).partitions[0]["tombstones_removed"] == 1
    assert followed(bench) == [Deletes(Stage.REMOVED, FIRST_MS, 20, 21)]


def test_a_tombstone_that_is_due_is_removed_in_time_though_no_data_is_new(bench: Bench) -> None:
    """With ebbtide.clean.without.new.data=false it waits for as long as it may."""
    bench.set({"ebbtide.clean.without.new.data": "false"})
    bench.clean(LAST_MS + 1)
    last_ms = FIRST_MS + 12 * DAY_MS - 5 * DAY_MS - 2 * DAY_MS
    assert not bench.clean(last_ms).partitions[0]["picked"]
    assert bench.clean(last_ms + 1).partitions[0]["picked"]
    assert 20 not in bench.left()


def test_a_tombstone_in_the_active_segment_forces_no_round(empty: Bench) -> None:
    empty.log([OLD, []], COMPACT)
    empty.set(DEADLINE)
    empty.mark()
    empty.clean(FIRST_MS)
    empty.log([OLD, DELETED], COMPACT, folder="second")
    empty.mark()
    assert followed(empty) == [Deletes(Stage.MARKED, FIRST_MS, 20, 21)]
    assert not empty.clean(FIRST_MS + 20 * DAY_MS).partitions[0]["picked"]


def latest_values(bench: Bench) -> dict[bytes, bytes]:
    """The value that a reader of the table gets of each key."""
    values = {record[3]: record[4] for record in bench.view().records}
    return {key: value for key, value in values.items() if value is not None}


def test_no_forced_round_makes_an_older_value_visible(bench: Bench) -> None:
    """A delete is due in the dirty part while the tombstone before it is due for removal."""
    expected = latest_values(bench)
    assert b"k3" not in expected
    bench.clean(LAST_MS + 1)
    later = [*LOG, [Message("k5", None, 2 * DAY_MS), Message("k6", "2", 2 * DAY_MS)], []]
    bench.log(later, COMPACT, now_ms=FIRST_MS + 2 * DAY_MS, folder="third")
    bench.mark()
    expected = {**expected, b"k6": b"2", b"z": b"1"}
    del expected[b"k5"]
    picked = {}
    for hours in range(0, 8 * 24, 12):
        now_ms = LAST_MS + DAY_MS + hours * HOUR_MS
        numbers = bench.clean(now_ms).partitions[0]
        assert latest_values(bench) == expected, now_ms
        if numbers["picked"]:
            picked[hours] = numbers["reason"]
    # Offset 20 without the dirty part, then a round of all, then offset 22 without new data.
    due, forced, again = picked
    assert (picked[due], picked[forced]) == (Reason.HORIZON_REACHED, Reason.DEADLINE)
    assert picked[again] == Reason.HORIZON_REACHED
    assert {5, 6, 20, 22}.isdisjoint(bench.left())


def test_a_tombstone_that_is_due_above_the_clean_part_forces_a_round_of_all(bench: Bench) -> None:
    """A round without new data would not cover it, as after an undo."""
    bench.clean(LAST_MS + 1)
    state, expected = bench.load().partitions[0], latest_values(bench)
    bench.set({"kafka.min.cleanable.dirty.ratio": "1"})
    bench.set(to_changes(0, state.moved(first_dirty_offset=0)))
    last_ms = FIRST_MS + 12 * DAY_MS - 5 * DAY_MS - 2 * DAY_MS
    assert not bench.clean(last_ms).partitions[0]["picked"]
    assert bench.clean(last_ms + 1).partitions[0]["reason"] == Reason.DEADLINE
    assert 20 not in bench.left()
    assert latest_values(bench) == expected
    assert followed(bench) == [Deletes(Stage.REMOVED, FIRST_MS, 20, 21)]


def warning(first: int, why: str = "") -> str:
    return (
        f"the next nightly run may be too late for a delete from offset {first} on, which must be "
        f"off the disk by 1970-01-13 00:16 UTC (ebbtide.erase.deadline.ms){why}"
    )


def test_an_open_transaction_that_blocks_a_forced_round_is_named(empty: Bench) -> None:
    write_log(empty.home / "log", "t", [], COMPACT)
    batches = [
        data_batch(0, *((f"k{n}", "1") for n in range(20)), at_ms=FIRST_MS),
        transactional(20, "b", producer=7, at_ms=FIRST_MS),
    ]
    deleted = [data_batch(21, ("k3", None), at_ms=FIRST_MS)]
    write_segments(empty.home / "log", {0: batches, 21: deleted, 22: []})
    empty.ingest(empty.home / "log", FIRST_MS)
    empty.set(DEADLINE)
    empty.mark()
    assert "note" in empty.clean(LAST_MS).partitions[0]
    assert "too late" not in empty.clean(LAST_MS).partitions[0]["note"]
    numbers = empty.clean(LAST_MS + 1).partitions[0]
    assert not numbers["picked"]
    transaction, _, late = numbers["note"].rpartition("; ")
    assert late == warning(21)
    words = "an open transaction of producer 7 blocks the log from offset 20 since"
    assert transaction.startswith(words)
    assert "kafka-transactions.sh abort --topic t --partition 0 --start-offset 20" in transaction
    end_ms = FIRST_MS + 12 * DAY_MS
    numbers = empty.clean(end_ms + 1).partitions[0]
    assert "too late" not in numbers["note"]
    overdue = overdue_erasures(LakeTopic(str(empty.name), empty.load().properties), end_ms + 1)
    assert overdue is not None
    cleaned = rows.run("clean_log", to_datetime(end_ms), result={"partitions": {"0": numbers}})
    text = overdue.in_words([cleaned], end_ms + 1)
    assert text.startswith("deletes in partition 0 had to be off the disk by 1970-01-13 00:16 UTC")
    assert f"clean_log: {words}" in text


def test_a_delete_in_the_active_segment_is_named_before_it_is_late(empty: Bench) -> None:
    empty.log([OLD, DELETED], COMPACT)
    empty.set(DEADLINE)
    empty.mark()
    assert "note" not in empty.clean(LAST_MS).partitions[0]
    numbers = empty.clean(LAST_MS + 1).partitions[0]
    assert numbers["note"] == warning(20, ": it is in the active segment")


def test_a_horizon_that_a_broker_has_set_is_followed(empty: Bench) -> None:
    """Its window there was longer: the tombstone is removed only after it."""
    horizon_ms = FIRST_MS + 5 * DAY_MS
    write_log(empty.home / "log", "t", [], COMPACT)
    fields = {"attributes": DELETE_HORIZON, "base_timestamp_ms": horizon_ms}
    deleted = [data_batch(20, ("k3", None), at_ms=FIRST_MS, **fields)]
    old = [data_batch(0, *((f"k{n}", "1") for n in range(20)), at_ms=FIRST_MS)]
    write_segments(empty.home / "log", {0: old, 20: deleted, 21: []})
    empty.ingest(empty.home / "log", FIRST_MS)
    empty.set({**DEADLINE, "kafka.min.cleanable.dirty.ratio": "0"})
    empty.mark()
    assert followed(empty) == [Deletes(Stage.MARKED, FIRST_MS, 20, 21, horizon_ms)]
    empty.clean(FIRST_MS + DAY_MS)
    assert followed(empty) == [Deletes(Stage.HORIZON_SET, FIRST_MS, 20, 21, horizon_ms)]
    empty.clean(horizon_ms - 1)
    assert 20 in empty.left()
    empty.clean(horizon_ms)
    assert 20 not in empty.left()
    assert followed(empty) == [Deletes(Stage.REMOVED, FIRST_MS, 20, 21)]


def test_tombstones_from_before_the_setting_are_counted_with_their_horizons(empty: Bench) -> None:
    """Also those of a lake that an older version of ebbtide wrote."""
    empty.log([OLD, DELETED, [Message("k4", None, 7)], []], COMPACT)
    empty.mark()
    empty.set({"kafka.min.cleanable.dirty.ratio": "0", "kafka.min.compaction.lag.ms": "1"})
    empty.clean(FIRST_MS + 6)
    assert followed(empty) == []
    empty.set({"kafka.min.compaction.lag.ms": None, **DEADLINE})
    empty.mark()
    assert followed(empty) == [
        Deletes(Stage.MARKED, FIRST_MS, 21, 22),
        Deletes(Stage.HORIZON_SET, FIRST_MS, 20, 21, FIRST_MS + 6 + DAY_MS),
    ]
    before = empty.load().properties
    empty.mark()
    assert empty.load().properties == before


def test_without_the_setting_the_state_forgets_the_tombstones(bench: Bench) -> None:
    bench.set({DEADLINE_MS: None, "kafka.min.cleanable.dirty.ratio": "0"})
    bench.clean(FIRST_MS + HOUR_MS)
    assert bench.load().partitions[0].deletes == ()


@pytest.mark.parametrize(
    "step", [Step.ROUND_STARTED, Step.ROUND_RECORDS, Step.ROUND_BATCHES, Step.ROUND_STATE]
)
def test_a_forced_round_that_is_killed_leaves_the_tombstones_as_an_unbroken_one(
    bench: Bench, kill_at: list[Step], step: Step
) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        bench.clean(LAST_MS + 1)
    assert followed(bench) == [Deletes(Stage.MARKED, FIRST_MS, 20, 21)]
    bench.clean(LAST_MS + 1)
    assert ROUND not in bench.load().properties
    horizon_ms = LAST_MS + 1 + DAY_MS
    assert followed(bench) == [Deletes(Stage.HORIZON_SET, FIRST_MS, 20, 21, horizon_ms)]


def test_marks_that_are_killed_before_the_state_are_found_again(
    empty: Bench, kill_at: list[Step]
) -> None:
    empty.log(LOG, COMPACT)
    empty.set(DEADLINE)
    kill_at.append(Step.MARK_STATE)
    with pytest.raises(KilledError):
        empty.mark()
    assert followed(empty) == []
    empty.mark()
    assert empty.load().partitions[0].deletes == (
        COUNTED,
        Deletes(Stage.MARKED, FIRST_MS, 20, 21),
    )


def test_a_topic_whose_deadline_cannot_hold_is_refused_by_each_job(bench: Bench) -> None:
    bench.set({"history.expire.max-snapshot-age-ms": str(9 * DAY_MS)})
    with pytest.raises(ConfigurationError, match=r"at least 1123200000 ms \(13 days\)"):
        bench.clean(LAST_MS)
