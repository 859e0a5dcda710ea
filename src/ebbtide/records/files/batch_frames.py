"""Find where a batch ends, before its contents are checked.

Source: Kafka's `FileLogInputStream`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ebbtide.records.batch import HEADER, LOG_OVERHEAD_BYTES, corrupt
from ebbtide.stores.file_reader import FileReader

# Base offset, length, leader epoch (v2) or CRC (0 and 1), magic: what all formats begin with.
PREFIX = struct.Struct(">qiib")
# The least that each magic's length field can say.
MIN_LENGTHS = {0: 14, 1: 22, 2: HEADER.size - LOG_OVERHEAD_BYTES}


class TornBatch(NamedTuple):
    """An incomplete batch at a file's end, as a crashed broker leaves one."""

    position: int
    expected_bytes: int
    found_bytes: int  # 0 where the file goes on with zeros only, as a preallocated one does


class Frame(NamedTuple):
    """The bytes of one whole batch, not yet checked."""

    position: int
    magic: int
    data: memoryview


def read_frame(
    reader: FileReader, path: str, position: int, max_batch_bytes: int
) -> Frame | TornBatch:
    """Return the batch at a position; CorruptSegmentError where none can begin there."""
    prefix = reader.read(position, PREFIX.size)
    if len(prefix) < PREFIX.size:
        return TornBatch(position, PREFIX.size, len(prefix))
    _, length, _, magic = PREFIX.unpack(prefix)
    if not any(prefix) and _is_zero_to_the_end(reader, position):
        return TornBatch(position, PREFIX.size, 0)
    if magic not in MIN_LENGTHS:
        raise corrupt(path, position, "a record batch of magic 0, 1 or 2", f"magic {magic}")
    least_bytes = LOG_OVERHEAD_BYTES + MIN_LENGTHS[magic]
    size_bytes = LOG_OVERHEAD_BYTES + length
    if not least_bytes <= size_bytes <= max_batch_bytes:
        expected = f"a batch of {least_bytes} to {max_batch_bytes} bytes (the largest allowed)"
        raise corrupt(path, position, expected, f"{size_bytes} bytes")
    data = reader.read(position, size_bytes)
    if len(data) < size_bytes:
        return TornBatch(position, size_bytes, len(data))
    return Frame(position, magic, data)


def _is_zero_to_the_end(reader: FileReader, position: int) -> bool:
    step = 1024 * 1024
    return not any(
        bytes(reader.read(start, step)).strip(b"\0")
        for start in range(position, reader.size_bytes, step)
    )
