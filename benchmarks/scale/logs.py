"""Log directories of many small segments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.clean_log.data.cells import TOMBSTONES, Cell
from benchmarks.clean_log.data.log_files import SEED, Part, append_part, dirty_keys
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch

DAY_MS = 86_400_000
FIRST_MS = 1_795_000_000_000
KEYS = 7
VALUE = b"x" * 50
DIRTY_PERCENT = 5
_PARTITION = "t0-0"


class Shape(NamedTuple):
    """How many of what a log directory holds; a segment is one batch."""

    topics: int = 1
    partitions: int = 1
    segments: int = 1
    records: int = 10  # of a segment
    apart_ms: int = DAY_MS // 24  # segments, in event time

    def write(self, directory: Path) -> None:
        """Write the logs."""
        write_logs(directory, self)

    def write_more(self, directory: Path) -> None:
        """Write one segment more of each partition, behind all others."""
        write_logs(directory, self._replace(segments=1), first_segment=self.segments)


class OneRecordBatches(NamedTuple):
    """One partition of so many batches of one record, 5 % of them written anew at the end."""

    batches: int

    def write(self, directory: Path) -> None:
        """Write the log, in segments of 128 MiB and an empty active one."""
        cell = Cell("", self.batches, DIRTY_PERCENT, False, 1)
        rng = np.random.default_rng(SEED)
        append_part(directory, Part(0, np.arange(cell.clean_records), 0, 1), rng, _PARTITION)
        dirty = Part(cell.clean_records, dirty_keys(cell, rng), TOMBSTONES, 1)
        append_part(directory, dirty, rng, _PARTITION)

    def write_more(self, directory: Path) -> None:
        """Write a hundredth more."""
        rng = np.random.default_rng(SEED + 1)
        keys = rng.integers(0, self.batches, self.batches // 100)
        append_part(directory, Part(self.batches, keys, TOMBSTONES, 1), rng, _PARTITION)


def topic_name(number: int) -> str:
    """The name of a topic by its number."""
    return f"t{number}"


def write_logs(directory: Path, shape: Shape, first_segment: int = 0) -> None:
    """Write segments from `first_segment` on."""
    segments = range(first_segment, first_segment + shape.segments)
    batches = [_segment(number, shape) for number in segments]
    for topic in range(shape.topics):
        for partition in range(shape.partitions):
            log = directory / f"{topic_name(topic)}-{partition}"
            log.mkdir(parents=True, exist_ok=True)
            for number, batch in zip(segments, batches, strict=True):
                path = log / f"{number * shape.records:020}.log"
                path.write_bytes(batch)
                seconds = _at_ms(number, shape) / 1000
                os.utime(path, (seconds, seconds))


def _segment(number: int, shape: Shape) -> bytes:
    offsets = range(number * shape.records, (number + 1) * shape.records)
    rows = [Record(at, _at_ms(number, shape), b"k%d" % (at % KEYS), VALUE) for at in offsets]
    return write_batch(BatchFields(), rows)


def _at_ms(segment: int, shape: Shape) -> int:
    return FIRST_MS + segment * shape.apart_ms
