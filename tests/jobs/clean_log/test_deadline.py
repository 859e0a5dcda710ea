"""A round that the deadline of erasure forces, and the tombstones that the state follows."""

from __future__ import annotations

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.commits import Step
from ebbtide.kafka.reasons import Reason
from ebbtide.settings.config import DEADLINE_MS
from ebbtide.state.deletes import UNSEEN, Deletes, Stage, pending
from ebbtide.state.topic_state import ROUND
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS, HOUR_MS

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
