"""Find the records whose marks change: their offsets come to the driver as bitmaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError, ConfigurationError, EbbtideError, SafetyError
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, live_batches
from ebbtide.iceberg.files.segment_planning import ColumnBounds, plan_where
from ebbtide.iceberg.topics import Topic, first_segments_now
from ebbtide.records.arrays import Bools
from ebbtide.records.attributes import TOMBSTONE
from ebbtide.spark.conditions import any_of
from ebbtide.spark.number_sets import number_sets
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.mark_tombstones.tombstones import FLAG, NULL_VALUE, REASONS, TombstoneRule

# A record's new mark: the number of its reason, or one of these.
NO_TOMBSTONE = 0
TO_QUARANTINE = -1
_NO_BATCH = -2  # none can be told, as the batches table lacks the record's batch
_NULL_VALUE, _FLAG = (REASONS.index(reason) + 1 for reason in (NULL_VALUE, FLAG))
_READ = ("offset", "value", "attributes", "is_tombstone", "tombstone_by")

# The offsets of a segment's records that change, by their new mark; by (partition, segment).
MarkChanges = Mapping[tuple[int, int], Mapping[int, BitMap64]]


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of a partition's records that change, and how."""

    marked: int = 0
    by: dict[str, int] = field(default_factory=dict)
    unmarked: int = 0
    quarantined: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as a dict."""
        return asdict(self)


def count_changes(changes: MarkChanges, partitions: Iterable[int]) -> dict[int, Counts]:
    """Return the numbers of each of the partitions."""
    by_code: dict[int, dict[int, int]] = {partition: {} for partition in partitions}
    for (partition, _), of_segment in changes.items():
        of_partition = by_code[partition]
        for code, offsets in of_segment.items():
            of_partition[code] = of_partition.get(code, 0) + len(offsets)
    counts = {}
    for partition, numbers in by_code.items():
        by = {reason: numbers[n] for n, reason in enumerate(REASONS, 1) if n in numbers}
        unmarked, quarantined = numbers.get(NO_TOMBSTONE, 0), numbers.get(TO_QUARANTINE, 0)
        counts[partition] = Counts(sum(by.values()), by, unmarked, quarantined)
    return counts


def find_changes(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> MarkChanges:
    """Return the records in the ranges whose mark is not what the rule says, as of a snapshot.

    The plain rule needs no query, which would take most of a small topic's time.
    """
    if rule.is_plain:
        with suppress(ConfigurationError):  # files that only Spark reads
            return _find_in_files(topic, ranges, snapshot)
    changed = changed_records(topic, rule, ranges, snapshot)
    with rule.failing_clearly():
        sets = number_sets(changed, ["partition", "segment", "becomes"], "offset")
    changes: dict[tuple[int, int], dict[int, BitMap64]] = {}
    for (partition, segment, code), offsets in sets.items():
        if code == _NO_BATCH:
            raise _without_batch(topic, partition, changed)
        changes.setdefault((partition, segment), {})[code] = offsets
    return changes


class _Marked(NamedTuple):
    """A segment, and the offsets of it that are to be marked: half-open."""

    unit: SegmentFiles
    first: int
    end: int


def _find_in_files(
    topic: Topic, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> MarkChanges:
    """Find what changes by the plain rule, in the files whose bounds do not rule it out."""
    spark, ends = topic.spark, {partition: end for partition, (_, end) in ranges.items()}
    may_change = partial(_may_change, ranges)
    units = plan_where(spark, topic.name.records_table, snapshot, ends, may_change)
    work = [_Marked(unit, *ranges[unit.partition]) for unit in units]
    found = map_segments(spark, _changes_of, work, count_rows(units), "looks for tombstones in")
    return {
        (unit.partition, unit.segment): by_code
        for unit, by_code in zip(units, found, strict=True)
        if by_code
    }


def _may_change(
    ranges: Mapping[int, tuple[int, int]], partition: int, columns: ColumnBounds
) -> bool:
    """Return whether a file may hold a record whose mark changes."""
    last = columns.upper("offset")
    if last is not None and last < ranges[partition][0]:
        return False
    lowest, highest = columns.lower("attributes"), columns.upper("attributes")
    may_be_flagged = lowest is None or highest is None or lowest < 0 or highest >= TOMBSTONE
    return columns.has_nulls("value") or may_be_flagged or columns.upper("is_tombstone") != 0


def _changes_of(work: _Marked) -> dict[int, BitMap64]:
    """Return the offsets of a segment's records that change, by their new mark; in a task."""
    changes: dict[int, BitMap64] = {}
    for file in work.unit.files:
        for rows in live_batches(work.unit, file, _READ):
            offsets, becomes = rows["offset"].to_numpy(), _plain_marks(rows)
            is_changed = (becomes != _known_marks(rows)) & _is_candidate(rows)
            is_changed &= (offsets >= work.first) & (offsets < work.end)
            for code in np.unique(becomes[is_changed]).tolist():
                found = offsets[is_changed & (becomes == code)].astype(np.uint64)
                changes.setdefault(code, BitMap64()).update(found)
    return changes


def _is_candidate(rows: pa.Table) -> Bools:
    """Return which rows `TombstoneRule.may_match` is true of."""
    attributes = rows["attributes"].fill_null(0).to_numpy()
    is_marked = rows["is_tombstone"].fill_null(False).to_numpy()
    may_be_flagged = (attributes < 0) | (attributes >= TOMBSTONE)
    return np.asarray(_is_null(rows["value"]) | may_be_flagged | is_marked)


def _plain_marks(rows: pa.Table) -> npt.NDArray[np.int8]:
    """Return the number of the reason why each row is a tombstone, 0 if it is none."""
    is_flagged = (rows["attributes"].fill_null(0).to_numpy() & TOMBSTONE) != 0
    of_others = np.where(is_flagged, _FLAG, NO_TOMBSTONE)
    return np.where(_is_null(rows["value"]), _NULL_VALUE, of_others).astype(np.int8)


def _known_marks(rows: pa.Table) -> npt.NDArray[np.int8]:
    reasons = pc.index_in(rows["tombstone_by"], value_set=pa.array(REASONS)).fill_null(-1)
    return np.asarray(reasons.to_numpy() + 1, np.int8)


def _is_null(column: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.is_null(column).to_numpy())


def changed_records(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> DataFrame:
    """Select the records whose mark changes, whole, and the number that it `becomes`."""
    records = candidates(topic, rule, ranges, snapshot)
    marked_by, is_null = _code(rule.marked_by), F.col("value").isNull()
    if rule.is_explicit:
        # A null value means a tombstone only in batches of magic 0 and 1; what takes it there
        # otherwise is a mark.
        records = _with_magic(topic, records, ranges)
        unmarked = F.when(marked_by == NO_TOMBSTONE, TO_QUARANTINE).otherwise(marked_by)
        by_value = F.when(F.col("_magic") < 2, _NULL_VALUE).when(
            F.col("_magic").isNull(), _NO_BATCH
        )
        becomes = F.when(is_null, by_value.otherwise(unmarked)).otherwise(marked_by)
    else:
        becomes = F.when(is_null, _NULL_VALUE).otherwise(marked_by)
    records = records.withColumn("becomes", becomes.cast("tinyint"))
    return records.where(F.col("becomes") != _code(F.col("tombstone_by")))


def candidates(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> DataFrame:
    """Select records that are or may become marked."""
    return topic.spark.sql(
        f"SELECT * FROM {topic.name.records_table} VERSION AS OF {snapshot}"
    ).where(within(ranges) & rule.may_match)


def _with_magic(
    topic: Topic, records: DataFrame, ranges: Mapping[int, tuple[int, int]]
) -> DataFrame:
    """Add the `_magic` of the records' batches; null where the batches table lacks one."""
    is_near = any_of(
        f"`partition` = {partition} AND last_offset >= {first} AND base_offset < {end}"
        for partition, (first, end) in ranges.items()
    )
    headers = topic.spark.table(topic.name.batches_table).where(is_near)
    magic = headers.select("partition", F.col("base_offset").alias("batch"), "magic")
    return records.join(magic.withColumnRenamed("magic", "_magic"), ["partition", "batch"], "left")


def _without_batch(topic: Topic, partition: int, changed: DataFrame) -> EbbtideError:
    """Return what is wrong: batches have left since the snapshot of the records, or are lost."""
    is_lost = (F.col("becomes") == _NO_BATCH) & (F.col("partition") == partition)
    ends = changed.where(is_lost).agg(F.min("batch"), F.max("batch"))
    ((batch, last),) = ends.collect()
    expected = (
        f"expected a row of {topic.name.batches_table} for each batch that has records in "
        f"partition {partition}, found none for the batch at {batch}"
    )
    if last < first_segments_now(topic)[partition]:
        return CommitConflictError(f"{expected}: its segment left meanwhile; run the job again")
    return SafetyError(f"{expected}; roll the tables back to a snapshot before it went")


def within(ranges: Mapping[int, tuple[int, int]]) -> Column:
    """Return whether the row's offset lies in its partition's half-open range."""
    # As text: built call by call, 8,000 partitions take Python half a minute.
    return F.expr(
        any_of(
            f"`partition` = {partition} AND offset >= {first} AND offset < {end}"
            for partition, (first, end) in ranges.items()
        )
    )


def _code(reason: Column) -> Column:
    """Return the number of a reason, 0 where there is none."""
    code = F.lit(NO_TOMBSTONE)
    for number, name in enumerate(REASONS, 1):
        code = F.when(reason == name, F.lit(number)).otherwise(code)
    return code
