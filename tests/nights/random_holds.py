"""Random holds on a topic of the fuzz, and whether anything that they cover was lost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import table_exists
from ebbtide.ledger.holds import Hold
from ebbtide.settings.names import TopicName
from tests.jobs.hold_records.builders import make_hold

HOLDS = 4


class Place(NamedTuple):
    """A hold's record."""

    hold_id: str
    partition: int
    offset: int


@dataclass(slots=True)
class RandomHolds:
    """Holds, and each record that they cover, by the plain rule, as it was ingested."""

    name: TopicName
    holds: Sequence[Hold]
    ingested: dict[Place, tuple[Any, ...]] = field(default_factory=dict)
    kept: int = 0

    @classmethod
    def make(
        cls, spark: SparkSession, name: TopicName, seed: int, partitions: Sequence[int]
    ) -> RandomHolds:
        """Make holds by offsets, keys and partitions before anything is ingested."""
        random = Random(seed)
        holds = []
        for number in range(HOLDS):
            first, length = random.randrange(40), random.randrange(1, 40)
            terms: dict[str, Any] = {}
            if random.random() < 0.5:
                terms["partition"] = random.choice(partitions or [0])
            if random.random() < 0.6:
                terms |= {"first_offset": first, "end_offset": first + length}
            if random.random() < 0.4:
                keys = (f"key-{random.randrange(8)}" for _ in range(3))
                hashes = {hashlib.sha256(key.encode()).hexdigest() for key in keys}
                terms["key_hashes"] = tuple(sorted(hashes))
            holds.append(make_hold(spark, name, f"random-{number}", **terms))
        return cls(name, holds)

    @property
    def covered(self) -> int:
        """How many records the holds cover, one of two holds twice."""
        return len(self.ingested)

    def note_ingested(self, spark: SparkSession) -> None:
        """Note what the log now holds and a hold covers; a record stays noted as it first was."""
        for row in _rows(spark, self.name.records_table):
            for hold in self.holds:
                if _covers(hold, row):
                    place = Place(hold.hold_id, row["partition"], row["offset"])
                    self.ingested.setdefault(place, _content(row))

    def lost(self, spark: SparkSession) -> list[str]:
        """Return what is neither in the log nor kept as it was, or kept for no hold.

        What is there twice shows too.
        """
        live = {
            (row["partition"], row["offset"]): _content(row)
            for row in _rows(spark, self.name.records_table)
        }
        kept: dict[Place, tuple[Any, ...]] = {}
        problems: list[str] = []
        for row in _kept_rows(spark, self.name):
            place = Place(row["hold_id"], row["partition"], row["offset"])
            if place in kept:
                problems.append(f"{place} is kept twice")
            kept[place] = _content(row)
        self.kept = len(kept)
        for place, content in self.ingested.items():
            now = kept.get(place) or live.get(place[1:])
            if now != content:
                problems.append(f"{place} is lost: {now}")
        for place in kept.keys() - self.ingested.keys():
            problems.append(f"{place} is kept for no hold")
        return problems


def _covers(hold: Hold, row: Mapping[str, Any]) -> bool:
    """The rule of a hold without event times, in plain words."""
    key = row["key"]
    is_key = key is not None and hashlib.sha256(key).hexdigest() in (hold.key_hashes or ())
    return (
        hold.partition in (None, row["partition"])
        and row["offset"] >= (hold.first_offset or 0)
        and (hold.end_offset is None or row["offset"] < hold.end_offset)
        and (hold.key_hashes is None or is_key)
    )


def _content(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["key"], row["value"], row["timestamp"], str(row["headers"])


def _kept_rows(spark: SparkSession, name: TopicName) -> Iterable[Mapping[str, Any]]:
    return _rows(spark, name.held_table) if table_exists(spark, name.held_table) else ()


def _rows(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = spark.table(table).toArrow().to_pylist()
    return rows
