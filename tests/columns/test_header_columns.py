"""Batch headers as columns, against the batches that they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from ebbtide.columns.headers import BatchHeaders, segment_totals
from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from tests.log.builders import T0, data, emptied, ended, sent


def headers_of(log: Sequence[Batch]) -> BatchHeaders:
    """A partition's rows; an event time is the base offset, an append time twice that."""
    columns = {name: _column(log, name) for name in Batch._fields}
    columns["segment"] = pa.array([0 for _ in log])
    columns["max_event_time_ms"] = pa.array([batch.base_offset for batch in log])
    columns["append_time_ms"] = pa.array([2 * batch.base_offset for batch in log])
    return BatchHeaders(pa.table(columns))


def _column(log: Sequence[Batch], name: str) -> pa.Array:
    of_type = pa.string() if name == "control_type" else pa.int64()
    return pa.array([getattr(batch, name) for batch in log], of_type)


def test_segments_add_up_the_batches_in_each() -> None:
    log = [data(5, size_bytes=1), data(10, 12, size_bytes=2), data(13, size_bytes=4), data(30)]
    totals = segment_totals(headers_of(log), [(10, T0), (20, T0 + 1), (30, T0 + 2)])
    assert [(s.base_offset, s.modified_ms, s.size_bytes) for s in totals] == [
        (10, T0, 6),  # what lies before the first segment counts for none
        (20, T0 + 1, 0),
        (30, T0 + 2, 100),
    ]
    assert [s.max_event_time_ms for s in totals] == [13, -1, 30]
    assert [s.max_append_time_ms for s in totals] == [26, -1, 60]
    assert [s.first_batch_timestamp_ms for s in totals] == [T0, None, T0]


@pytest.mark.parametrize(
    ("offset", "bases"),
    [(9, []), (10, []), (11, [10]), (13, [10]), (14, []), (15, [14])],
)
def test_which_batch_an_offset_lies_inside(offset: int, bases: list[int]) -> None:
    headers = headers_of([data(10, 13), data(14, 15)])
    assert headers.where(headers.is_astride(offset)).column("base_offset").tolist() == bases


def test_the_newest_batch_of_each_producer() -> None:
    log = [sent(0), ended(1, COMMIT), sent(2, producer_id=2), sent(3), ended(4, ABORT), data(5)]
    newest = headers_of(log).newest_of_producers()
    assert newest.column("base_offset").tolist() == [2, 4]
    assert headers_of(log).newest_of_producers(np.array([3, 4])).batches() == log[1:3]


def test_a_marker_that_was_emptied_at_the_source_speaks_for_nobody() -> None:
    hollow = emptied(ended(2, COMMIT))._replace(control_type=None)
    newest = headers_of([sent(0), sent(1), hollow]).newest_of_producers()
    assert newest.column("base_offset").tolist() == [1]
