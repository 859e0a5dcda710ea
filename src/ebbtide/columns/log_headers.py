"""A partition's batch headers, reduced to those that rules must judge one by one.

Each physical segment's headers are reduced on their own, so that no process holds a whole log's
headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.columns.header_columns import (
    COLUMNS,
    BatchHeaders,
    segment_totals,
    stable_offset,
    together,
)
from ebbtide.log.logical_segments import Segment, SegmentStart
from ebbtide.records.arrays import Bools
from ebbtide.records.attributes import DELETE_HORIZON, NO_TIMESTAMP

_NONE = pa.table({name: pa.array([], pa.int64()) for name in COLUMNS})


class LogOutline(NamedTuple):
    """A log's start and segments, known before its headers are read.

    `segments` are the logical ones. Horizons are checked against `now_ms`, if at all.
    """

    log_start_offset: int
    segments: Sequence[SegmentStart]
    now_ms: int = NO_TIMESTAMP


class LogHeaders(NamedTuple):
    """Logical segments with what their batches add up to, and the notable batches in offset order.

    Notable are: control and transactional batches, empty ones, those before the first segment or
    astride the log start offset, the first one that is not below it, the last one of each segment,
    those with a horizon that is reached, and what each producer's last record can be told from.
    """

    segments: Sequence[Segment]
    notable: BatchHeaders

    @classmethod
    def of(cls, headers: BatchHeaders, outline: LogOutline) -> LogHeaders:
        """Return one physical segment's headers, and only the logical segments that it lies in."""
        bases = headers.column("base_offset")
        touched = _touched(outline.segments, int(bases[0]), int(bases[-1]))
        is_notable = _is_notable(headers, outline, touched)
        return cls(segment_totals(headers, touched), headers.where(is_notable))

    @classmethod
    def of_all(cls, parts: Iterable[LogHeaders], outline: LogOutline) -> LogHeaders:
        """Return a log's physical segments, in offset order, as one."""
        sums: dict[int, Segment] = {}
        tables = []
        for part in parts:
            tables.append(part.notable)
            for segment in part.segments:
                before = sums.get(segment.base_offset)
                sums[segment.base_offset] = segment if before is None else before.with_more(segment)
        return cls(
            [sums.get(base, Segment(base, modified_ms)) for base, modified_ms in outline.segments],
            together(tables) if tables else BatchHeaders(_NONE),
        )

    def stable_offset(self, log_start_offset: int, log_end_offset: int) -> int:
        """Return the last stable offset: what lies below it is decided."""
        return stable_offset(self.notable, log_start_offset, log_end_offset)

    @property
    def max_event_time_ms(self) -> int:
        """The largest event time of all batches, those before the first segment too; else -1."""
        of_notable = int(self.notable.column("max_event_time_ms").max(initial=-1))
        return max([of_notable, *(segment.max_event_time_ms for segment in self.segments)])


def _touched(segments: Sequence[SegmentStart], first: int, last: int) -> Sequence[SegmentStart]:
    """Return the logical segments that hold the offsets from `first` to `last`."""
    start = max(bisect_right(segments, first, key=attrgetter("base_offset")) - 1, 0)
    return segments[start : bisect_right(segments, last, key=attrgetter("base_offset"))]


def _is_notable(
    headers: BatchHeaders, outline: LogOutline, touched: Sequence[SegmentStart]
) -> Bools:
    bases, lasts = headers.column("base_offset"), headers.column("last_offset")
    is_notable = headers.is_in_transaction | (headers.column("record_count") == 0)
    is_notable |= headers.is_astride(outline.log_start_offset)
    is_notable |= headers.may_be_last_records | headers.newest_data()
    is_notable |= bases < outline.segments[0].base_offset
    is_due = headers.column("base_timestamp_ms") <= outline.now_ms
    is_notable |= headers.has_bit(DELETE_HORIZON) & is_due
    ends = np.searchsorted(bases, [base for base, _ in touched]) - 1
    is_notable[[*ends[ends >= 0], len(bases) - 1]] = True
    is_notable[np.flatnonzero(lasts >= outline.log_start_offset)[:1]] = True
    return np.asarray(is_notable, np.bool_)
