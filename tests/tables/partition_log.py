"""A broker's log directory that grows, is cleaned, truncated and damaged, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch

T0 = 1_700_000_000_000
MODIFIED_MS = T0 + 1_000_000

Segments = Mapping[int, Sequence[bytes]]


def batch(first: int, count: int = 1, *, codec: int = 0, **fields: Any) -> bytes:
    """A batch of `count` records at consecutive offsets, with keys, values and times of theirs."""
    offsets = range(first, first + count)
    records = [Record(i, T0 + i, f"k{i % 3}".encode(), f"v{i}".encode()) for i in offsets]
    return write_batch(BatchFields(**fields), records, codec)


def partition_path(directory: Path, partition: int = 0, topic: str = "t") -> Path:
    return directory / f"{topic}-{partition}"


def segment_path(directory: Path, base: int, partition: int = 0, topic: str = "t") -> Path:
    return partition_path(directory, partition, topic) / f"{base:020}.log"


def write_segments(
    directory: Path, segments: Segments, *, partition: int = 0, topic: str = "t"
) -> Path:
    """Write these segment files, over what they held; a file's time follows from its offset."""
    partition_path(directory, partition, topic).mkdir(parents=True, exist_ok=True)
    for base, batches in segments.items():
        path = segment_path(directory, base, partition, topic)
        path.write_bytes(b"".join(batches))
        touch(path, MODIFIED_MS + base)
    return directory


def append(directory: Path, base: int, *batches: bytes) -> None:
    """Let a segment file of partition 0 grow; its time moves by a second."""
    path = segment_path(directory, base)
    modified_ms = path.stat().st_mtime_ns // 1_000_000
    path.write_bytes(path.read_bytes() + b"".join(batches))
    touch(path, modified_ms + 1_000)


def touch(path: Path, modified_ms: int) -> None:
    os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def damage(path: Path, position: int = -1) -> None:
    """Flip the bits of one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def checkpoint(directory: Path, name: str, offsets: Mapping[int, int], topic: str = "t") -> None:
    """Write one of the broker's checkpoint files, such as replication-offset-checkpoint."""
    lines = [f"{topic} {partition} {offset}" for partition, offset in offsets.items()]
    (directory / name).write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")


def identify(directory: Path, topic_id: str, *, partition: int = 0, topic: str = "t") -> None:
    """Give a partition the topic id that its broker writes there."""
    path = partition_path(directory, partition, topic) / "partition.metadata"
    path.write_text(f"version: 0\ntopic_id: {topic_id}\n")
