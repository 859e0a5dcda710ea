from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from ebbtide.kafka.transactions import LastRecord, carried, last_records, remembered
from tests.log.builders import T0, data, emptied, ended, sent

FOREVER_MS = 10**15


def known(log: list[Batch], now_ms: int = T0, expiration_ms: int = FOREVER_MS) -> dict[int, int]:
    """{producer id: last data offset}, -1 where only a marker is known."""
    records = last_records(log, now_ms=now_ms, expiration_ms=expiration_ms)
    return {
        producer: -1 if last.last_data_offset is None else last.last_data_offset
        for producer, last in records.items()
    }


@pytest.mark.parametrize(
    ("log", "remembered"),
    [
        pytest.param([data(0, 4)], {}, id="a batch without a producer is nobody's"),
        pytest.param([data(0, 4, producer_id=1)], {1: 4}, id="the last offset of the last batch"),
        pytest.param(
            [data(0, 4, producer_id=1), data(5, 6, producer_id=2), data(7, producer_id=1)],
            {1: 7, 2: 6},
            id="each producer's own",
        ),
        pytest.param(
            [sent(0), ended(1, COMMIT)], {1: 0}, id="a marker of the same epoch keeps the data"
        ),
        pytest.param(
            [sent(0), ended(1, COMMIT, producer_epoch=1)],
            {1: -1},
            id="a marker of a new epoch forgets the data",
        ),
        pytest.param(
            [sent(0), ended(1, ABORT, producer_epoch=1), sent(2, producer_epoch=1)],
            {1: 2},
            id="data of the new epoch is known again",
        ),
        pytest.param([ended(0, COMMIT)], {1: -1}, id="a marker alone is known by its epoch"),
        pytest.param([emptied(sent(0))], {1: 0}, id="an emptied batch is data still"),
        pytest.param([ended(0, "LEADER_CHANGE", -1)], {}, id="a leader change is nobody's"),
    ],
)
def test_what_a_log_remembers_of_its_producers(
    log: list[Batch], remembered: dict[int, int]
) -> None:
    assert known(log) == remembered


@pytest.mark.parametrize(
    ("age_ms", "log", "is_known"),
    [
        pytest.param(99, [data(0, producer_id=1)], True, id="younger than the expiration"),
        pytest.param(100, [data(0, producer_id=1)], False, id="expired at equality"),
        pytest.param(10**9, [sent(0)], True, id="never in an open transaction"),
        pytest.param(
            100, [sent(0), ended(1, COMMIT)], False, id="again once the transaction has ended"
        ),
        pytest.param(
            199,
            [sent(0), ended(1, COMMIT, max_timestamp_ms=T0 + 100)],
            True,
            id="the marker's time counts",
        ),
    ],
)
def test_when_a_producer_is_forgotten(age_ms: int, log: list[Batch], is_known: bool) -> None:
    assert (1 in known(log, now_ms=T0 + age_ms, expiration_ms=100)) == is_known


BY_DATA = LastRecord(0, 4, T0, False)
BY_MARKER = LastRecord(2, None, T0, False)


@pytest.mark.parametrize(
    ("last", "batch", "is_it"),
    [
        pytest.param(BY_DATA, data(0, 4), True, id="the batch that ends at the data offset"),
        pytest.param(BY_DATA, data(0, 5), False, id="not one that ends elsewhere"),
        pytest.param(BY_DATA, ended(5, COMMIT), False, id="not the marker after it"),
        pytest.param(BY_MARKER, ended(9, ABORT, producer_epoch=2), True, id="a marker, its epoch"),
        pytest.param(BY_MARKER, ended(9, ABORT, producer_epoch=1), False, id="no older marker"),
        pytest.param(BY_MARKER, sent(9, producer_epoch=2), False, id="no data without an offset"),
    ],
)
def test_which_batch_preserves_a_producer(last: LastRecord, batch: Batch, is_it: bool) -> None:
    assert last.is_in(batch) == is_it


@given(steps=st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 1)), max_size=20))
def test_the_last_data_is_the_newest_of_the_current_epoch(
    steps: list[tuple[int, bool, int]],
) -> None:
    epochs, expected, log = dict[int, int](), dict[int, int](), []
    for offset, (producer, is_marker, bump) in enumerate(steps):
        epochs[producer] = epochs.get(producer, 0) + bump
        if not is_marker:
            expected[producer] = offset
        elif bump or producer not in expected:
            expected[producer] = -1
        build = ended(offset, COMMIT, producer) if is_marker else sent(offset, producer)
        log.append(build._replace(producer_epoch=epochs[producer]))
    assert known(log) == expected


def last(log: list[Batch], expiration_ms: int = FOREVER_MS) -> dict[int, LastRecord]:
    return last_records(log, now_ms=T0 + 100, expiration_ms=expiration_ms)


def test_a_marker_that_the_source_emptied_is_unknown() -> None:
    log = [sent(0), ended(1, COMMIT), emptied(ended(2, ABORT, producer_epoch=5))]
    assert last([*log[:2], log[2]._replace(control_type=None)])[1].producer_epoch == 0
    assert last(log)[1].producer_epoch == 5


DONE = [sent(0), sent(1), ended(2, COMMIT, txn_first_offset=0)]


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        pytest.param(DONE, {1, 2}, id="the newest data and the marker that decides it"),
        pytest.param(
            [*DONE, ended(3, ABORT), ended(4, ABORT)], {1, 2, 4}, id="and the last append"
        ),
        pytest.param(
            [*DONE, ended(3, ABORT, producer_epoch=1)], {3}, id="not the data of an older epoch"
        ),
        pytest.param([sent(0), sent(1)], {0, 1}, id="where an open transaction begins"),
        pytest.param([data(0), data(1, producer_id=1)], {1}, id="nothing without a producer"),
    ],
)
def test_which_rows_outlive_their_segments(log: list[Batch], kept: set[int]) -> None:
    assert remembered(log, last(log)) == kept


def test_nothing_outlives_its_segment_for_an_expired_producer() -> None:
    assert remembered(DONE, last(DONE, expiration_ms=1)) == set()


def changed(log: list[Batch], removed: set[int], **options: int) -> list[tuple[int, int, bool]]:
    """(base offset, remembered time since T0, is it still of a transaction) of the rows changed."""
    first_segment = options.pop("first_segment_offset", 0)
    return [
        (after.base_offset, after.last_append_ms - T0, after.is_transactional)
        for _, after in carried(log, removed, last(log, **options), first_segment)
    ]


LATE = {"max_timestamp_ms": T0 + 50}


@pytest.mark.parametrize(
    ("log", "removed", "options", "taken_over"),
    [
        pytest.param(
            [*DONE, ended(3, ABORT, **LATE)],
            {3},
            {},
            [(2, 50, True)],
            id="the last marker's time moves to the row before it",
        ),
        pytest.param(
            [*DONE, ended(3, ABORT, **LATE)], {1}, {}, [], id="other rows have nothing to say"
        ),
        pytest.param(
            [data(0, producer_id=1, **LATE), data(1, producer_id=1)],
            {1},
            {"expiration_ms": 60},
            [(0, 0, False)],
            id="an expired producer does not come back by an older row",
        ),
        pytest.param(
            [data(0, producer_id=1), data(1, producer_id=1, **LATE)],
            {1},
            {"expiration_ms": 1},
            [],
            id="an older row that has expired too need not say so",
        ),
        pytest.param(
            DONE,
            {2},
            {"first_segment_offset": 2},
            [(0, 0, False), (1, 0, False)],
            id="data without segment and marker is decided",
        ),
    ],
)
def test_what_rows_take_over_from_those_removed(
    log: list[Batch],
    removed: set[int],
    options: dict[str, int],
    taken_over: list[tuple[int, int, bool]],
) -> None:
    assert changed(log, removed, **options) == taken_over
