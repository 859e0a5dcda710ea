"""mark_tombstones: find the tombstones among the records that were not marked yet (KIP-87).

A record is a tombstone by its null value, by bit 5 of its own attributes, by a header or by a
predicate; in all cases except the first it may carry a value. Order: move first unmarked offsets
back where records are to be marked again, quarantine records that the log must not hold, write
marks, move first unmarked offsets forward.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

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
from ebbtide.state.topic_state import to_properties
from ebbtide.text import number

NULL_VALUE = "null_value"
FLAG = "flag"
HEADER = "header"
PREDICATE = "predicate"
# In the order in which they are checked; the first that holds is kept.
REASONS = (NULL_VALUE, FLAG, HEADER, PREDICATE)


class TombstoneRule(NamedTuple):
    """A topic's rule for tombstones.

    `marked_by` is why a record is a tombstone whatever its value; null where it is none.
    `may_match` is true of every record that is a tombstone by this or by its value, and of
    those already marked. It selects the files to read, so it uses no values unless it must.
    `is_plain` says that only a null value and the flag make a tombstone.
    """

    marked_by: Column
    may_match: Column
    is_explicit: bool
    predicate: Expression | None
    is_plain: bool

    def failing_clearly(self) -> AbstractContextManager[None]:
        """Turn the predicate's failure on a record into a ConfigurationError that names it."""
        return nullcontext() if self.predicate is None else self.predicate.failing_clearly()


def tombstone_rule(spark: SparkSession, config: TopicConfig) -> TombstoneRule:
    """Return the topic's rule; ConfigurationError for an invalid predicate."""
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
_NO_BATCH = -2  # none can be told, as the batches table lacks the record's batch
_NULL_VALUE, _FLAG = (REASONS.index(reason) + 1 for reason in (NULL_VALUE, FLAG))
_READ = ("offset", "value", "attributes", "is_tombstone", "tombstone_by")

# The offsets of a segment's records that change, by their new mark; by (partition, segment).
MarkChanges = Mapping[tuple[int, int], Mapping[int, BitMap64]]


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of a partition's records that change, and how."""

    marked: int = 0
    by_rule: dict[str, int] = field(default_factory=dict)
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
    for place, name in enumerate(REASONS, 1):
        code = F.when(reason == name, F.lit(place)).otherwise(code)
    return code


# Write new marks: only the changed rows are written anew, into one more file of their segment.
#
# The other rows are not touched (docs/adr/0004).


Codes = npt.NDArray[np.int8]


class _MarkedSegment(NamedTuple):
    """The offsets of one segment's changed records by their new mark, and where their rows go."""

    unit: SegmentFiles
    offsets: Mapping[int, BitMap64]
    path: str


def prepare_marks(topic: Topic, snapshot: int, changes: MarkChanges) -> Commit:
    """Write the changed rows anew; those for the quarantine only go."""
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
    written = map_segments(spark, _write_marked, work, count_rows(units), "writes marks of")
    return prepare_row_delta(spark, table, ends_of(units), RowDelta.of_all(written), {})


def _write_marked(work: _MarkedSegment) -> RowDelta:
    """Write the rows that stay with their new marks, and return what replaces the old ones."""
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
        mine = mine[becomes[mine] != TO_QUARANTINE]
        if len(mine):
            tables.append(_marked(read_rows(work.unit, file, positions[mine]), becomes[mine]))
    if not tables:
        return RowDelta(deletions)
    write_rows(work.unit.store, work.path, together(tables, work.unit.columns))
    return RowDelta(deletions, [Replacement(work.unit, work.path)])


def _in_order(by_code: Mapping[int, BitMap64]) -> tuple[Offsets, Codes]:
    """Return all offsets, ascending, and the new mark of each."""
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
    """Find the positions of the changed records among those of the segment."""
    at: Offsets = np.searchsorted(offsets, wanted)
    if at[-1] >= len(offsets) or np.any(offsets[at] != wanted):
        raise SafetyError(
            f"expected the records of segment {work.unit.segment} of partition "
            f"{work.unit.partition} as they were found, found other offsets; run the job again"
        )
    return at


QUARANTINED = "quarantined"  # in a plan's summary, as if by a rule

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MarkPlan(Proposal):
    """The offsets to look at, and the records there whose mark changes or that must go."""

    topic: Topic
    ranges: Mapping[int, tuple[int, int]]
    again_from: Mapping[int, int]  # where partitions are marked again from
    snapshot: int | None  # the one that was looked at; None where the table has none
    rule: TombstoneRule
    changes: MarkChanges = field(default_factory=dict)
    run: RunOf | None = None  # what the quarantine says of it

    @property
    def counts(self) -> dict[int, Counts]:
        """The number of records that change, by partition."""
        return count_changes(self.changes, self.topic.partitions)

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets that go to the quarantine."""
        nothing = dict.fromkeys(self.topic.partitions, BitMap64())
        return {**nothing, **self.to_quarantine}

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return where the log ended, beyond which an execution marks nothing."""
        return log_ends(self.topic)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return how many records go to the quarantine: these are all that leave the log."""
        removes = self.removes()
        return {
            p: partition_summary(
                LeavingRows(len(offsets)), {QUARANTINED: RuleNumbers(records=len(offsets))}
            )
            for p, offsets in removes.items()
        }

    def marked(self) -> Topic:
        """Return the topic with the state that it has once all is marked."""
        changes = _marked_topic(self.topic, self)
        return replace(self.topic, properties=changed(self.topic.properties, changes))

    @property
    def to_quarantine(self) -> dict[int, BitMap64]:
        """The offsets of records that go to quarantine, by partition."""
        going: dict[int, BitMap64] = {}
        for (partition, _), by_code in self.changes.items():
            if offsets := by_code.get(TO_QUARANTINE):
                going[partition] = going.get(partition, BitMap64()) | offsets
        return going

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
                "note": quarantine_note(outcome.rows_removed, table),
            }
        return outcome


def plan_mark(
    topic: Topic, again: Sequence[FromOffset] = (), bounds: Bounds | None = None
) -> MarkPlan:
    """Find the tombstones in [first unmarked offset, log end offset) of each partition.

    `again` says where to begin before that, `bounds` are a kept plan's; ConfigurationError for a
    rule that cannot be.
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
    """Mark what the plan found, then move the first unmarked offsets past it."""
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
    if plan.ranges:
        compare_and_set(topic, Step.MARK_STATE, lambda current: _marked_topic(current, plan))
    return outcome


def _forbidden(plan: MarkPlan) -> Forbidden:
    """Return the records that the plan takes to quarantine."""
    assert plan.snapshot is not None
    changed = changed_records(plan.topic, plan.rule, plan.ranges, plan.snapshot)
    last_offsets: dict[int, int] = {}
    for (partition, _), by_code in plan.changes.items():
        if offsets := by_code.get(TO_QUARANTINE):
            last_offsets[partition] = max(last_offsets.get(partition, 0), offsets.max())
    count = sum(counts.quarantined for counts in plan.counts.values())
    return Forbidden(changed.where(F.col("becomes") == TO_QUARANTINE), count, last_offsets)


def _described(first: int, end: int, counts: Counts) -> str:
    """Describe the offsets [first, end) to be marked, for the log."""
    return (
        f"offsets {first} to {end}: marks {number(counts.marked)}, unmarks "
        f"{number(counts.unmarked)}, takes {number(counts.quarantined)} to quarantine"
    )


def _moved_back(current: Topic, plan: MarkPlan) -> PropertyChanges:
    """Move first unmarked offsets back, so that the cleaner stays below what is marked again.

    The moved state also lets the next run go on with a killed one.
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


def _marked_topic(current: Topic, plan: MarkPlan) -> PropertyChanges:
    changes: dict[str, str | None] = {}
    for partition, (first, end) in plan.ranges.items():
        state = current.partitions[partition]
        planned = min(first, plan.topic.partitions[partition].first_unmarked_offset)
        if state.first_unmarked_offset < planned:
            raise CommitConflictError(
                f"expected {current.name} partition {partition} to be marked up to {planned}, "
                f"found {state.first_unmarked_offset}: another run marks it again; run the job "
                "again when it is done"
            )
        first_unmarked = max(state.first_unmarked_offset, end)
        changes |= to_properties(partition, state.moved(first_unmarked_offset=first_unmarked))
    return changes


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


# A night follows the settings; who marks again asks for something by hand.
MARK_TOMBSTONES = Job(
    "mark_tombstones",
    _plan,
    _execute,
    asked=_asked,
    check=_check,
    is_by_hand=lambda args: bool(args.from_offset),
)
