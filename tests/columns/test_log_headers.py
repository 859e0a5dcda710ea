"""What is told of a log segment by segment, against all of its headers at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.header_columns import (
    BatchHeaders,
    batches_of_affected_producers,
    segment_totals,
    stable_offset,
)
from ebbtide.columns.log_headers import LogHeaders, LogOutline
from ebbtide.log.batch_header import ABORT, COMMIT, Batch
from ebbtide.log.logical_segments import SegmentStart
from tests.columns.test_header_columns import headers_of
from tests.log.builders import T0, data, emptied, ended, sent, with_horizon

KINDS = st.sampled_from(["plain", "idempotent", "sent", "commit", "abort", "empty", "horizon"])
LOGS = st.lists(st.tuples(KINDS, st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=25)
# Where logical and physical segments begin, the log starts and a bound lies.
CUTS = st.sets(st.integers(0, 60), max_size=6)


def batches_of(kinds: Sequence[tuple[str, int, int]]) -> list[Batch]:
    """Batches one after another, of a kind, a producer and so many records."""
    log: list[Batch] = []
    for kind, producer, length in kinds:
        offset = log[-1].next_offset if log else 0
        last = offset + length - 1
        if kind == "plain":
            log.append(data(offset, last, max_timestamp_ms=T0 + offset))
        elif kind == "idempotent":
            log.append(data(offset, last, producer_id=producer, producer_epoch=0))
        elif kind == "sent":
            log.append(sent(offset, producer))
        elif kind in ("commit", "abort"):
            log.append(ended(offset, COMMIT if kind == "commit" else ABORT, producer))
        elif kind == "empty":
            log.append(emptied(data(offset, last, producer_id=producer, producer_epoch=0)))
        else:
            log.append(with_horizon(data(offset, last), T0 + offset))
    return log


def in_parts(headers: BatchHeaders, cuts: set[int], outline: LogOutline) -> LogHeaders:
    """The log looked at in physical segments that begin at `cuts`."""
    bases = headers.column("base_offset")
    starts = sorted({0, *np.searchsorted(bases, sorted(cuts)).tolist(), len(bases)})
    rows = np.arange(len(bases))
    parts = [LogHeaders.of(headers.at(rows[start:end]), outline) for start, end in pairwise(starts)]
    return LogHeaders.of_all(parts, outline)


@given(LOGS, CUTS, CUTS, st.integers(0, 60), st.data())
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
    outline = LogOutline(start, segments, T0 + draw.draw(st.integers(-1, 60), "now"))
    told = in_parts(headers, physical, outline)

    assert told.segments == segment_totals(headers, segments)
    assert told.stable_offset(start, end) == stable_offset(headers, start, end)
    assert told.max_event_time_ms == max(batch.base_offset for batch in log)
    assert (
        told.notable.last_batches_of_producers.batches()
        == headers.last_batches_of_producers.batches()
    )

    notable = told.notable.batches()
    bases = [batch.base_offset for batch in notable]
    assert bases == sorted(set(bases))
    for batch in log:
        is_asked_for = (
            batch.is_transactional
            or batch.record_count == 0
            or batch.base_offset < first
            or batch.base_offset < start <= batch.last_offset
            or (batch.delete_horizon_ms is not None and batch.delete_horizon_ms <= outline.now_ms)
            or any(batch.next_offset == base for base, _ in segments)
        )
        assert batch in notable or not is_asked_for

    # The driver removes markers and empty batches; tasks remove data, and tell the newest data left
    # in their segments. In others all data stay, since the table holds no record of them.
    cuts = [0, *sorted(physical)]
    number = [bisect_right(cuts, batch.base_offset) for batch in log]
    with_tasks = draw.draw(st.sets(st.sampled_from(number)), "segments with tasks")
    may_go = [
        batch.base_offset
        for batch, of in zip(log, number, strict=True)
        if batch.is_control or not batch.record_count or of in with_tasks
    ]
    every = st.sets(st.sampled_from(may_go)) if may_go else st.just(set[int]())
    removed = np.array(sorted(draw.draw(every, "removed")), np.int64)
    parts = [headers.where(np.array(number) == of) for of in with_tasks]
    known = told.notable.with_more(part.where(part.newest_data(removed)) for part in parts)
    assert (
        batches_of_affected_producers(known, removed, first).batches()
        == batches_of_affected_producers(headers, removed, first).batches()
    )


def test_what_is_ordinary_is_not_kept() -> None:
    log = [data(offset) for offset in range(100)]
    told = LogHeaders.of(
        headers_of(log), LogOutline(0, [SegmentStart(0, T0), SegmentStart(50, T0)], T0)
    )
    assert told.notable.column("base_offset").tolist() == [0, 49, 99]
    assert [segment.record_count for segment in told.segments] == [50, 50]


def test_data_whose_records_have_gone_may_have_to_speak_for_their_producer() -> None:
    """No task sees them: the table holds none of their records, below the log start offset say."""
    idempotent = {"producer_id": 1, "producer_epoch": 0}
    log = [data(0, **idempotent), emptied(data(1, **idempotent)), data(2)]
    told = LogHeaders.of(headers_of(log), LogOutline(1, [SegmentStart(0, T0)], T0))
    removed = np.array([1])
    assert batches_of_affected_producers(told.notable, removed, 0).batches() == log[:2]
