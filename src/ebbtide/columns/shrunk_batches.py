"""Batches whose headers count more records than are left, rebuilt from the records left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ebbtide.columns.header_columns import BatchHeaders
from ebbtide.columns.rewritten_batches import Left
from ebbtide.columns.segment_records import Records, record_bytes
from ebbtide.log.batch_header import Batch
from ebbtide.log.compaction import (
    Retention,
    Round,
    Survivors,
    Verdict,
    rewrite,
)

# The next round judges whether an empty batch may go.
_KEEPS_EMPTY = Verdict(False, False, Retention.RETAIN_EMPTY)


def fewer_than_told(
    rows: pa.Table | None, headers: BatchHeaders, this_round: Round, future_limit_ms: int
) -> Iterator[tuple[Batch, Batch | None, int]]:
    """Yield (before, after, max event time in ms) of each batch that lost records.

    `rows` are all records of these data batches, in offset order; None where none is left.
    """
    counts = np.zeros(len(headers), np.int64)
    survivors: dict[int, tuple[Survivors, int]] = {}
    if rows is not None and rows.num_rows:
        records = Records.of(rows, future_limit_ms)
        held = headers.where(np.isin(headers.column("base_offset"), records.bases))
        counts[np.isin(headers.column("base_offset"), records.bases)] = records.counts
        survivors = _survivors(records, held)
    lost = (headers.column("record_count") > counts) & ~headers.is_control
    lost &= ~headers.is_astride(this_round.log_start_offset)
    for batch in headers.where(np.asarray(lost, np.bool_)).batches():
        left, newest_ms = survivors.get(batch.base_offset, (Survivors(0), -1))
        if left.records:  # what the records took that have gone can only be guessed
            share = batch.record_count / left.records
            left = left._replace(records_bytes_before=round(left.records_bytes * share))
        yield batch, rewrite(batch, _KEEPS_EMPTY, left, this_round), newest_ms


def _survivors(records: Records, headers: BatchHeaders) -> dict[int, tuple[Survivors, int]]:
    """Return what is left of each batch, and its newest event time in ms, by base offset."""
    left = Left.of(records, headers, np.ones(len(records.offsets), np.bool_))
    bases_ms = headers.column("base_timestamp_ms")
    sizes = records.sums(record_bytes(records, headers.written_bases, bases_ms))
    columns = (
        records.bases,
        left.survivors,
        left.first_timestamps_ms,
        left.max_timestamps_ms,
        sizes,
        left.first_offsets,
        left.last_offsets,
        left.max_event_times_ms,
    )
    return {
        base: (Survivors(count, False, first_ms, max_ms, size, 0, 0, first, last), event_ms)
        for base, count, first_ms, max_ms, size, first, last, event_ms in zip(
            *(column.tolist() for column in columns), strict=True
        )
    }
