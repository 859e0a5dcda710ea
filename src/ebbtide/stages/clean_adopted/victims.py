"""Find the rows of an adopted table that a cleaner round removes, and where each lies.

Dirty rows are read for their keys; of all others only keys between the least and the greatest dirty
one, rows without a key, and rows that tell a tombstone. Kafka: Cleaner.shouldRetainRecord.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.read_files import DirtyRows, KeyRange, ReadFiles, count_read_files
from ebbtide.iceberg.adopted.rows import AdoptedRows, small_frame
from ebbtide.iceberg.planned.planned_round import CleaningRound
from ebbtide.log.adopted.horizons import OffsetRange, due_ranges
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.stages.clean_adopted.by_keys import KEYLESS, SUPERSEDED, FoundRows, find_by_keys

TOMBSTONES = "tombstones_removed"
# A row that two rules remove counts for the first of them.
RULES = (KEYLESS, SUPERSEDED, TOMBSTONES)
MOST_KEYS_TO_BROADCAST = 1_000_000
# Types whose order Iceberg's bounds know.
_ORDERED = frozenset({"binary", "string", "int", "bigint"})


@dataclass(slots=True)
class Victims:
    """Rows that leave: their places by file, offsets by partition, and counts by rule."""

    positions: dict[str, BitMap64] = field(default_factory=dict)
    offsets: dict[int, BitMap64] = field(default_factory=dict)
    by_rule: dict[int, Counter[str]] = field(default_factory=dict)
    by_segment: dict[int, Counter[int]] = field(default_factory=dict)
    files: ReadFiles = field(default_factory=ReadFiles)

    @property
    def rows(self) -> int:
        """How many rows leave."""
        return sum(counts.total() for counts in self.by_rule.values())


def find_victims(
    rows: AdoptedRows, this_round: CleaningRound, states: Mapping[int, PartitionState]
) -> Victims:
    """Return what the round removes from the snapshot that it pins."""
    records = rows.at(this_round.records_snapshot).drop("timestamp_ms", "topic")
    bounds = _bounds(rows, this_round)
    last_end = max(part.first_uncleanable_offset for part in this_round.partitions.values())
    in_round = records.where(F.col("offset") < last_end)
    in_round = in_round.join(bounds, "partition").where(
        (F.col("offset") >= F.col("log_start")) & (F.col("offset") < F.col("end"))
    )
    found: list[DataFrame] = []
    ends = {p: part.first_uncleanable_offset for p, part in this_round.partitions.items()}
    due = _due(ends, states, this_round.now_ms)
    if (is_due := _is_any_of(due)) is not None:
        found.append(_of_rule(in_round.where(F.col("is_tombstone") & is_due), TOMBSTONES))
    offsets = [of for _, of in due]
    snapshot = this_round.records_snapshot
    firsts = [part.dirty[0] for part in this_round.partitions.values() if not part.is_idle]
    if (by_keys := find_by_keys(rows, this_round)) is not None:
        victims = _gathered([*by_keys.found, *_at_once(found)], states)
        of_dirty = DirtyRows(min(firsts), by_keys.keys) if firsts else None
        victims.files = count_read_files(rows, snapshot, of_dirty, offsets)
        return victims
    found.append(_of_rule(in_round.where(F.col("key").isNull()), KEYLESS))
    if not firsts:
        victims = _gathered(_at_once(found), states)
        victims.files = count_read_files(rows, snapshot, None, offsets)
        return victims
    dirty = _dirty_keys(in_round, min(firsts))
    dirty.persist()
    try:
        keys = _key_range(dirty)
        found.append(_of_rule(_superseded(in_round, dirty, keys), SUPERSEDED))
        victims = _gathered(_at_once(found), states)
        of_dirty = DirtyRows(min(firsts), keys)
        victims.files = count_read_files(rows, snapshot, of_dirty, offsets)
        return victims
    finally:
        dirty.unpersist()


def with_due_tombstones(
    rows: AdoptedRows,
    snapshot: int,
    ends: Mapping[int, int],
    states: Mapping[int, PartitionState],
    now_ms: int,
) -> set[int]:
    """Return the partitions that hold a tombstone below their end whose horizon is reached."""
    is_due = _is_any_of(_due(ends, states, now_ms))
    if is_due is None:
        return set()
    found = rows.at(snapshot).where(F.col("is_tombstone") & is_due).select("partition").distinct()
    return {row["partition"] for row in found.collect()}


def _bounds(rows: AdoptedRows, this_round: CleaningRound) -> DataFrame:
    """Return where the round begins, where dirty records do, and where it ends, by partition."""
    bounds = [
        (partition, part.log_start_offset, part.dirty[0], part.first_uncleanable_offset)
        for partition, part in this_round.partitions.items()
    ]
    frame = small_frame(rows.spark, bounds, ("partition", "log_start", "first_dirty", "end"))
    return F.broadcast(frame.withColumn("partition", F.col("partition").cast("int")))


def _due(
    ends: Mapping[int, int], states: Mapping[int, PartitionState], now_ms: int
) -> list[tuple[int, OffsetRange]]:
    """Return the offsets of each partition whose horizon is reached."""
    return [
        (partition, offsets)
        for partition, end in ends.items()
        for offsets in due_ranges(states[partition].horizons, end, now_ms)
    ]


def _is_any_of(due: Sequence[tuple[int, OffsetRange]]) -> Column | None:
    """Return the condition of offsets in these ranges; None where there are none."""
    conditions = [
        (F.col("partition") == partition)
        & (F.col("offset") >= of.first)
        & (F.col("offset") < of.end)
        for partition, of in due
    ]
    return reduce(lambda one, other: one | other, conditions) if conditions else None


def _dirty_keys(in_round: DataFrame, first_dirty_offset: int) -> DataFrame:
    """Return the last offset of each dirty key; no partition has a dirty row before that offset."""
    is_dirty = (F.col("offset") >= first_dirty_offset) & (F.col("offset") >= F.col("first_dirty"))
    with_key = in_round.where(is_dirty & F.col("key").isNotNull())
    return with_key.groupBy("partition", "key").agg(F.max("offset").alias("latest"))


def _key_range(dirty: DataFrame) -> KeyRange | None:
    """Return the least and greatest dirty key; None where there is none or they have no order."""
    if dict(dirty.dtypes)["key"] not in _ORDERED:
        return None
    (found,) = dirty.agg(F.min("key").alias("least"), F.max("key").alias("greatest")).collect()
    if found["least"] is None:
        return None
    ends = (bytes(of) if isinstance(of, bytearray) else of for of in found)
    return KeyRange(*ends)


def _superseded(in_round: DataFrame, dirty: DataFrame, keys: KeyRange | None) -> DataFrame:
    """Return the records that a later dirty one of the same key supersedes."""
    rows = in_round
    if keys is not None:
        is_within = (F.col("key") >= F.lit(keys.least)) & (F.col("key") <= F.lit(keys.greatest))
        rows = rows.where(is_within)
    dirty = dirty.select(
        F.col("partition").alias("of_partition"), F.col("key").alias("dirty_key"), "latest"
    )
    is_same = (F.col("partition") == F.col("of_partition")) & (F.col("key") == F.col("dirty_key"))
    # Spark would sort all rows and their files' paths to find a few.
    dirty = F.broadcast(dirty) if dirty.count() <= MOST_KEYS_TO_BROADCAST else dirty
    return rows.join(dirty, is_same).where(F.col("offset") < F.col("latest"))


def _of_rule(rows: DataFrame, rule: str) -> DataFrame:
    return rows.select("partition", "file", "position", "offset", F.lit(rule).alias("rule"))


def _at_once(found: list[DataFrame]) -> list[FoundRows]:
    """Return all rows found, by file, partition and rule."""
    if not found:
        return []
    together = reduce(DataFrame.unionAll, found)
    places = (
        F.collect_list("position").alias("positions"),
        F.collect_list("offset").alias("offsets"),
    )
    return list(_groups(together.groupBy("file", "partition", "rule").agg(*places).toArrow()))


def _groups(found: pa.Table) -> Iterator[FoundRows]:
    names = ("file", "partition", "rule", "positions", "offsets")
    for *place, positions, offsets in zip(*(found[name] for name in names), strict=True):
        file, partition, rule = (of.as_py() for of in place)
        numbers = (of.values.to_numpy().astype(np.uint64) for of in (positions, offsets))
        yield FoundRows(file, partition, rule, *numbers)


def _gathered(found: Iterable[FoundRows], states: Mapping[int, PartitionState]) -> Victims:
    victims = Victims()
    for of in sorted(found, key=lambda group: RULES.index(group.rule)):
        seen = victims.positions.setdefault(of.file, BitMap64())
        positions = BitMap64(of.positions)
        is_new = np.isin(of.positions, np.array((positions - seen).to_array(), np.uint64))
        offsets = of.offsets[is_new]
        seen |= positions
        victims.positions[of.file] = seen
        leaving = victims.offsets.setdefault(of.partition, BitMap64())
        leaving |= BitMap64(offsets)
        victims.offsets[of.partition] = leaving
        victims.by_rule.setdefault(of.partition, Counter())[of.rule] += len(offsets)
        of_segments = victims.by_segment.setdefault(of.partition, Counter())
        bases = [segment.base_offset for segment in states[of.partition].segments]
        places = np.searchsorted(bases, offsets.astype(np.int64), side="right") - 1
        numbers, counts = np.unique(np.maximum(places, 0), return_counts=True)
        of_segments.update({bases[n]: int(count) for n, count in zip(numbers, counts, strict=True)})
    return victims
