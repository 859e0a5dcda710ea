"""A log that other writers delete from too, folded in plain Python beside the table."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import SparkSession

from tests.tables.adopted import Record, append, delete_places
from tests.tables.upserts import upsert

KEYS = "abcdefg"
NIGHT_MS = 10_000
DELETE_RETENTION_MS = 5_000
RETENTION_MS = 12_000


class Segment(NamedTuple):
    base_offset: int
    modified_ms: int
    newest_ms: int | None = None  # of its rows that lived at the last look


@dataclass
class Fold:
    """The rows of one partition that live, and what its state has to say of them."""

    rows: list[Record] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=lambda: [Segment(0, 0)])
    end_offset: int = 0
    first_dirty_offset: int = 0
    horizons: list[tuple[int, int]] = field(default_factory=list)  # end offset, ms

    @property
    def offsets(self) -> list[int]:
        return sorted(row.offset for row in self.rows)

    def look(self, now_ms: int) -> None:
        """Close the active segment where it holds a row; rows count that live now."""
        new = {row.offset for row in self.rows if row.offset >= self.end_offset}
        self.end_offset = max([self.end_offset, *(row.offset + 1 for row in self.rows)])
        self.segments = [
            Segment(
                segment.base_offset,
                now_ms if any(row.offset in new for row in rows) else segment.modified_ms,
                max((row.timestamp_ms for row in rows), default=None),
            )
            for segment, rows in self._rows_of_segments()
        ]
        if self.segments[-1].newest_ms is not None:
            self.segments.append(Segment(self.end_offset, now_ms))

    def _rows_of_segments(self) -> Iterator[tuple[Segment, list[Record]]]:
        ends = [segment.base_offset for segment in self.segments[1:]] + [2**63]
        for segment, end in zip(self.segments, ends, strict=True):
            yield segment, [row for row in self.rows if segment.base_offset <= row.offset < end]

    def clean(self, now_ms: int) -> None:
        """Kafka's rules for what lives: keyless rows, superseded ones and due tombstones leave."""
        end = self.segments[-1].base_offset
        newest = {row.key: row.offset for row in sorted(self.rows) if row.offset < end}
        is_dirty = any(self.first_dirty_offset <= row.offset < end for row in self.rows)
        due = [row for row in self.rows if row.value is None and self._is_due(row.offset, now_ms)]
        if not is_dirty and not due:
            return
        kept = [
            row
            for row in self.rows
            if row.offset >= end
            or (row.key is not None and row.offset == newest[row.key] and row not in due)
        ]
        self.rows = kept
        if is_dirty:
            self.first_dirty_offset = end
        if not self.horizons or end > self.horizons[-1][0]:
            self.horizons.append((end, now_ms + DELETE_RETENTION_MS))

    def _is_due(self, offset: int, now_ms: int) -> bool:
        horizon = next((ms for end, ms in self.horizons if offset < end), None)
        return horizon is not None and horizon <= now_ms

    def expire(self, now_ms: int) -> None:
        """Remove the oldest segments while their newest row is too old."""
        while len(self.segments) > 1:
            oldest = self.segments[0]
            newest_ms = oldest.modified_ms if oldest.newest_ms is None else oldest.newest_ms
            if now_ms - newest_ms <= RETENTION_MS:
                break
            del self.segments[0]
        start = self.segments[0].base_offset
        self.rows = [row for row in self.rows if row.offset >= start]


class Writers:
    """Appends, upserts and deletes at random, on the table and in the fold."""

    def __init__(self, spark: SparkSession, name: str, seed: int) -> None:
        self.spark, self.name = spark, name
        self.rng = random.Random(f"dead rows {seed}")
        self.fold = Fold()
        self.next_offset = 0

    def night(self, now_ms: int) -> None:
        """What happens until `now_ms`: rows come by both ways, and some are deleted by both."""
        self.append(self.records(6, now_ms, tombstones=0.3))
        self.upsert(self.records(3, now_ms, tombstones=0.3))
        last = self.fold.offsets[-1]
        self.delete({last, self.rng.choice(self.fold.offsets)})
        self.append(self.records(3, now_ms, tombstones=0.3))

    def records(self, count: int, now_ms: int, tombstones: float) -> list[Record]:
        made = []
        for _ in range(count):
            value = None if self.rng.random() < tombstones else "v"
            at_ms = now_ms - self.rng.randrange(1, NIGHT_MS)
            made.append(Record(self.next_offset, self.rng.choice(KEYS), value, 0, at_ms))
            self.next_offset += self.rng.choice((1, 1, 2))
        return made

    def append(self, records: list[Record]) -> None:
        append(self.spark, self.name, records)
        self.fold.rows += records

    def upsert(self, records: list[Record]) -> None:
        upsert(self.spark, self.name, records)
        newest = {record.key: record for record in records}
        self.fold.rows = [row for row in self.fold.rows if row.key not in newest]
        self.fold.rows += [row for row in newest.values() if row.value is not None]

    def delete(self, offsets: Iterable[int]) -> None:
        gone = set(offsets)
        delete_places(self.spark, self.name, gone)
        self.fold.rows = [row for row in self.fold.rows if row.offset not in gone]
