from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.log.batches import ABORT, COMMIT, Batch
from ebbtide.log.producers import LastRecord, last_records
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
    ("log", "found"),
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
def test_what_a_log_remembers_of_its_producers(log: list[Batch], found: dict[int, int]) -> None:
    assert known(log) == found


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
