"""Columns of numbers and of times as numpy arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.numbers import MAX_LONG
from ebbtide.records.attributes import NO_TIMESTAMP

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# What an int64 of microseconds can hold.
MAX_TIMESTAMP_MS = MAX_LONG // 1000


def to_ms(column: pa.ChunkedArray) -> Int64s:
    """Convert times to ms since the epoch; -1 where there is none."""
    micros = column.cast(pa.int64())
    if not column.null_count:
        return np.asarray(micros.to_numpy() // 1000)
    ms = micros.fill_null(0).to_numpy() // 1000
    return np.where(column.is_null().to_numpy(), NO_TIMESTAMP, ms)


def to_timestamps(ms: Int64s) -> pa.Array:
    """Convert ms to a column of UTC timestamps in us; null where there is none or none fits."""
    is_null = (ms == NO_TIMESTAMP) | (ms > MAX_TIMESTAMP_MS) | (ms < -MAX_TIMESTAMP_MS)
    micros = np.where(is_null, 0, ms) * 1000
    return pa.array(micros, mask=is_null).cast(pa.timestamp("us", tz="UTC"))
