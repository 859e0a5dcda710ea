"""What is told of a log segment by segment, against all of its headers at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pickle import dumps

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.headers import BatchHeaders, open_transactions, segment_totals
from ebbtide.columns.transaction_rows import LogHeaders, LogOutline, Role
from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from ebbtide.kafka.compaction import Round, idle_reason, judge
from ebbtide.kafka.transactions import (
    OpenTransactions,
    last_records,
    remembered,
    visible_stable_offset,
)
from ebbtide.numbers import MAX_OFFSET
from ebbtide.state.logical_segments import SegmentStart
from tests.columns.test_header_columns import headers_of
from tests.log.builders import T0, data, emptied, ended, sent, with_horizon

KINDS = st.sampled_from(
    [
        *("plain", "idempotent", "sent", "sent", "sent", "commit", "abort", "empty", "horizon"),
        *("waiting marker", "emptied marker", "hollow marker", "marker of another kind", "gone"),
    ]
)
LOGS = st.lists(st.tuples(KINDS, st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=40)
# Logs of one or two producers that do little else than to begin and end transactions.
ENDS = ("commit", "abort", "waiting marker", "marker of another kind")
TRANSACTIONS = st.lists(
    st.tuples(st.sampled_from(["sent", "sent", "gone", *ENDS]), st.integers(1, 2), st.just(1)),
    min_size=8,
    max_size=25,
)
# Where logical and physical segments begin, the log starts and a bound lies.
CUTS = st.sets(st.integers(0, 25) | st.integers(0, 80), max_size=6)


def batches_of(kinds: Sequence[tuple[str, int, int]]) -> list[Batch]:
    """Batches one after another, of a kind, a producer and so many records.

    "gone" are data of a transaction that a round has removed. An epoch is that of the length.
    """
    log, offset, transactions = list[Batch](), 0, OpenTransactions()
    for kind, producer, length in kinds:
        batch = _batch_of(kind, producer, offset, length)
        first = transactions.append(batch)
        if batch.is_control and batch.control_type is not None:
            batch = batch._replace(txn_first_offset=first)
        if kind == "emptied marker":
            batch = emptied(batch)
        if kind != "gone":
            log.append(batch)
        offset = batch.next_offset
    return log or [data(offset)]


def _batch_of(kind: str, producer: int, offset: int, length: int) -> Batch:
    last, epoch = offset + length - 1, {"producer_id": producer, "producer_epoch": length % 2}
    if kind == "plain":
        return data(offset, last, max_timestamp_ms=T0 + offset)
    if kind == "idempotent":
        return data(offset, last, **epoch)
    if kind in ("sent", "gone"):
        return sent(offset, producer)
    if kind == "empty":
        return emptied(data(offset, last, **epoch))
    if kind == "horizon":
        return with_horizon(data(offset, last), T0 + offset)
    if kind == "marker of another kind":
        return ended(offset, "LEADER_CHANGE", **epoch)
    if kind == "hollow marker":
        return emptied(ended(offset, COMMIT, **epoch))._replace(control_type=None)
    is_commit = kind == "commit" or (kind != "abort" and length > 2)
    marker = ended(offset, COMMIT if is_commit else ABORT, **epoch)
    return with_horizon(marker, T0 + 60 - offset) if kind == "waiting marker" else marker


def in_parts(headers: BatchHeaders, cuts: set[int], outline: LogOutline) -> LogHeaders:
    """The log looked at in physical segments that begin at `cuts`, three of them put together."""
    bases = headers.column("base_offset")
    starts = sorted({0, *np.searchsorted(bases, sorted(cuts)).tolist(), len(bases)})
    rows = np.arange(len(bases))
    parts = [LogHeaders.of(headers.at(rows[start:end]), outline) for start, end in pairwise(starts)]
    some = [LogHeaders.of_some(parts[at : at + 3]) for at in range(0, len(parts), 3)]
    return LogHeaders.of_all(some, outline)


@given(LOGS | TRANSACTIONS, CUTS, CUTS, st.just(0) | st.integers(0, 80), st.data())
def test_segments_one_by_one_tell_what_all_headers_do(
    kinds: list[tuple[str, int, int]],
    logical: set[int],
    physical: set[int],
    start: int,
    draw: st.DataObject,
) -> None:
    log = batches_of(kinds)
    headers, end = headers_of(log), log[-1].next_offset
    start = min(start, end)
    first = draw.draw(st.integers(0, start), "first segment")
    segments = [
        SegmentStart(base, T0 + base)
        for base in sorted({first, *(b for b in logical if b > first)})
    ]
    now_ms = T0 + draw.draw(st.integers(-1, 60), "now")
    held_back = draw.draw(st.sampled_from([MAX_OFFSET, 10, 30]), "held back from")
    outline = LogOutline(start, segments, now_ms, held_back)
    told = in_parts(headers, physical, outline)

    assert told.segments == segment_totals(headers, segments, start)
    open_now = OpenTransactions()
    for batch in log:
        open_now.append(batch)
    assert open_transactions(told.transactions).first_offsets == open_now.first_offsets
    assert told.stable_offset(start, end) == visible_stable_offset(
        open_now.last_stable_offset(end),
        log_start_offset=start,
        log_end_offset=end,
        first_batch_offset=next((b.base_offset for b in log if b.last_offset >= start), None),
    )
    assert told.max_event_time_ms == max(batch.base_offset for batch in log)

    times = {"now_ms": now_ms, "expiration_ms": 1}
    producers = told.producers.last_batches_of_producers.batches()
    assert last_records(producers, **times) == last_records(log, **times)
    known = last_records(log, now_ms=0, expiration_ms=1)
    candidates = headers.last_batches_of_producers.batches()
    assert remembered(producers, known) == remembered(candidates, known)

    bound = draw.draw(st.sampled_from([base for base, _ in segments] + [end]), "bound")
    this_round = Round(now_ms, 0, bound, start, held_back_from=held_back)
    of_all, of_told = (
        {
            idle_reason([judged], this_round, ())
            for judged in judge([b for b in batches if b.base_offset >= first], this_round, {})
        }
        for batches in (log, told.transactions.batches())
    )
    assert of_told - {None} == of_all - {None}
    due = {
        batch.base_offset
        for batch in log
        if first <= batch.base_offset < bound and start < batch.next_offset <= held_back
        if not batch.is_control
        and batch.delete_horizon_ms is not None
        and batch.delete_horizon_ms <= now_ms
    }
    bases = told.in_role(Role.DUE).column("base_offset")
    assert set(bases[(bases >= first) & (bases < bound)]) <= due
    assert bool(due) == bool(np.any((bases >= first) & (bases < bound)))

    waiting = {
        batch.base_offset
        for batch in log
        if first <= batch.base_offset < bound and batch.last_offset >= max(start, held_back)
        if batch.record_count
        and batch.delete_horizon_ms is not None
        and batch.delete_horizon_ms <= now_ms
    }
    bases = told.in_role(Role.HELD_BACK).column("base_offset")
    assert set(bases[(bases >= first) & (bases < bound)]) <= waiting
    assert bool(waiting) == bool(np.any((bases >= first) & (bases < bound)))


def test_what_is_ordinary_is_not_kept() -> None:
    log = [data(offset, producer_id=1, producer_epoch=0) for offset in range(10_000)]
    told = LogHeaders.of(
        headers_of(log), LogOutline(0, [SegmentStart(0, T0), SegmentStart(5_000, T0)], T0)
    )
    assert [segment.record_count for segment in told.segments] == [5_000, 5_000]
    assert told.producers.column("base_offset").tolist() == [9_999]
    assert len(dumps(told)) < 50_000  # not the rows, and no slice that takes them along
