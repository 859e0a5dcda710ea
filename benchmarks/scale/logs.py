"""Log directories of many small segments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ebbtide.records.v2_writer import BatchFields, Record, write_batch

DAY_MS = 86_400_000
FIRST_MS = 1_795_000_000_000
KEYS = 7
VALUE = b"x" * 50


class Shape(NamedTuple):
    """How many of what a log directory holds; a segment is one batch."""

    topics: int = 1
    partitions: int = 1
    segments: int = 1
    records: int = 10  # of a segment


def topic_name(number: int) -> str:
    """The name of a topic by its number."""
    return f"t{number}"


def write_logs(directory: Path, shape: Shape, first_segment: int = 0) -> None:
    """Write segments from `first_segment` on; they are an hour of event time apart."""
    segments = range(first_segment, first_segment + shape.segments)
    batches = [_segment(number, shape.records) for number in segments]
    for topic in range(shape.topics):
        for partition in range(shape.partitions):
            log = directory / f"{topic_name(topic)}-{partition}"
            log.mkdir(parents=True, exist_ok=True)
            for number, batch in zip(segments, batches, strict=True):
                path = log / f"{number * shape.records:020}.log"
                path.write_bytes(batch)
                os.utime(path, (_at_ms(number) / 1000, _at_ms(number) / 1000))


def _segment(number: int, records: int) -> bytes:
    offsets = range(number * records, (number + 1) * records)
    rows = [Record(at, _at_ms(number), b"k%d" % (at % KEYS), VALUE) for at in offsets]
    return write_batch(BatchFields(), rows)


def _at_ms(segment: int) -> int:
    return FIRST_MS + segment * DAY_MS // 24
