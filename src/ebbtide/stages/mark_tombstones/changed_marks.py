"""Find the records whose marks change, by one scan, and commit the changes.

Only those rows are rewritten, into one more file of their segment. The other rows are not touched
(docs/adr/0004).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.errors import SafetyError
from ebbtide.iceberg.files.batch_rows import has_old_magic
from ebbtide.iceberg.files.data_files import (
    Offsets,
    SegmentFiles,
    count_rows,
    deletion_of,
    ends_of,
    in_segments,
    read_rows,
    read_segment,
    write_rows,
)
from ebbtide.iceberg.files.field_ids import together
from ebbtide.iceberg.files.file_commits import (
    Commit,
    Replacement,
    RowDelta,
    new_paths,
    prepare_row_delta,
)
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.topics import Topic
from ebbtide.spark.conditions import any_of
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.mark_tombstones.tombstones import NULL_VALUE, REASONS, TombstoneRule

# A record's new mark: the number of its reason, or one of these.
NO_TOMBSTONE = 0
TO_QUARANTINE = -1
_NULL_VALUE = REASONS.index(NULL_VALUE) + 1

_CHANGES = pa.schema(
    [
        ("partition", pa.int32()),
        ("segment", pa.int64()),
        ("batch", pa.int64()),
        ("offset", pa.int64()),
        ("becomes", pa.int8()),
    ]
)
Codes = npt.NDArray[np.int8]


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


def no_changes() -> pa.Table:
    """Return an empty table of changes."""
    return _CHANGES.empty_table()


def count_changes(changes: pa.Table, partitions: Iterable[int]) -> dict[int, Counts]:
    """Return the numbers of each of the partitions."""
    by_code: dict[int, dict[int, int]] = {partition: {} for partition in partitions}
    grouped = changes.group_by(["partition", "becomes"]).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        by_code[row["partition"]][row["becomes"]] = row["count_all"]
    return {partition: _counts(of) for partition, of in by_code.items()}


def _counts(by_code: Mapping[int, int]) -> Counts:
    by = {reason: by_code[n] for n, reason in enumerate(REASONS, 1) if n in by_code}
    return Counts(sum(by.values()), by, by_code.get(NO_TOMBSTONE, 0), by_code.get(TO_QUARANTINE, 0))


def quarantined(changes: pa.Table) -> pa.Table:
    """Return the changes that take a record out of the log."""
    return changes.filter(pc.equal(changes["becomes"], TO_QUARANTINE))


def find_changes(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> pa.Table:
    """Return the records in the ranges whose mark is not what the rule says, as of a snapshot."""
    with rule.failing_clearly():
        records = candidates(topic, rule, ranges, snapshot).toArrow()
    becomes = _becomes(topic, rule, records)
    records = records.set_column(
        records.schema.get_field_index("marked_by"), "becomes", pa.array(becomes)
    )
    is_changed = becomes != records["was"].to_numpy()
    return records.filter(pa.array(is_changed)).select(_CHANGES.names).cast(_CHANGES)


def candidates(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> DataFrame:
    """Select the places of records that are or may become marked, and the columns that decide."""
    table = topic.name.records_table
    return (
        topic.spark.sql(f"SELECT * FROM {table} VERSION AS OF {snapshot}")
        .where(within(ranges) & rule.may_match)
        .select(
            "partition",
            "segment",
            "batch",
            "offset",
            F.col("value").isNull().alias("is_null"),
            _code(rule.marked_by).alias("marked_by"),
            _code(F.col("tombstone_by")).alias("was"),
        )
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
    return code.cast("tinyint")


def _becomes(topic: Topic, rule: TombstoneRule, records: pa.Table) -> Codes:
    """Return each record's new mark; where null values mark tombstones, they come first."""
    is_null = records["is_null"].to_numpy()
    becomes: Codes = records["marked_by"].to_numpy().copy()
    if not rule.is_explicit:
        becomes[is_null] = _NULL_VALUE
        return becomes
    with_null = records.filter(pa.array(is_null))
    is_old = np.zeros(len(is_null), np.bool_)
    is_old[is_null] = has_old_magic(topic.spark, topic.name.batches_table, with_null)
    becomes[is_old] = _NULL_VALUE
    becomes[is_null & (becomes == NO_TOMBSTONE)] = TO_QUARANTINE
    return becomes


class _MarkedSegment(NamedTuple):
    """The changes of one segment, in offset order, and where the changed rows go."""

    unit: SegmentFiles
    changes: pa.Table
    path: str


def prepare_marks(topic: Topic, snapshot: int, changes: pa.Table) -> Commit:
    """Write the changed rows anew; those for the quarantine only go."""
    spark, table = topic.spark, topic.name.records_table
    by_segment = in_segments(changes, "offset")
    ends = {partition: segment + 1 for partition, segment in by_segment}  # by its last segment
    units = [
        unit
        for unit in plan_segments(spark, table, snapshot, ends)
        if (unit.partition, unit.segment) in by_segment
    ]
    work = [
        _MarkedSegment(unit, by_segment[unit.partition, unit.segment], path)
        for unit, path in zip(units, new_paths(spark, table, units), strict=True)
    ]
    written = map_segments(spark, _write_marked, work, count_rows(units), "writes marks of")
    return prepare_row_delta(spark, table, ends_of(units), RowDelta.of_all(written), {})


def _write_marked(work: _MarkedSegment) -> RowDelta:
    """Write the rows that stay with their new marks, and return what replaces the old ones."""
    rows, becomes = read_segment(work.unit, ("offset",)), work.changes["becomes"].to_numpy()
    at = _find(work, rows.table["offset"].to_numpy())
    files, positions = rows.files[at], rows.positions[at]
    deletions, tables = [], []
    for number, file in enumerate(work.unit.files):
        mine = np.flatnonzero(files == number)
        mine = mine[np.argsort(positions[mine])]
        if not len(mine):
            continue
        deletions.append(deletion_of(work.unit.store, file, positions[mine]))
        mine = mine[becomes[mine] != TO_QUARANTINE]
        if len(mine):
            tables.append(_marked(read_rows(work.unit, file, positions[mine]), becomes[mine]))
    if not tables:
        return RowDelta(deletions)
    write_rows(work.unit.store, work.path, together(tables, work.unit.columns))
    return RowDelta(deletions, [Replacement(work.unit, work.path)])


def _marked(rows: pa.Table, becomes: Codes) -> pa.Table:
    """Return the rows with their new marks."""
    reasons = pa.array([None, *REASONS], pa.string()).take(pa.array(becomes))
    is_tombstone = pa.array(becomes != NO_TOMBSTONE)
    for name, column in (("is_tombstone", is_tombstone), ("tombstone_by", reasons)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.field(at), column)
    return rows


def _find(work: _MarkedSegment, offsets: Offsets) -> Offsets:
    """Find the positions of the changed records among those of the segment."""
    wanted = work.changes["offset"].to_numpy()
    at: Offsets = np.searchsorted(offsets, wanted)
    if at[-1] >= len(offsets) or np.any(offsets[at] != wanted):
        raise SafetyError(
            f"expected the records of segment {work.unit.segment} of partition "
            f"{work.unit.partition} as they were found, found other offsets; run the job again"
        )
    return at
