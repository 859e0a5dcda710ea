"""Every single-bit flip of a segment, as Kafka's classes take it and as ours do (findings D9)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from ebbtide.errors import CorruptSegmentError
from ebbtide.records.compression import Codec
from ebbtide.records.segment_reader import MAX_BATCH_BYTES, walk_segment
from tests.kafka.conftest import kafka_jars as kafka_jars
from tests.kafka.oracle import JVM_OPTIONS, compiled_classes, java_tool
from tests.records.files.test_segment_reader import batch_of, segment, sets_of

BASE_OFFSET_BITS = 64
LEADER_EPOCH_SIGN = 96

SEGMENTS = {
    "magic 2": [batch_of(0, 1), batch_of(2, 3), batch_of(4, 5)],
    "magic 2, zstd": [batch_of(2 * i, 2 * i + 1, codec=Codec.ZSTD) for i in range(3)],
    **{
        f"magic {magic}, codec {codec}": sets_of(magic, codec)
        for magic in (0, 1)
        for codec in (Codec.NONE, Codec.GZIP)
    },
}


class Read(NamedTuple):
    """The bytes of the batches that were read; base offset, last offset, leader epoch of each."""

    size_bytes: int
    batches: tuple[tuple[int, int, int], ...]


def test_no_flipped_bit_is_taken_that_kafka_refuses(tmp_path: Path, kafka_jars: Path) -> None:
    files = [tmp_path / str(number) for number in range(len(SEGMENTS))]
    for file, batches in zip(files, SEGMENTS.values(), strict=True):
        file.write_bytes(b"".join(batches))
    lines = iter(kafka_reads(files, kafka_jars))
    taken = 0
    for what, batches in SEGMENTS.items():
        data = b"".join(batches)
        starts = [len(b"".join(batches[:i])) for i in range(len(batches))]
        for bit in range(len(data) * 8):
            theirs = parsed(next(lines))
            ours = our_read(tmp_path, data, bit)
            place = bit - 8 * max(start for start in starts if start <= bit // 8)
            if ours is not None:
                assert ours == theirs, (what, bit)
                taken += 1
            elif theirs.size_bytes == len(data):
                # Kafka's brokers give a batch its offset and epoch, and do not look at them again.
                assert place < BASE_OFFSET_BITS or place == LEADER_EPOCH_SIGN, (what, bit)
    assert not list(lines)
    assert taken > len(SEGMENTS) * 31  # bits of an epoch that stay positive, at least


def kafka_reads(files: list[Path], jars: Path) -> list[str]:
    """A line for each bit of each file."""
    classpath = os.pathsep.join([str(compiled_classes(jars)), f"{jars}/*"])
    command = [java_tool("java"), *JVM_OPTIONS, "-cp", classpath, "FlippedBits", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def parsed(line: str) -> Read:
    size_bytes, *numbers = map(int, line.split())
    of_batches = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return Read(size_bytes, tuple(of_batches))


def our_read(directory: Path, data: bytes, bit: int) -> Read | None:
    """What is read once the bit is flipped; None where the segment is refused or torn."""
    flipped = bytearray(data)
    flipped[bit // 8] ^= 0x80 >> bit % 8
    try:
        walk = walk_segment(segment(directory, bytes(flipped)), max_batch_bytes=MAX_BATCH_BYTES)
    except CorruptSegmentError:
        return None
    if walk.torn is not None:
        return None
    rows = walk.batches.select(["base_offset", "last_offset", "leader_epoch"]).to_pylist()
    return Read(walk.valid_bytes, tuple(tuple(row.values()) for row in rows))
