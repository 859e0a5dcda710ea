"""Columns of numbers and times as numpy arrays, and variable-length integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.numbers import MAX_LONG
from ebbtide.records.attributes import NO_TIMESTAMP

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# The largest time that an int64 of microseconds can hold.
MAX_TIMESTAMP_MS = MAX_LONG // 1000
# The header of a record with a greater or smaller one, as decimal milliseconds.
TIMESTAMP_HEADER = "ebbtide.timestamp"


def ms_in_header(key: bytes, value: bytes | None) -> int | None:
    """Return the time in a record's last header if ingest added the header, or else None."""
    if key != TIMESTAMP_HEADER.encode():
        return None
    try:
        ms = int(value or b"")
    except ValueError:
        return None
    is_producers = -MAX_TIMESTAMP_MS <= ms <= MAX_TIMESTAMP_MS  # a column holds such a time
    return None if is_producers else ms


def to_ms(column: pa.ChunkedArray) -> Int64s:
    """Convert times to ms since the epoch; -1 for null."""
    return to_us(column) // 1000


def to_us(column: pa.ChunkedArray) -> Int64s:
    """Convert times to us since the epoch; that of NO_TIMESTAMP for null."""
    micros = column.cast(pa.int64())
    filled = micros.fill_null(NO_TIMESTAMP * 1000) if column.null_count else micros
    return np.asarray(filled.to_numpy())


def to_timestamps(ms: Int64s) -> pa.Array:
    """Convert ms to a column of UTC timestamps in us; null for -1 and for times that do not fit."""
    is_null = (ms == NO_TIMESTAMP) | (ms > MAX_TIMESTAMP_MS) | (ms < -MAX_TIMESTAMP_MS)
    micros = np.where(is_null, 0, ms) * 1000
    return pa.array(micros, mask=is_null).cast(pa.timestamp("us", tz="UTC"))


# Kafka's variable-length integers: zig-zag, then seven bits per byte, lowest first.
#
# Source: `ByteUtils.readVarint`/`readVarlong` and the message format page of Kafka's
# documentation.


VARINT_BYTES = 5
VARLONG_BYTES = 10

Bytes = npt.NDArray[np.uint8]


class MalformedVarintError(ValueError):
    """A varint with more bytes than its type allows; `index` is the value's row in its column."""

    def __init__(self, index: int, width: int) -> None:
        super().__init__(index, width)
        self.index = index
        self.width = width


def encode_varint(value: int) -> bytes:
    """Return a 64-bit value as varint or varlong, which have the same bytes."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def decode_varint(data: Sequence[int], position: int, width: int) -> tuple[int, int]:
    """Return the value at `position` and the position after it. Raise IndexError past the end."""
    value = 0
    for count in range(width):
        byte = data[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + count + 1
    raise MalformedVarintError(0, width)


def decode_varints(data: Bytes, at: Int64s, width: int) -> tuple[Int64s, Int64s]:
    """Return the values at the positions `at`, and the positions after them.

    `data` must have `width` more bytes after the largest position.
    """
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte & 0x80)
    for count in range(1, width):
        if not more.size:
            break
        byte = data[after[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
        after[more] += 1
        more = more[byte >= 0x80]
    if more.size:
        raise MalformedVarintError(int(more[0]), width)
    sign = -(value & np.uint64(1)).astype(np.int64)
    return (value >> np.uint64(1)).astype(np.int64) ^ sign, after


def varint_size(value: int) -> int:
    """Return the number of bytes of a 64-bit value as varint or varlong."""
    zigzag = (value << 1) ^ (value >> 63)
    return max(1, (zigzag.bit_length() + 6) // 7)


def bytes_size(value: bytes | None) -> int:
    """Return the size of a nullable byte string with its length as varint (-1 for null)."""
    return varint_size(-1) if value is None else varint_size(len(value)) + len(value)


def payload_size(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[bytes, bytes | None]] = ()
) -> int:
    """Return the size of a record's key, value and headers in v2: the column `size_bytes`."""
    of_headers = sum(bytes_size(name) + bytes_size(content) for name, content in headers)
    return bytes_size(key) + bytes_size(value) + varint_size(len(headers)) + of_headers


def record_size(timestamp_delta_ms: int, offset_delta: int, size_bytes: int) -> int:
    """Return the size of a whole v2 record whose key, value and headers take `size_bytes`."""
    body = 1 + varint_size(timestamp_delta_ms) + varint_size(offset_delta) + size_bytes
    return varint_size(body) + body
