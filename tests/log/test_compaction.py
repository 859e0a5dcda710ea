"""Fixtures of this folder's tests."""

import pytest

from ebbtide.kafka.batch_header import ABORT, COMMIT, HEADER_BYTES, Batch
from ebbtide.kafka.compaction import (
    Retention,
    Survivors,
    Verdict,
    drops_tombstones,
    idle_reason,
    is_past_horizon,
    is_retained,
    judge,
    needs_horizon,
    rewrite,
)
from ebbtide.kafka.transactions import LastRecord
from ebbtide.records.attributes import CONTROL
from tests.log.builders import T0, data, emptied, ended, sent, with_horizon
from tests.log.rounds import KEPT, KEPT_EMPTY, NOW_MS, ROUND, SOME, THREE

OUTLIVED = Verdict(False, True, Retention.DELETE_EMPTY)


def verdicts(log: list[Batch], last: dict[int, LastRecord] | None = None) -> dict[int, Verdict]:
    return {batch.base_offset: v for batch, v in judge(log, ROUND, last or {})}


# -- what a round says of a batch


@pytest.mark.parametrize(
    ("batch", "verdict"),
    [
        pytest.param(data(0), KEPT, id="data goes if none of its records stays"),
        pytest.param(data(8, 9), KEPT_EMPTY, id="the round's last batch stays empty"),
        pytest.param(data(8), KEPT, id="the last but for a gap does not"),
        pytest.param(ended(0, COMMIT), OUTLIVED, id="a marker of nothing waits for a horizon"),
        pytest.param(
            with_horizon(ended(0, COMMIT), NOW_MS + 1),
            OUTLIVED,
            id="it stays a millisecond before its horizon",
        ),
        pytest.param(
            with_horizon(ended(0, COMMIT), NOW_MS),
            Verdict(True, True, Retention.DELETE),
            id="it goes at its horizon",
        ),
        pytest.param(
            with_horizon(ended(9, COMMIT), NOW_MS),
            Verdict(True, True, Retention.RETAIN_EMPTY),
            id="the round's last batch is emptied at its horizon",
        ),
        pytest.param(
            with_horizon(ended(0, "LEADER_CHANGE", -1), NOW_MS),
            KEPT,
            id="another control batch stays for ever",
        ),
    ],
)
def test_the_verdict_of_a_lone_batch(batch: Batch, verdict: Verdict) -> None:
    assert verdicts([batch]) == {batch.base_offset: verdict}


def test_nothing_is_said_of_batches_from_the_first_uncleanable_offset_on() -> None:
    assert list(verdicts([data(8), data(9), data(10), data(11)])) == [8, 9]


def test_a_marker_above_the_bound_decides_data_below_it() -> None:
    log = [sent(3), sent(11), ended(12, ABORT, txn_first_offset=3)]
    assert verdicts(log) == {3: Verdict(True, False, Retention.DELETE)}


def test_the_last_record_of_a_producer_stays_as_an_empty_batch() -> None:
    log = [sent(2), sent(3), ended(4, ABORT, txn_first_offset=2)]
    last = {1: LastRecord(0, 3, T0, False)}
    assert {offset: v.retention for offset, v in verdicts(log, last).items()} == {
        2: Retention.DELETE,
        3: Retention.RETAIN_EMPTY,
        4: Retention.DELETE_EMPTY,
    }


def test_another_producers_last_offset_keeps_nothing() -> None:
    last = {2: LastRecord(0, 3, T0, False)}
    assert verdicts([data(3, producer_id=1)], last)[3].retention is Retention.DELETE_EMPTY


def test_a_batch_without_producer_is_no_producers_last_record() -> None:
    last = {-1: LastRecord(-1, 3, T0, False)}
    assert verdicts([data(3)], last)[3].retention is Retention.DELETE_EMPTY


def test_committed_data_after_an_emptied_abort_marker_stays() -> None:
    abort = emptied(ended(1, ABORT, txn_first_offset=0))
    log = [abort, sent(2), ended(3, COMMIT, txn_first_offset=2)]
    assert not verdicts(log)[2].discards_records


def test_an_abort_below_the_log_start_offset_discards_nothing() -> None:
    log = [sent(0), ended(1, ABORT, txn_first_offset=0), sent(2), ended(3, COMMIT)]
    judged = dict(judge(log[:2], ROUND._replace(log_start_offset=2), {}))
    assert [v.discards_records for v in judged.values()] == [False, False]


# -- what a round says of a record


@pytest.mark.parametrize(
    ("has_key", "is_latest", "is_tombstone", "is_past", "stays"),
    [
        pytest.param(True, True, False, False, True, id="the newest value of a key stays"),
        pytest.param(True, True, False, True, True, id="also past its batch's horizon"),
        pytest.param(True, False, False, False, False, id="a superseded value goes"),
        pytest.param(False, True, False, False, False, id="a record without key goes"),
        pytest.param(True, True, True, False, True, id="a tombstone stays before the horizon"),
        pytest.param(True, True, True, True, False, id="a tombstone goes past it"),
        pytest.param(True, False, True, False, False, id="a superseded tombstone goes at once"),
    ],
)
def test_which_records_stay(
    has_key: bool, is_latest: bool, is_tombstone: bool, is_past: bool, stays: bool
) -> None:
    assert stays == is_retained(
        has_key=has_key,
        is_latest=is_latest,
        is_tombstone=is_tombstone,
        is_past_batch_horizon=is_past,
    )


@pytest.mark.parametrize(
    ("horizon_ms", "is_past"),
    [
        pytest.param(None, False, id="no horizon is never past"),
        pytest.param(NOW_MS + 1, False, id="a millisecond before"),
        pytest.param(NOW_MS, True, id="at the horizon"),
        pytest.param(NOW_MS - 1, True, id="after"),
    ],
)
def test_when_a_horizon_is_past(horizon_ms: int | None, is_past: bool) -> None:
    batch = data(0) if horizon_ms is None else with_horizon(data(0), horizon_ms)
    assert is_past_horizon(batch, NOW_MS) == is_past


# -- the header after a round


@pytest.mark.parametrize(
    ("batch", "verdict", "survivors", "needs"),
    [
        pytest.param(data(0), KEPT, Survivors(1), False, id="values need none"),
        pytest.param(data(0), KEPT, Survivors(1, True), True, id="a tombstone that stays does"),
        pytest.param(
            with_horizon(data(0), 5), KEPT, Survivors(1, True), False, id="it is set only once"
        ),
        pytest.param(data(0), KEPT_EMPTY, Survivors(0), False, id="an empty batch needs none"),
        pytest.param(
            ended(0, COMMIT), OUTLIVED, Survivors(1), True, id="a marker of absent data does"
        ),
        pytest.param(ended(0, COMMIT), KEPT, Survivors(1), False, id="one with data does not"),
    ],
)
def test_when_a_horizon_is_set(
    batch: Batch, verdict: Verdict, survivors: Survivors, needs: bool
) -> None:
    assert needs_horizon(batch, verdict, survivors) == needs


# -- below the log start offset


def test_a_hidden_batch_stays_and_a_round_takes_its_bytes() -> None:
    this_round = ROUND._replace(log_start_offset=3)
    aborted = Verdict(True, False, Retention.DELETE)
    assert rewrite(THREE, aborted, Survivors(0), this_round) == THREE._replace(size_bytes=0)
    idle = this_round._replace(is_idle=True)
    assert rewrite(THREE, aborted, Survivors(0), idle) is THREE
    marker = THREE._replace(attributes=CONTROL)
    assert rewrite(marker, aborted, Survivors(0), this_round) is marker


ASTRIDE = ROUND._replace(log_start_offset=1)


def test_the_hidden_records_of_a_batch_astride_count_as_kept() -> None:
    left = Survivors(1, False, T0 + 5, T0 + 5, 30, 60, hidden=1)
    assert rewrite(THREE, KEPT, left, ASTRIDE) == THREE._replace(
        record_count=2, size_bytes=HEADER_BYTES + 60
    )


def test_a_batch_astride_stays_for_its_hidden_records() -> None:
    after = rewrite(THREE, KEPT_EMPTY, Survivors(0, records_bytes_before=60, hidden=1), ASTRIDE)
    assert after is not None
    assert (after.record_count, after.size_bytes) == (1, HEADER_BYTES + 30)


def test_aborted_data_astride_goes_with_what_is_hidden() -> None:
    aborted = Verdict(True, False, Retention.DELETE)
    assert rewrite(THREE, aborted, Survivors(0, hidden=1), ASTRIDE) is None


# -- what is remembered of a producer


def test_the_time_of_an_append_outlives_the_records_that_carried_it() -> None:
    batch = THREE._replace(producer_id=1, max_timestamp_ms=T0 + 9)
    once = rewrite(batch, KEPT, SOME, ROUND)
    assert once is not None
    assert (once.max_timestamp_ms, once.last_append_ms) == (T0 + 7, T0 + 9)
    twice = rewrite(once, KEPT, SOME._replace(records=1, max_timestamp_ms=T0 + 5), ROUND)
    assert twice is not None
    assert (twice.max_timestamp_ms, twice.last_append_ms) == (T0 + 5, T0 + 9)


# -- idle rounds


@pytest.mark.parametrize(
    ("batch", "is_due"),
    [
        pytest.param(ended(0, COMMIT), True, id="a marker has outlived its data"),
        pytest.param(
            with_horizon(ended(0, COMMIT), NOW_MS + 1), False, id="a marker waits for its horizon"
        ),
        pytest.param(with_horizon(ended(0, COMMIT), NOW_MS), True, id="a marker is at its horizon"),
        pytest.param(emptied(ended(0, COMMIT)), False, id="an emptied marker waits for nothing"),
        pytest.param(with_horizon(data(4), NOW_MS), True, id="a tombstone is at its horizon"),
        pytest.param(with_horizon(data(5), NOW_MS), False, id="the tombstone has gone already"),
        pytest.param(data(4), False, id="a tombstone without horizon waits for a dirty round"),
    ],
)
def test_when_an_idle_round_is_due(batch: Batch, is_due: bool) -> None:
    reason = idle_reason(judge([batch], ROUND, {}), ROUND, {4})
    assert (reason is not None) is is_due


def test_what_is_hidden_is_no_reason_for_an_idle_round() -> None:
    this_round = ROUND._replace(log_start_offset=1)
    assert idle_reason(judge([ended(0, COMMIT)], this_round, {}), this_round, ()) is None


# -- what a replica has not reached


@pytest.mark.parametrize(
    ("replica_end_offset", "may_go"),
    [
        pytest.param(4, False, id="the replica ends before the batch"),
        pytest.param(6, False, id="the replica ends inside the batch"),
        pytest.param(7, True, id="the replica holds the batch"),
    ],
)
def test_tombstones_and_markers_wait_for_a_replica(replica_end_offset: int, may_go: bool) -> None:
    this_round = ROUND._replace(held_back_from=replica_end_offset, first_uncleanable_offset=10)
    batch = with_horizon(data(4, 6), NOW_MS)
    assert drops_tombstones(batch, this_round) is may_go
    marker = with_horizon(ended(4, COMMIT), NOW_MS)._replace(last_offset=6)
    for judged, with_tombstone in ((batch, {4}), (marker, set[int]())):
        ((_, verdict),) = verdicts = list(judge([judged], this_round, {}))
        assert verdict.discards_records is (may_go and judged is marker)
        reason = idle_reason(verdicts, this_round, with_tombstone)
        assert (reason is not None) is may_go


def test_a_marker_gets_its_horizon_also_where_a_replica_has_not_reached_it() -> None:
    this_round = ROUND._replace(held_back_from=0)
    ((marker, verdict),) = verdicts = list(judge([ended(0, COMMIT)], this_round, {}))
    assert idle_reason(verdicts, this_round, ()) == "a transaction marker has no data left"
    assert needs_horizon(marker, verdict, Survivors(1))
