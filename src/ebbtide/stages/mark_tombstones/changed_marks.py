"""Find the records whose marks change, by one scan: their offsets come to the driver as bitmaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.errors import SafetyError
from ebbtide.iceberg.topics import Topic
from ebbtide.spark.conditions import any_of
from ebbtide.spark.number_sets import number_sets
from ebbtide.stages.mark_tombstones.tombstones import NULL_VALUE, REASONS, TombstoneRule

# A record's new mark: the number of its reason, or one of these.
NO_TOMBSTONE = 0
TO_QUARANTINE = -1
_NO_BATCH = -2  # none can be told, as the batches table lacks the record's batch
_NULL_VALUE = REASONS.index(NULL_VALUE) + 1

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
    return {partition: _counts(of) for partition, of in by_code.items()}


def _counts(by_code: Mapping[int, int]) -> Counts:
    by = {reason: by_code[n] for n, reason in enumerate(REASONS, 1) if n in by_code}
    return Counts(sum(by.values()), by, by_code.get(NO_TOMBSTONE, 0), by_code.get(TO_QUARANTINE, 0))


def find_changes(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> MarkChanges:
    """Return the records in the ranges whose mark is not what the rule says, as of a snapshot."""
    changed = changed_records(topic, rule, ranges, snapshot)
    with rule.failing_clearly():
        sets = number_sets(changed, ["partition", "segment", "becomes"], "offset")
    changes: dict[tuple[int, int], dict[int, BitMap64]] = {}
    for (partition, segment, code), offsets in sets.items():
        if code == _NO_BATCH:
            raise _without_batch(topic, partition, changed)
        changes.setdefault((partition, segment), {})[code] = offsets
    return changes


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


def _without_batch(topic: Topic, partition: int, changed: DataFrame) -> SafetyError:
    is_lost = (F.col("becomes") == _NO_BATCH) & (F.col("partition") == partition)
    ((batch,),) = changed.where(is_lost).agg(F.min("batch")).collect()
    return SafetyError(
        f"expected a row of {topic.name.batches_table} for each batch that has records in "
        f"partition {partition}, found none for the batch at {batch}; roll the tables back to a "
        "snapshot before it went"
    )


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
