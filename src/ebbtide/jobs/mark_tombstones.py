"""mark_tombstones: mark the tombstones among records that were not judged yet (KIP-87).

A record is a tombstone by its null value, by bit 5 of its attributes, by a header or by a
predicate; in the last three cases it may have a value. Order: move first unmarked offsets back if
records are to be marked again, quarantine records that the log must not have, write marks, advance
the first unmarked offsets.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from ebbtide.columns.erased_keys import ERASED_KEY
from ebbtide.errors import (
    CommitConflictError,
    ConfigurationError,
    EbbtideError,
    RequestError,
    SafetyError,
)
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import (
    Offsets,
    SegmentFiles,
    count_rows,
    deletion_of,
    ends_of,
    live_batches,
    numbers_in,
    read_rows,
    read_segment,
    together,
    write_rows,
)
from ebbtide.iceberg.file_commits import Commit, Replacement, RowDelta, new_paths, prepare_row_delta
from ebbtide.iceberg.in_flight import open_round
from ebbtide.iceberg.segment_planning import ColumnBounds, plan_segments, plan_where
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    first_segments_now,
)
from ebbtide.jobs.quarantine import Forbidden, RunOf, quarantine_note, take_to_quarantine
from ebbtide.jobs.unfinished import load_settled
from ebbtide.ledger.plans import (
    Bounds,
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    partition_summary,
)
from ebbtide.moments import to_datetime
from ebbtide.records.arrays import Bools
from ebbtide.records.attributes import TOMBSTONE
from ebbtide.runner.holds import keep_leaving
from ebbtide.runner.job import LOG_END, Job, Parameters, PlanRequest, Proposal, log_ends
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import TombstoneHeader, TopicConfig
from ebbtide.settings.names import TopicName
from ebbtide.spark.expressions import Expression, any_of, number_sets
from ebbtide.spark.job_log import log_partitions
from ebbtide.spark.tasks import map_segments
from ebbtide.specs.erase_request import (
    FromOffset,
    offsets_to_mark_again_from,
    parse_from_offset,
    ranges_to_mark,
)
from ebbtide.specs.settings_changes import changed
from ebbtide.state.topic_state import PartitionState, to_changes, to_properties
from ebbtide.text import number

if TYPE_CHECKING:
    from ebbtide.jobs.tombstone_ages import Search

NULL_VALUE = "null_value"
FLAG = "flag"
HEADER = "header"
PREDICATE = "predicate"
# In the order of checks; the first match is stored.
REASONS = (NULL_VALUE, FLAG, HEADER, PREDICATE)


class TombstoneRule(NamedTuple):
    """A topic's rule for tombstones."""

    marked_by: Column  # the reason, other than a null value; null if there is none
    # True for every record that is a tombstone or is marked as one. It filters the files to read,
    # so it uses values only if the predicate does.
    may_match: Column
    is_explicit: bool  # ebbtide.tombstone.explicit
    predicate: Expression | None
    is_plain: bool  # only a null value or the flag make a tombstone

    def failing_clearly(self) -> AbstractContextManager[None]:
        """Turn the predicate's failure on a record into a ConfigurationError with the predicate."""
        return nullcontext() if self.predicate is None else self.predicate.failing_clearly()


def tombstone_rule(spark: SparkSession, config: TopicConfig) -> TombstoneRule:
    """Return the topic's rule. Raise ConfigurationError if its predicate is invalid."""
    is_flagged = F.col("attributes").bitwiseAND(F.lit(TOMBSTONE)) != 0
    marked_by = F.when(is_flagged, F.lit(FLAG))
    may_be_flagged = (F.col("attributes") < 0) | (F.col("attributes") >= TOMBSTONE)
    may_match = F.col("value").isNull() | may_be_flagged | F.col("is_tombstone")
    if config.tombstone_header is not None:
        has_header = _has_header(config.tombstone_header)
        marked_by = marked_by.when(has_header, F.lit(HEADER))
        may_match |= has_header
    predicate = None
    if config.tombstone_predicate is not None:
        predicate = _checked(spark, config.tombstone_predicate)
        marked_by = marked_by.when(predicate.column, F.lit(PREDICATE))
        may_match |= predicate.column
    is_plain = not config.tombstones_are_explicit and not config.tombstone_header and not predicate
    explicit = config.tombstones_are_explicit
    return TombstoneRule(marked_by, may_match, explicit, predicate, is_plain)


def _has_header(wanted: TombstoneHeader) -> Column:
    def matches(header: Column) -> Column:
        has_name = header["key"] == F.lit(wanted.name)
        if wanted.value is None:
            return has_name
        return has_name & (header["value"] == F.lit(wanted.value.encode()))

    return F.exists("headers", matches)


def _checked(spark: SparkSession, text: str) -> Expression:
    expected = "a boolean expression over key, value, headers and timestamp"
    predicate = Expression("ebbtide.tombstone.predicate=", text, expected)
    data_type = predicate.type(spark)
    if not isinstance(data_type, BooleanType):
        raise predicate.refused(f"one of type {data_type.simpleString()}")
    return predicate


# A record's new mark: the number of its reason, or one of these.
NO_TOMBSTONE = 0
TO_QUARANTINE = -1
_NO_BATCH = -2  # unknown, because the batches table lacks the record's batch
REFUSED = -3  # to the quarantine: its key was erased after it was written
_LEAVING = (TO_QUARANTINE, REFUSED)
_NULL_VALUE, _FLAG = (REASONS.index(reason) + 1 for reason in (NULL_VALUE, FLAG))
_READ = ("offset", "value", "attributes", "is_tombstone", "tombstone_by")

# Offsets of records whose mark changes: by (partition, segment), then by new mark.
MarkChanges = Mapping[tuple[int, int], Mapping[int, BitMap64]]


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a partition's records whose mark changes."""

    marked: int = 0
    by_rule: dict[str, int] = field(default_factory=dict)
    unmarked: int = 0
    quarantined: int = 0  # `refused` ones too
    refused: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as a dict."""
        return asdict(self)


def count_changes(changes: MarkChanges, partitions: Iterable[int]) -> dict[int, Counts]:
    """Return the counts of each partition."""
    by_code: dict[int, dict[int, int]] = {partition: {} for partition in partitions}
    for (partition, _), of_segment in changes.items():
        of_partition = by_code[partition]
        for code, offsets in of_segment.items():
            of_partition[code] = of_partition.get(code, 0) + len(offsets)
    counts = {}
    for partition, numbers in by_code.items():
        by = {reason: numbers[n] for n, reason in enumerate(REASONS, 1) if n in numbers}
        unmarked, refused = numbers.get(NO_TOMBSTONE, 0), numbers.get(REFUSED, 0)
        quarantined = numbers.get(TO_QUARANTINE, 0) + refused
        counts[partition] = Counts(sum(by.values()), by, unmarked, quarantined, refused)
    return counts


def find_changes(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> MarkChanges:
    """Return the records in the ranges whose mark differs from the rule, in a snapshot.

    The plain rule reads files without a Spark query, which dominates the time of a small topic.
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
    """A segment, and the half-open range of its offsets to judge."""

    unit: SegmentFiles
    first: int
    end: int


def _find_in_files(
    topic: Topic, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> MarkChanges:
    """Find the changes by the plain rule, in the files whose column bounds allow one."""
    spark, ends = topic.spark, {partition: end for partition, (_, end) in ranges.items()}
    may_change = partial(_may_change, ranges)
    units = plan_where(spark, topic.name.records_table, snapshot, ends, may_change)
    work = [_Marked(unit, *ranges[unit.partition]) for unit in units]
    found = map_segments(spark, _changes_of, work, count_rows(units), "finding tombstones in")
    return {
        (unit.partition, unit.segment): by_code
        for unit, by_code in zip(units, found, strict=True)
        if by_code
    }


def _may_change(
    ranges: Mapping[int, tuple[int, int]], partition: int, columns: ColumnBounds
) -> bool:
    """Return whether a file may have a record whose mark changes."""
    last = columns.upper("offset")
    if last is not None and last < ranges[partition][0]:
        return False
    lowest, highest = columns.lower("attributes"), columns.upper("attributes")
    may_be_flagged = lowest is None or highest is None or lowest < 0 or highest >= TOMBSTONE
    return columns.has_nulls("value") or may_be_flagged or columns.upper("is_tombstone") != 0


def _changes_of(work: _Marked) -> dict[int, BitMap64]:
    """Return the offsets of a segment's records that change, by new mark, in a Spark task."""
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
    """Return `TombstoneRule.may_match` of each row."""
    attributes = rows["attributes"].fill_null(0).to_numpy()
    is_marked = rows["is_tombstone"].fill_null(False).to_numpy()
    may_be_flagged = (attributes < 0) | (attributes >= TOMBSTONE)
    return np.asarray(_is_null(rows["value"]) | may_be_flagged | is_marked)


def _plain_marks(rows: pa.Table) -> npt.NDArray[np.int8]:
    """Return each row's new mark by the plain rule."""
    is_flagged = (rows["attributes"].fill_null(0).to_numpy() & TOMBSTONE) != 0
    of_others = np.where(is_flagged, _FLAG, NO_TOMBSTONE)
    marks = np.where(_is_null(rows["value"]), _NULL_VALUE, of_others)
    is_refused = pc.equal(rows["tombstone_by"], ERASED_KEY).fill_null(False).to_numpy()
    return np.where(is_refused, REFUSED, marks).astype(np.int8)


def _known_marks(rows: pa.Table) -> npt.NDArray[np.int8]:
    reasons = pc.index_in(rows["tombstone_by"], value_set=pa.array(REASONS)).fill_null(-1)
    return np.asarray(reasons.to_numpy() + 1, np.int8)


def _is_null(column: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.is_null(column).to_numpy())


def changed_records(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> DataFrame:
    """Select the records whose mark changes, with a column `becomes` for the new mark."""
    records = candidates(topic, rule, ranges, snapshot)
    marked_by, is_null = _code(rule.marked_by), F.col("value").isNull()
    if rule.is_explicit:
        # Without a mark, a null value makes a tombstone only in batches of magic 0 and 1.
        records = _with_magic(topic, records, ranges)
        unmarked = F.when(marked_by == NO_TOMBSTONE, TO_QUARANTINE).otherwise(marked_by)
        by_value = F.when(F.col("_magic") < 2, _NULL_VALUE).when(
            F.col("_magic").isNull(), _NO_BATCH
        )
        becomes = F.when(is_null, by_value.otherwise(unmarked)).otherwise(marked_by)
    else:
        becomes = F.when(is_null, _NULL_VALUE).otherwise(marked_by)
    is_refused = F.col("tombstone_by") == ERASED_KEY
    becomes = F.when(is_refused, REFUSED).otherwise(becomes)
    records = records.withColumn("becomes", becomes.cast("tinyint"))
    return records.where(F.col("becomes") != _code(F.col("tombstone_by")))


def candidates(
    topic: Topic, rule: TombstoneRule, ranges: Mapping[int, tuple[int, int]], snapshot: int
) -> DataFrame:
    """Select the records that are marked or may become so."""
    return topic.spark.sql(
        f"SELECT * FROM {topic.name.records_table} VERSION AS OF {snapshot}"
    ).where(within(ranges) & rule.may_match)


def _with_magic(
    topic: Topic, records: DataFrame, ranges: Mapping[int, tuple[int, int]]
) -> DataFrame:
    """Add the magic of each record's batch as `_magic`, null if the batches table lacks it."""
    is_near = any_of(
        f"`partition` = {partition} AND last_offset >= {first} AND base_offset < {end}"
        for partition, (first, end) in ranges.items()
    )
    headers = topic.spark.table(topic.name.batches_table).where(is_near)
    magic = headers.select("partition", F.col("base_offset").alias("batch"), "magic")
    return records.join(magic.withColumnRenamed("magic", "_magic"), ["partition", "batch"], "left")


def _without_batch(topic: Topic, partition: int, changed: DataFrame) -> EbbtideError:
    """Return the error for a missing batch: removed after the records' snapshot, or lost."""
    is_lost = (F.col("becomes") == _NO_BATCH) & (F.col("partition") == partition)
    ends = changed.where(is_lost).agg(F.min("batch"), F.max("batch"))
    ((batch, last),) = ends.collect()
    expected = (
        f"expected a row of {topic.name.batches_table} for each batch with records in "
        f"partition {partition}, found none for the batch at offset {batch}"
    )
    if last < first_segments_now(topic)[partition]:
        return CommitConflictError(
            f"{expected}: its segment was removed meanwhile. Run the job again"
        )
    return SafetyError(
        f"{expected}. No record was marked. Roll the tables back to a snapshot that has the row"
    )


def within(ranges: Mapping[int, tuple[int, int]]) -> Column:
    """Return whether the row's offset is in its partition's half-open range."""
    # As text: building Column objects for 8,000 partitions takes half a minute.
    return F.expr(
        any_of(
            f"`partition` = {partition} AND offset >= {first} AND offset < {end}"
            for partition, (first, end) in ranges.items()
        )
    )


def _code(reason: Column) -> Column:
    """Return the number of a reason, or 0 for null."""
    code = F.lit(NO_TOMBSTONE)
    for place, name in enumerate(REASONS, 1):
        code = F.when(reason == name, F.lit(place)).otherwise(code)
    return code


# Write new marks: only the changed rows are rewritten, into a new file of their segment.
#
# Other rows stay in their files (docs/adr/0004).


Codes = npt.NDArray[np.int8]


class _MarkedSegment(NamedTuple):
    """The offsets of a segment's changed records by new mark, and the path of their new file."""

    unit: SegmentFiles
    offsets: Mapping[int, BitMap64]
    path: str


def prepare_marks(topic: Topic, snapshot: int, changes: MarkChanges) -> Commit:
    """Rewrite the changed rows, and return the commit; rows for the quarantine are only deleted."""
    spark, table = topic.spark, topic.name.records_table
    ends: dict[int, int] = {}
    for partition, segment in changes:
        ends[partition] = max(ends.get(partition, 0), segment + 1)
    units = [
        unit
        for unit in plan_segments(spark, table, snapshot, ends)
        if (unit.partition, unit.segment) in changes
    ]
    work = [
        _MarkedSegment(unit, changes[unit.partition, unit.segment], path)
        for unit, path in zip(units, new_paths(spark, table, units), strict=True)
    ]
    written = map_segments(spark, _write_marked, work, count_rows(units), "writing marks of")
    return prepare_row_delta(spark, table, ends_of(units), RowDelta.of_all(written), {})


def _write_marked(work: _MarkedSegment) -> RowDelta:
    """Write a segment's changed rows with their new marks, and return the row delta."""
    rows = read_segment(work.unit, ("offset",))
    offsets, becomes = _in_order(work.offsets)
    at = _find(work, rows.table["offset"].to_numpy(), offsets)
    files, positions = rows.files[at], rows.positions[at]
    deletions, tables = [], []
    for place, file in enumerate(work.unit.files):
        mine = np.flatnonzero(files == place)
        mine = mine[np.argsort(positions[mine])]
        if not len(mine):
            continue
        deletions.append(deletion_of(work.unit.store, file, positions[mine]))
        mine = mine[becomes[mine] >= NO_TOMBSTONE]
        if len(mine):
            tables.append(_marked(read_rows(work.unit, file, positions[mine]), becomes[mine]))
    if not tables:
        return RowDelta(deletions)
    write_rows(work.unit.store, work.path, together(tables, work.unit.columns))
    return RowDelta(deletions, [Replacement(work.unit, work.path)])


def _in_order(by_code: Mapping[int, BitMap64]) -> tuple[Offsets, Codes]:
    """Return all offsets in ascending order, and their new marks."""
    offsets = np.concatenate([numbers_in(bitmap) for bitmap in by_code.values()])
    becomes = np.repeat(
        np.array(list(by_code), np.int8), [len(bitmap) for bitmap in by_code.values()]
    )
    order = np.argsort(offsets)
    return offsets[order], becomes[order]


def _marked(rows: pa.Table, becomes: Codes) -> pa.Table:
    """Return the rows with their new marks."""
    reasons = pa.array([None, *REASONS], pa.string()).take(pa.array(becomes))
    is_tombstone = pa.array(becomes != NO_TOMBSTONE)
    for name, column in (("is_tombstone", is_tombstone), ("tombstone_by", reasons)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.field(at), column)
    return rows


def _find(work: _MarkedSegment, offsets: Offsets, wanted: Offsets) -> Offsets:
    """Return the index in `offsets` of each wanted offset. Raise SafetyError if one is missing."""
    at: Offsets = np.searchsorted(offsets, wanted)
    if at[-1] >= len(offsets) or np.any(offsets[at] != wanted):
        raise SafetyError(
            f"expected the planned offsets in segment {work.unit.segment} of partition "
            f"{work.unit.partition}, found different ones. No record was marked. Run the job again"
        )
    return at


QUARANTINED = "quarantined"  # a rule of a plan's summary

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MarkPlan(Proposal):
    """The offsets to judge, and the records whose mark changes or that are quarantined."""

    topic: Topic
    ranges: Mapping[int, tuple[int, int]]
    again_from: Mapping[int, int]  # first offset to mark again, by partition
    snapshot: int | None  # the one that was read; None if the table has none
    rule: TombstoneRule
    changes: MarkChanges = field(default_factory=dict)
    run: RunOf | None = None  # for the quarantine's columns

    @property
    def counts(self) -> dict[int, Counts]:
        """The number of records whose mark changes, by partition."""
        return count_changes(self.changes, self.topic.partitions)

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of records to quarantine, by partition."""
        nothing = dict.fromkeys(self.topic.partitions, BitMap64())
        return {**nothing, **self.to_quarantine}

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the log end offsets; an execution marks only records below them."""
        return log_ends(self.topic)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return the number of records to quarantine; the job removes nothing else."""
        removes = self.removes()
        return {
            p: partition_summary(
                LeavingRows(len(offsets)), {QUARANTINED: RuleNumbers(records=len(offsets))}
            )
            for p, offsets in removes.items()
        }

    def marked(self) -> Topic:
        """Return the topic with its state after the execution."""
        changes = _marked_topic(self.topic, self)
        return replace(self.topic, properties=changed(self.topic.properties, changes))

    @property
    def to_quarantine(self) -> dict[int, BitMap64]:
        """The offsets of records to quarantine, only of partitions that have some."""
        going: dict[int, BitMap64] = {}
        for (partition, _), by_code in self.changes.items():
            for code in _LEAVING:
                if offsets := by_code.get(code):
                    going[partition] = going.get(partition, BitMap64()) | offsets
        return going

    @property
    def refused(self) -> int:
        """The number of records with a key that was erased after they were written."""
        return sum(counts.refused for counts in self.counts.values())

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome()
        for partition, counts in self.counts.items():
            outcome.partitions[partition] = self.topic.offsets_of(partition) | counts.to_dict()
            outcome.rows_removed += counts.quarantined
        if outcome.rows_removed:
            table = self.topic.name.quarantine_table
            outcome.topic = {
                "quarantine": table,
                "note": quarantine_note(outcome.rows_removed, self.refused, table),
            }
        return outcome


def plan_mark(
    topic: Topic, again: Sequence[FromOffset] = (), bounds: Bounds | None = None
) -> MarkPlan:
    """Find the tombstones in [first unmarked offset, log end offset) of each partition.

    `again` has lower offsets to start at, `bounds` are those of a stored plan. Raise
    ConfigurationError if the topic's rule is invalid.
    """
    rule = tombstone_rule(topic.spark, topic.config)
    again_from = _again_from(topic, again)
    ends = None if bounds is None else {p: numbers[LOG_END] for p, numbers in bounds.items()}
    ranges = ranges_to_mark(topic.partitions, again_from, ends)
    snapshot = current_snapshot(topic.spark, topic.name.records_table) if ranges else None
    plan = MarkPlan(topic, ranges, again_from, snapshot, rule)
    if snapshot is None:
        return plan
    return replace(plan, changes=find_changes(topic, rule, ranges, snapshot))


def _again_from(topic: Topic, again: Sequence[FromOffset]) -> dict[int, int]:
    in_flight = open_round(topic)
    parts = {} if in_flight is None else in_flight.partitions
    cleaned_up_to = {p: part.first_uncleanable_offset for p, part in parts.items()}
    return offsets_to_mark_again_from(topic.partitions, cleaned_up_to, again)


def execute_mark(plan: MarkPlan, run: RunOf) -> JobOutcome:
    """Mark the planned records, then advance the first unmarked offsets past them."""
    counts = plan.counts
    lines = {p: _described(first, end, counts[p]) for p, (first, end) in plan.ranges.items()}
    log_partitions(log, lines)
    outcome, topic = plan.outcome(), plan.topic
    if plan.again_from:
        compare_and_set(topic, Step.MARK_AGAIN, lambda current: _moved_back(current, plan))
    if plan.snapshot is not None and outcome.rows_removed:
        if kept := keep_leaving(topic, plan.to_quarantine):
            outcome.topic["copied_for_holds"] = kept
        with plan.rule.failing_clearly():
            outcome.snapshot_ids += take_to_quarantine(topic, _forbidden(plan), run)
    if plan.snapshot is not None and plan.changes:
        prepared = prepare_marks(topic, plan.snapshot, plan.changes)
        outcome.snapshot_ids.append(commit(Step.MARK_RECORDS, prepared))
    searches = _searches(topic, plan)
    if plan.ranges or searches:
        compare_and_set(
            topic, Step.MARK_STATE, lambda current: _marked_topic(current, plan, searches)
        )
    return outcome


def _searches(topic: Topic, plan: MarkPlan) -> dict[int, Search]:
    """Find the tombstones that the deadline of erasure must know of, once all are marked."""
    if topic.deadline is None:
        return {}
    from ebbtide.jobs.tombstone_ages import ranges_to_search, search

    return search(topic, ranges_to_search(topic, plan.ranges))


def _forbidden(plan: MarkPlan) -> Forbidden:
    """Return the records that the plan quarantines."""
    assert plan.snapshot is not None
    changed = changed_records(plan.topic, plan.rule, plan.ranges, plan.snapshot)
    last_offsets = {p: offsets.max() for p, offsets in plan.to_quarantine.items()}
    count = sum(counts.quarantined for counts in plan.counts.values())
    leaving = changed.where(F.col("becomes").isin(*_LEAVING))
    return Forbidden(leaving, count, plan.refused, last_offsets)


def _described(first: int, end: int, counts: Counts) -> str:
    """Describe the changes in the offsets [first, end), for the log."""
    return (
        f"offsets {first} to {end}: marking {number(counts.marked)}, unmarking "
        f"{number(counts.unmarked)}, quarantining {number(counts.quarantined)} records"
    )


def _moved_back(current: Topic, plan: MarkPlan) -> PropertyChanges:
    """Move first unmarked offsets back, so that the cleaner stays below records marked again.

    If this run is killed, the next one marks from there.
    """
    asked = [FromOffset(partition, offset) for partition, offset in plan.again_from.items()]
    changes: dict[str, str | None] = {}
    for partition, offset in _again_from(current, asked).items():
        state = current.partitions[partition]
        moved: dict[str, Any] = {
            "first_unmarked_offset": min(state.first_unmarked_offset, offset),
        }
        changes |= to_properties(partition, state.moved(**moved))
    return changes


def _marked_topic(
    current: Topic, plan: MarkPlan, searches: Mapping[int, Search] = MappingProxyType({})
) -> PropertyChanges:
    marked: dict[int, PartitionState] = {}
    for partition, (first, end) in plan.ranges.items():
        state = current.partitions[partition]
        planned = min(first, plan.topic.partitions[partition].first_unmarked_offset)
        if state.first_unmarked_offset < planned:
            raise CommitConflictError(
                f"expected {current.name} partition {partition} to be marked up to offset "
                f"{planned}, found {state.first_unmarked_offset}: another run marks records again. "
                "Run the job again after it"
            )
        first_unmarked = max(state.first_unmarked_offset, end)
        marked[partition] = state.moved(first_unmarked_offset=first_unmarked)
    for partition, of_partition in searches.items():
        state = marked.get(partition) or current.partitions[partition]
        marked[partition] = state.moved(deletes=of_partition.added_to(state))
    if current.deadline is None:
        marked = {p: state.moved(deletes=()) for p, state in marked.items()}
    return {n: v for p, state in marked.items() for n, v in to_changes(p, state).items()}


def _check(args: Namespace) -> None:
    if args.from_offset and len(args.topic) > 1:
        raise RequestError(f"expected one --topic with --from-offset, found {len(args.topic)}")


def _asked(args: Namespace) -> dict[TopicName, Parameters]:
    asked = {"from_offset": [str(again) for again in args.from_offset]}
    return dict.fromkeys(args.topic, asked)


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> MarkPlan:
    topic = load_settled(spark, name, "mark_tombstones", request)
    again = [parse_from_offset(text) for text in request.parameters["from_offset"]]
    run = RunOf(request.given.run_id, to_datetime(request.now_ms))
    return replace(plan_mark(topic, again, request.bounds), run=run)


def _execute(plan: MarkPlan) -> JobOutcome:
    assert plan.run is not None
    return execute_mark(plan, plan.run)


# A run without --from-offset follows the topic's settings; with it, a person asks.
MARK_TOMBSTONES = Job(
    "mark_tombstones",
    _plan,
    _execute,
    asked=_asked,
    check=_check,
    is_by_hand=lambda args: bool(args.from_offset),
)
