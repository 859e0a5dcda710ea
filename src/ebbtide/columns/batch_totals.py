"""Totals of each batch's records: how many there are, and their largest times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ebbtide.columns.slices import is_ascending, slices_by_value, sorted_by
from ebbtide.records.arrays import Int64s

# What is read of a record.
TIMES = ("offset", "batch", "timestamp", "event_time", "append_time")
TOTALS = pa.schema(
    [
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("records", pa.int64()),
        ("untimed", pa.int64()),
        ("event_times_missing", pa.int64()),
        ("event_ms", pa.int64()),
        ("append_ms", pa.int64()),
    ]
)
KEYS = ("partition", "base_offset")
_NONE = np.iinfo(np.int64).min


def batch_totals(partition: int, rows: pa.Table, future_limit_ms: int) -> pa.Table:
    """Return a row of TOTALS for each batch of the rows, which have TIMES and are in offset order.

    An event time too far in the future counts as the append time; null where there is none.
    """
    if not rows.num_rows:
        return TOTALS.empty_table()
    batches = rows["batch"].to_numpy()
    starts = np.flatnonzero(np.append(True, batches[1:] != batches[:-1]))
    append_ms, event_ms = _ms(rows["append_time"]), _ms(rows["event_time"])
    has_both = (append_ms != _NONE) & (event_ms != _NONE)
    is_future = has_both & (event_ms - append_ms > future_limit_ms)
    is_untimed = rows["timestamp"].is_null().to_numpy().astype(np.int64)
    count = len(starts)
    return pa.table(
        [
            np.full(count, partition, np.int32),
            batches[starts],
            np.diff(starts, append=len(batches)),
            np.add.reduceat(is_untimed, starts),
            np.zeros(count, np.int64),
            _largest(np.where(is_future, append_ms, event_ms), starts),
            _largest(append_ms, starts),
        ],
        schema=TOTALS,
    )


def together_by_batch(parts: Sequence[pa.Table]) -> pa.Table:
    """Join the parts into one table; a batch with records in several parts becomes one row."""
    rows = pa.concat_tables([TOTALS.empty_table(), *parts])
    keys = list(KEYS)
    if is_ascending(rows, keys):
        return rows
    summed = ["records", "untimed", "event_times_missing"]
    largest = ["event_ms", "append_ms"]
    totals = rows.group_by(keys).aggregate(
        [*((name, "sum") for name in summed), *((name, "max") for name in largest)]
    )
    return totals.rename_columns([*keys, *summed, *largest]).cast(TOTALS)


def with_totals(batches: pa.Table, totals: pa.Table) -> pa.Table:
    """Return batches, by partition and offset, with their totals; null for one without records."""
    batches = sorted_by(batches, KEYS)
    of_partitions = dict(slices_by_value(sorted_by(totals, KEYS), KEYS[0]))
    parts = [
        _beside(rows, of_partitions.get(partition, totals.slice(0, 0)))
        for partition, rows in slices_by_value(batches, KEYS[0])
    ]
    return pa.concat_tables(parts)


def _beside(batches: pa.Table, totals: pa.Table) -> pa.Table:
    """Put each total beside its batch; both are of one partition and ascend."""
    bases, wanted = totals["base_offset"].to_numpy(), batches["base_offset"].to_numpy()
    at = np.searchsorted(bases, wanted)
    is_missing = np.append(bases, -1)[at] != wanted
    rows = totals.drop_columns(list(KEYS)).take(pa.array(at, mask=is_missing))
    return pa.table([*batches.columns, *rows.columns], [*batches.column_names, *rows.column_names])


def _ms(times: pa.ChunkedArray) -> Int64s:
    """Return milliseconds since the epoch; _NONE where there is no time."""
    micros = times.cast(pa.int64())
    ms = micros.fill_null(0).to_numpy() // 1000
    return np.where(micros.is_null().to_numpy(), _NONE, ms)


def _largest(ms: Int64s, starts: Int64s) -> pa.Array:
    largest_ms = np.maximum.reduceat(ms, starts)
    return pa.array(largest_ms, mask=largest_ms == _NONE)
