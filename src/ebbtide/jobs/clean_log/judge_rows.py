"""Judge the rounds of an adopted topic by its rows: find the rows to remove and their positions.

A round reads the keys of dirty rows. Of the remaining rows, it reads only those with a key between
the least and the greatest dirty key, those without a key, and tombstones. Kafka:
Cleaner.shouldRetainRecord.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.keys import OffsetMap, last_of_each
from ebbtide.iceberg.adopted.key_files import (
    FileScan,
    KeyColumns,
    KeyFile,
    KeyRange,
    KeyRows,
    ReadFiles,
    Wanted,
    count_read_files,
    find_key_files,
    read_keys,
)
from ebbtide.iceberg.adopted.rows import AdoptedRows, small_frame
from ebbtide.iceberg.in_flight import CleaningRound, PartitionRound
from ebbtide.iceberg.topics import Topic, current_snapshot, find_snapshot
from ebbtide.jobs.clean_log.choice import CleanableLog, Pins, RoundBounds
from ebbtide.jobs.clean_log.cleaner import KEY_COPIES, MAP_BYTES, MAP_BYTES_SETTING, RECORD_BYTES
from ebbtide.jobs.clean_log.segment_round import RoundEffect
from ebbtide.jobs.removed_rows import PlannedRows
from ebbtide.jobs.table_layout import ObservedLog, arrivals_of
from ebbtide.kafka.adopted_segments import bytes_of, merged_into, segments_of
from ebbtide.kafka.reasons import Reason
from ebbtide.layouts.layout import Column
from ebbtide.spark.expressions import balanced
from ebbtide.spark.tasks import Shared, map_segments, shared
from ebbtide.state.covered_offsets import (
    HorizonRange,
    OffsetRange,
    after_round,
    due_ranges,
    next_horizon_ms,
    with_late,
)
from ebbtide.state.logical_segments import merged
from ebbtide.state.topic_state import NEVER, ROUND, PartitionState
from ebbtide.stores.store import Store
from ebbtide.text import number

# Find superseded and keyless rows of an adopted table by the key columns of its files.
#
# As on an own topic, dirty keys are mapped to their last offset. The map is compared with all keys
# in its range. Of a row, only partition, offset and key are read.


SUPERSEDED, KEYLESS = "superseded", "keyless"

log = logging.getLogger(__name__)


class FoundRows(NamedTuple):
    """Rows of one file and partition that one rule removes."""

    file: str
    partition: int
    rule: str
    positions: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]


class ByKeys(NamedTuple):
    """The rows to remove because of their keys."""

    found: Sequence[FoundRows]
    keys: KeyRange | None  # of the dirty keys, if there are any


class _Known(NamedTuple):
    """The input that all tasks of a round share."""

    store: Store
    columns: KeyColumns
    parts: Mapping[int, PartitionRound]
    maps: Mapping[int, OffsetMap]


def find_by_keys(scan: FileScan, this_round: CleaningRound) -> ByKeys | None:
    """Return the superseded and the keyless rows, found without Iceberg's reader.

    Return None if only Iceberg's reader can read the files, or if the map of dirty keys would take
    more memory than spark.ebbtide.offset.map.bytes.
    """
    columns = KeyColumns.of(scan)
    if columns is None:
        return None
    started, spark = time.monotonic(), scan.rows.spark
    firsts = [part.dirty[0] for part in this_round.partitions.values() if not part.is_idle]
    dirty = find_key_files(scan, Wanted(first_offset=min(firsts))) if firsts else []
    if dirty is None or _rows(dirty) * RECORD_BYTES > _limit(spark):
        return None
    known = _Known(scan.table.store, columns, this_round.partitions, {})
    maps = _maps(spark, known, dirty)
    if maps is None:
        return None
    keys = _key_range(maps.values(), scan.rows.layout.key)
    files = find_key_files(scan, Wanted(min(firsts, default=None), keys, has_no_key=True))
    if files is None:
        return None
    found = _found(spark, known._replace(maps=maps), files)
    if found is None:
        return None
    log.info("judged %s files by their keys in %.1f s", len(files), time.monotonic() - started)
    return ByKeys(found, keys)


def _maps(
    spark: SparkSession, known: _Known, dirty: Sequence[KeyFile]
) -> dict[int, OffsetMap] | None:
    """Return each partition's map of dirty keys to their last offset.

    Return None if a file cannot be read this way, or the keys take too much memory.
    """
    work = partial(_dirty_keys, known)
    of_files = map_segments(spark, work, dirty, _rows(dirty), "mapping keys of")
    by_partition: dict[int, list[pa.Table]] = {}
    for of_file in of_files:
        if of_file is None:
            return None
        for partition, keys in of_file.items():
            by_partition.setdefault(partition, []).append(keys)
    key_bytes = sum(
        keys["key"].nbytes for partition_keys in by_partition.values() for keys in partition_keys
    )
    if key_bytes * KEY_COPIES > _limit(spark):
        return None
    maps = {}
    for partition, tables in by_partition.items():
        # Sorted by offset over all files, so that a key's last row comes last.
        maps[partition] = OffsetMap.of([pa.concat_tables(tables).sort_by("offset")])
    log.info(
        "mapped %s dirty keys", number(sum(len(offset_map.keys) for offset_map in maps.values()))
    )
    return maps


def _dirty_keys(known: _Known, file: KeyFile) -> dict[int, pa.Table] | None:
    """Return `hash, key, offset` of each dirty key's last row in a file, in a task."""
    rows = read_keys(known.store, file, known.columns)
    if rows is None:
        return None
    found = {}
    for partition, mine in _by_partition(known, rows):
        part = known.parts[partition]
        if part.is_idle:
            continue
        first, end = part.dirty
        has_key = mine.keys.is_valid().to_numpy(zero_copy_only=False)
        dirty = mine.where((mine.offsets >= first) & (mine.offsets < end) & has_key)
        if not len(dirty.offsets):
            continue
        keys = pa.table({"key": dirty.keys, "offset": dirty.offsets}).sort_by("offset")
        found[partition] = last_of_each(keys)
    return found


def _found(spark: SparkSession, known: _Known, files: Sequence[KeyFile]) -> list[FoundRows] | None:
    rows = _rows(files)
    with shared(spark, known, rows) as of_all:
        of_files = map_segments(spark, partial(_judged, of_all), files, rows, "judging keys of")
    if any(of_file is None for of_file in of_files):
        return None
    return [group for of_file in of_files for group in of_file or ()]


def _judged(of_all: Shared[_Known], file: KeyFile) -> list[FoundRows] | None:
    """Return a file's superseded and keyless rows, in a task."""
    known = of_all.value
    rows = read_keys(known.store, file, known.columns)
    if rows is None:
        return None
    found = []
    for partition, mine in _by_partition(known, rows):
        is_keyless = mine.keys.is_null().to_numpy(zero_copy_only=False)
        by_rule = {KEYLESS: is_keyless}
        if (offset_map := known.maps.get(partition)) is not None:
            latest = offset_map.latest(pa.chunked_array([mine.keys]))
            by_rule[SUPERSEDED] = (mine.offsets < latest) & ~is_keyless
        for rule, leaves in by_rule.items():
            if leaves.any():
                positions, offsets = mine.positions[leaves], mine.offsets[leaves]
                places = (positions.astype(np.uint64), offsets.astype(np.uint64))
                found.append(FoundRows(file.path, partition, rule, *places))
    return found


def _by_partition(known: _Known, rows: KeyRows) -> Iterator[tuple[int, KeyRows]]:
    """Yield each partition of the round with its rows that the round covers."""
    for partition in np.unique(rows.partitions).tolist():
        if (part := known.parts.get(partition)) is not None:
            is_covered = (rows.offsets >= part.log_start_offset) & (
                rows.offsets < part.first_uncleanable_offset
            )
            yield partition, rows.where((rows.partitions == partition) & is_covered)


def _limit(spark: SparkSession) -> int:
    """Return the bytes of memory that a map of dirty keys may take."""
    return int(spark.conf.get(MAP_BYTES_SETTING, str(MAP_BYTES)) or MAP_BYTES)


def _rows(files: Iterable[KeyFile]) -> int:
    return sum(file.record_count for file in files)


def _key_range(maps: Iterable[OffsetMap], key: Column | None) -> KeyRange | None:
    """Return the least and the greatest dirty key, in the type of the table's column, if any."""
    ends = [pc.min_max(offset_map.keys).as_py() for offset_map in maps if len(offset_map.keys)]
    if not ends:
        return None
    least, greatest = min(end["min"] for end in ends), max(end["max"] for end in ends)
    if key is not None and key.type == "string":
        return KeyRange(least.decode(), greatest.decode())
    return KeyRange(least, greatest)


NO_KEY = "the table has no key column"
TOMBSTONES = "tombstones_removed"
# In this order: a row that two rules remove counts for the first.
RULES = (KEYLESS, SUPERSEDED, TOMBSTONES)
MOST_KEYS_TO_BROADCAST = 1_000_000
# Types whose order in Spark is that of Iceberg's bounds.
_ORDERED = frozenset({"binary", "string", "int", "bigint"})


@dataclass(slots=True)
class Victims:
    """Rows that a round removes from an adopted table."""

    positions: dict[str, BitMap64] = field(default_factory=dict)  # by file
    offsets: dict[int, BitMap64] = field(default_factory=dict)  # by partition
    by_rule: dict[int, Counter[str]] = field(default_factory=dict)  # counts by partition
    by_segment: dict[int, Counter[int]] = field(default_factory=dict)  # counts by partition
    files: ReadFiles = field(default_factory=ReadFiles)

    @property
    def rows(self) -> int:
        """The number of removed rows."""
        return sum(counts.total() for counts in self.by_rule.values())

    @property
    def removed(self) -> dict[int, dict[int, int]]:
        """The number of removed rows by partition and segment, for CleaningRound.removed."""
        return {partition: dict(counts) for partition, counts in self.by_segment.items()}


@dataclass(slots=True)
class RowsEffect(RoundEffect):
    """A round's removals from an adopted table, with the place of each row."""

    found: Victims = field(default_factory=Victims)


@dataclass(frozen=True, slots=True)
class RowsJudge:
    """A judge of rounds on an adopted topic at `now_ms`."""

    rows: AdoptedRows
    log: ObservedLog
    now_ms: int

    @property
    def pins(self) -> Pins:
        """The snapshot that a round reads; an adopted topic has no batches table."""
        assert self.log.snapshot is not None
        return Pins(self.log.snapshot, NEVER)

    def reason_against(self, state: PartitionState) -> str | None:
        """Return why a partition gets no round, or None if its dirty ratio decides."""
        return NO_KEY if self.rows.layout.key is None else None

    def read(self, bounds: Mapping[int, RoundBounds]) -> dict[int, CleanableLog]:
        """Return the logs of these partitions, by the segment sums in their states."""
        states = {p: state for p, state in self.log.states.items() if p in bounds}
        return {
            p: CleanableLog(s, self.log.segments[p], s.log_end_offset, s.log_end_offset)
            for p, s in states.items()
        }

    def idle_reasons(self, parts: Mapping[int, PartitionRound]) -> dict[int, str]:
        """Return the reason for each partition that has a tombstone whose horizon is due."""
        ends = {p: part.first_uncleanable_offset for p, part in parts.items()}
        is_due = _is_any_of(_due(ends, self.log.states, self.now_ms))
        if is_due is None:
            return {}
        tombstones = self.rows.at(self.pins.records).where(F.col("is_tombstone") & is_due)
        found = tombstones.select("partition").distinct().collect()
        return {row["partition"]: Reason.HORIZON_REACHED for row in found}

    def effect(self, this_round: CleaningRound, *, keeps_offsets: bool) -> RowsEffect:
        """Return the round's effect on the rows, always with their offsets."""
        found = find_victims(self.rows, this_round, self.log.states)
        return effect_on_rows(found, this_round, self.log.states)


def resume_on_rows(topic: Topic, in_flight: CleaningRound) -> tuple[CleaningRound, RowsEffect]:
    """Return a killed job's round, planned again on the newest snapshot, and its effect.

    If the round's commit was made, the effect removes no row. Raise ForeignLogError if rows of
    another log have arrived.
    """
    spark, table, states = topic.spark, topic.name.records_table, topic.partitions
    snapshot = current_snapshot(spark, table)
    if snapshot is None or find_snapshot(spark, table, ROUND, in_flight.id) is not None:
        return in_flight, effect_on_rows(Victims(), in_flight, states)
    this_round = replace(in_flight, records_snapshot=snapshot)
    found = find_victims(AdoptedRows.of(topic), this_round, _with_late(topic, this_round))
    return replace(this_round, removed=found.removed), effect_on_rows(found, this_round, states)


def _with_late(topic: Topic, this_round: CleaningRound) -> dict[int, PartitionState]:
    """Return the states with the ranges of tombstones that arrived late since the round began.

    The next round sets the delete horizon of a late tombstone, in any range of offsets.
    """
    states = dict(topic.partitions)
    arrivals = arrivals_of(topic, this_round.now_ms, this_round.records_snapshot)
    for partition, arrived in ({} if arrivals is None else arrivals.by_partition).items():
        if partition in states:
            state = states[partition]
            late = with_late(state.horizons, arrived.late_tombstones)
            states[partition] = replace(state, horizons=late)
    return states


def effect_on_rows(
    found: Victims, this_round: CleaningRound, states: Mapping[int, PartitionState]
) -> RowsEffect:
    """Return the effect of removing these rows, with the numbers of the round's partitions."""
    effect = RowsEffect(victims=found.rows, found=found)
    effect.planned = {p: PlannedRows(offsets) for p, offsets in found.offsets.items()}
    for partition in this_round.partitions:
        state = states[partition]
        by_rule = found.by_rule.get(partition, Counter())
        records = sum(sums.record_count for sums in state.sums)
        size_bytes = sum(sums.size_bytes for sums in state.sums)
        removed = bytes_of(state, found.by_segment.get(partition, {}))
        horizons = horizons_after(state, this_round, partition)
        effect.bytes_removed += removed
        effect.numbers[partition] = {
            "records_before": records,
            "records_after": records - by_rule.total(),
            "bytes_before": size_bytes,
            "bytes_after": size_bytes - removed,
            **{rule: by_rule[rule] for rule in RULES},
            "next_horizon_ms": next_horizon_ms(horizons, this_round.now_ms),
        }
    return effect


def horizons_after(
    state: PartitionState, this_round: CleaningRound, partition: int
) -> tuple[HorizonRange, ...]:
    """Return a partition's horizons after the round; no row has to be read for them."""
    end = this_round.partitions[partition].first_uncleanable_offset
    return after_round(state.horizons, end, this_round.now_ms, this_round.delete_retention_ms)


def state_after_rows(
    state: PartitionState, this_round: CleaningRound, partition: int
) -> PartitionState:
    """Return the state after the round, with segments merged as Kafka's cleaner merges them."""
    end = this_round.partitions[partition].first_uncleanable_offset
    heads = merged(segments_of(state), end, this_round.segment_bytes)
    horizons = horizons_after(state, this_round, partition)
    waits_ms = next_horizon_ms(horizons, this_round.now_ms) or NEVER
    grouped = merged_into(state, heads, this_round.removed.get(partition, {}))
    return grouped.moved(horizons=horizons, next_clean_ms=waits_ms, horizon_ms=waits_ms)


def find_victims(
    rows: AdoptedRows, this_round: CleaningRound, states: Mapping[int, PartitionState]
) -> Victims:
    """Return the rows that the round removes from its snapshot."""
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
    firsts = [part.dirty[0] for part in this_round.partitions.values() if not part.is_idle]
    scan = FileScan.of(rows, this_round.records_snapshot)
    by_keys, dirty = find_by_keys(scan, this_round), None
    try:
        if by_keys is not None:
            keys = by_keys.keys
        else:
            keys = None
            found.append(_of_rule(in_round.where(F.col("key").isNull()), KEYLESS))
            if firsts:
                dirty = _dirty_keys_judge_rows(in_round, min(firsts)).persist()
                keys = _key_range_judge_rows(dirty)
                found.append(_of_rule(_superseded(in_round, dirty, keys), SUPERSEDED))
        victims = _gathered([*(by_keys.found if by_keys else ()), *_at_once(found)], states)
    finally:
        if dirty is not None:
            dirty.unpersist()
    offsets = [offsets for _, offsets in due]
    wanted = Wanted(min(firsts, default=None), keys, has_no_key=True, tombstones=offsets)
    victims.files = count_read_files(scan, wanted)
    return victims


def _bounds(rows: AdoptedRows, this_round: CleaningRound) -> DataFrame:
    """Return the round's first offset, first dirty offset and end offset, by partition."""
    bounds = [
        (partition, part.log_start_offset, part.dirty[0], part.first_uncleanable_offset)
        for partition, part in this_round.partitions.items()
    ]
    frame = small_frame(rows.spark, bounds, ("partition", "log_start", "first_dirty", "end"))
    return F.broadcast(frame.withColumn("partition", F.col("partition").cast("int")))


def _due(
    ends: Mapping[int, int], states: Mapping[int, PartitionState], now_ms: int
) -> list[tuple[int, OffsetRange]]:
    """Return the ranges of offsets in each partition whose horizon is due."""
    return [
        (partition, offsets)
        for partition, end in ends.items()
        for offsets in due_ranges(states[partition].horizons, end, now_ms)
    ]


def _is_any_of(due: Sequence[tuple[int, OffsetRange]]) -> Expression | None:
    """Return the condition that an offset is in one of these ranges, or None without ranges."""
    return balanced(
        (
            (F.col("partition") == partition)
            & (F.col("offset") >= offsets.first)
            & (F.col("offset") < offsets.end)
            for partition, offsets in due
        ),
        Expression.__or__,
    )


def _dirty_keys_judge_rows(in_round: DataFrame, first_dirty_offset: int) -> DataFrame:
    """Return the last offset of each dirty key. No dirty offset is below `first_dirty_offset`."""
    is_dirty = (F.col("offset") >= first_dirty_offset) & (F.col("offset") >= F.col("first_dirty"))
    with_key = in_round.where(is_dirty & F.col("key").isNotNull())
    return with_key.groupBy("partition", "key").agg(F.max("offset").alias("latest"))


def _key_range_judge_rows(dirty: DataFrame) -> KeyRange | None:
    """Return the least and the greatest dirty key, or None without dirty keys or order."""
    if dict(dirty.dtypes)["key"] not in _ORDERED:
        return None
    (found,) = dirty.agg(F.min("key").alias("least"), F.max("key").alias("greatest")).collect()
    if found["least"] is None:
        return None
    ends = (bytes(end) if isinstance(end, bytearray) else end for end in found)
    return KeyRange(*ends)


def _superseded(in_round: DataFrame, dirty: DataFrame, keys: KeyRange | None) -> DataFrame:
    """Return the rows that a later dirty row of their key supersedes."""
    rows = in_round
    if keys is not None:
        is_within = (F.col("key") >= F.lit(keys.least)) & (F.col("key") <= F.lit(keys.greatest))
        rows = rows.where(is_within)
    dirty = dirty.select(
        F.col("partition").alias("of_partition"), F.col("key").alias("dirty_key"), "latest"
    )
    is_same = (F.col("partition") == F.col("of_partition")) & (F.col("key") == F.col("dirty_key"))
    # Without a broadcast, Spark would sort all rows with their files' paths to find a few.
    dirty = F.broadcast(dirty) if dirty.count() <= MOST_KEYS_TO_BROADCAST else dirty
    return rows.join(dirty, is_same).where(F.col("offset") < F.col("latest"))


def _of_rule(rows: DataFrame, rule: str) -> DataFrame:
    return rows.select("partition", "file", "position", "offset", F.lit(rule).alias("rule"))


def _at_once(found: list[DataFrame]) -> list[FoundRows]:
    """Run all queries together. Return their rows by file, partition and rule."""
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
        file, partition, rule = (cell.as_py() for cell in place)
        numbers = (cell.values.to_numpy().astype(np.uint64) for cell in (positions, offsets))
        yield FoundRows(file, partition, rule, *numbers)


def _gathered(found: Iterable[FoundRows], states: Mapping[int, PartitionState]) -> Victims:
    victims = Victims()
    for rows in sorted(found, key=lambda group: RULES.index(group.rule)):
        seen = victims.positions.setdefault(rows.file, BitMap64())
        positions = BitMap64(rows.positions)
        is_new = np.isin(rows.positions, np.array((positions - seen).to_array(), np.uint64))
        offsets = rows.offsets[is_new]
        seen |= positions
        victims.positions[rows.file] = seen
        leaving = victims.offsets.setdefault(rows.partition, BitMap64())
        leaving |= BitMap64(offsets)
        victims.offsets[rows.partition] = leaving
        victims.by_rule.setdefault(rows.partition, Counter())[rows.rule] += len(offsets)
        of_segments = victims.by_segment.setdefault(rows.partition, Counter())
        bases = [segment.base_offset for segment in states[rows.partition].segments]
        places = np.searchsorted(bases, offsets.astype(np.int64), side="right") - 1
        numbers, counts = np.unique(np.maximum(places, 0), return_counts=True)
        of_segments.update({bases[n]: int(count) for n, count in zip(numbers, counts, strict=True)})
    return victims
