"""Totals of each batch's records: how many there are, and their largest times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

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
    is_future = (append_ms != _NONE) & (event_ms > append_ms + future_limit_ms)
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
    keys = ["partition", "base_offset"]
    summed = ["records", "untimed", "event_times_missing"]
    largest = ["event_ms", "append_ms"]
    totals = rows.group_by(keys).aggregate(
        [*((name, "sum") for name in summed), *((name, "max") for name in largest)]
    )
    return totals.rename_columns([*keys, *summed, *largest]).cast(TOTALS)


def _ms(times: pa.ChunkedArray) -> Int64s:
    """Return milliseconds since the epoch; _NONE where there is no time."""
    micros = times.cast(pa.int64())
    ms = micros.fill_null(0).to_numpy() // 1000
    return np.where(micros.is_null().to_numpy(), _NONE, ms)


def _largest(ms: Int64s, starts: Int64s) -> pa.Array:
    largest_ms = np.maximum.reduceat(ms, starts)
    return pa.array(largest_ms, mask=largest_ms == _NONE)
