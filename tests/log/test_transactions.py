from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from ebbtide.kafka.transactions import (
    AbortedTransaction,
    OpenTransactions,
    TransactionReader,
    aborted_transactions,
    visible_stable_offset,
)
from tests.log.builders import data, emptied, ended, sent

Log = list[Batch]


def aborted_offsets(log: Log) -> list[int]:
    """Base offsets of the data batches that a reader calls aborted."""
    reader = TransactionReader(aborted_transactions(log))
    aborted = []
    for batch in log:
        if batch.is_control:
            reader.read_marker(batch)
        elif reader.read_data(batch):
            aborted.append(batch.base_offset)
    return aborted


def removable_markers(log: Log) -> list[int]:
    """Base offsets of the control batches whose transaction has no batch in the log."""
    reader = TransactionReader(aborted_transactions(log))
    markers = []
    for batch in log:
        if not batch.is_control:
            reader.read_data(batch)
        elif reader.read_marker(batch):
            markers.append(batch.base_offset)
    return markers


@pytest.mark.parametrize(
    ("log", "aborted"),
    [
        pytest.param(
            [sent(0), data(1), sent(2), ended(3, ABORT, txn_first_offset=0)],
            [0, 2],
            id="all batches of an aborted transaction, and none between that is not of one",
        ),
        pytest.param(
            [data(0, producer_id=1), sent(1), ended(2, ABORT, txn_first_offset=1)],
            [1],
            id="what a producer wrote before its transaction is not",
        ),
        pytest.param(
            [emptied(ended(1, ABORT, txn_first_offset=0)), sent(2), ended(3, COMMIT)],
            [],
            id="an emptied abort marker says nothing of what follows",
        ),
    ],
)
def test_which_data_is_aborted(log: Log, aborted: list[int]) -> None:
    assert aborted_offsets(log) == aborted


@pytest.mark.parametrize(
    ("log", "removable"),
    [
        pytest.param([ended(1, COMMIT, txn_first_offset=0)], [1], id="commit of absent data"),
        pytest.param([ended(1, ABORT, txn_first_offset=0)], [1], id="abort of absent data"),
        pytest.param(
            [emptied(sent(0)), ended(1, COMMIT, txn_first_offset=0)],
            [],
            id="an emptied batch of a committed transaction counts as data",
        ),
        pytest.param(
            [emptied(sent(0)), ended(1, ABORT, txn_first_offset=0)],
            [],
            id="an emptied batch of an aborted transaction counts as data",
        ),
        pytest.param([emptied(ended(1, COMMIT))], [1], id="an emptied marker"),
        pytest.param(
            [emptied(ended(1, COMMIT))._replace(control_type=None)],
            [1],
            id="one that Kafka has emptied, so that its type is not known",
        ),
        pytest.param(
            [sent(0), emptied(ended(1, COMMIT)), ended(2, COMMIT)],
            [1],
            id="an emptied marker ends no transaction",
        ),
        pytest.param([ended(1, "LEADER_CHANGE", -1)], [], id="another control batch never"),
        pytest.param([ended(1, "7", -1)], [], id="an unknown control batch never"),
    ],
)
def test_which_markers_have_outlived_their_data(log: Log, removable: list[int]) -> None:
    assert removable_markers(log) == removable


def test_the_transaction_index_holds_aborted_transactions_with_data_by_first_offset() -> None:
    log = [
        *(sent(0, 1), sent(1, 2), sent(2, 3)),
        ended(3, ABORT, 2, txn_first_offset=1),
        ended(4, COMMIT, 3, txn_first_offset=2),
        ended(5, ABORT, 1, txn_first_offset=0),
        ended(6, ABORT, 4),
    ]
    assert aborted_transactions(log) == [AbortedTransaction(1, 0, 5), AbortedTransaction(2, 1, 3)]


@pytest.mark.parametrize(
    ("log_start_offset", "aborted"),
    [
        pytest.param(1, [AbortedTransaction(1, 0, 1)], id="a marker at the log start counts"),
        pytest.param(2, [], id="one below it does not"),
    ],
)
def test_a_marker_below_the_log_start_offset_aborts_nothing(
    log_start_offset: int, aborted: list[AbortedTransaction]
) -> None:
    log = [sent(0), ended(1, ABORT, txn_first_offset=0)]
    assert aborted_transactions(log, log_start_offset) == aborted


def test_open_transactions_bound_the_last_stable_offset() -> None:
    transactions = OpenTransactions()
    stable = []
    for batch in [sent(0, 1), sent(1, 2), sent(2, 1), ended(3, COMMIT, 1), ended(4, ABORT, 2)]:
        transactions.append(batch)
        stable.append(transactions.last_stable_offset(5))
    assert stable == [0, 0, 0, 1, 5]


def test_a_marker_is_told_where_its_data_begins() -> None:
    transactions = OpenTransactions({1: 40})
    firsts = [
        transactions.append(batch)
        for batch in [sent(50), ended(51, ABORT), ended(52, COMMIT), data(53, producer_id=1)]
    ]
    assert firsts == [None, 40, None, None]
    assert transactions.first_offsets == {}


# Steps of a log: (producer, what it does); an offset each.
STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["send", COMMIT, ABORT])), max_size=20
)


def log_of(steps: list[tuple[int, str]]) -> Log:
    transactions = OpenTransactions()
    log = []
    for offset, (producer, step) in enumerate(steps):
        batch = sent(offset, producer) if step == "send" else ended(offset, step, producer)
        log.append(batch._replace(txn_first_offset=transactions.append(batch)))
    return log


@given(steps=STEPS)
def test_data_is_aborted_exactly_where_its_producers_next_marker_aborts(
    steps: list[tuple[int, str]],
) -> None:
    def next_marker(offset: int, producer: int) -> str | None:
        later = (s for p, s in steps[offset:] if p == producer and s != "send")
        return next(later, None)

    expected = [
        offset
        for offset, (producer, step) in enumerate(steps)
        if step == "send" and next_marker(offset, producer) == ABORT
    ]
    assert aborted_offsets(log_of(steps)) == expected


@given(steps=STEPS)
def test_a_marker_is_removable_exactly_where_its_producer_sent_nothing_since_its_last(
    steps: list[tuple[int, str]],
) -> None:
    last_step: dict[int, str] = {}
    expected = []
    for offset, (producer, step) in enumerate(steps):
        if step != "send" and last_step.get(producer) != "send":
            expected.append(offset)
        last_step[producer] = step
    assert removable_markers(log_of(steps)) == expected


@pytest.mark.parametrize(
    ("undecided", "first_batch_offset", "last_stable_offset"),
    [
        pytest.param(7, 5, 7, id="above the log start offset it counts"),
        pytest.param(5, 5, 5, id="at the log start offset it counts"),
        pytest.param(3, 4, 4, id="below, the batch around the log start offset does"),
        pytest.param(3, 8, 8, id="or the one behind a gap"),
        pytest.param(3, None, 20, id="or, where there is none, the log's end"),
    ],
)
def test_the_last_stable_offset_follows_the_log_start_offset(
    undecided: int, first_batch_offset: int | None, last_stable_offset: int
) -> None:
    assert last_stable_offset == visible_stable_offset(
        undecided, log_start_offset=5, log_end_offset=20, first_batch_offset=first_batch_offset
    )
