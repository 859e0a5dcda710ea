"""repair_state: repair a topic after a foreign change, by rollback or by accepting the change.

A blocked topic does not change, so an execution must find the same changes, method, snapshots and
state as its stored plan. After a killed execution it finds less to do, never more.
"""

from __future__ import annotations

import hashlib
import logging
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import PlanExceededError, RequestError, StateError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.erasures import erasures_on, named_by
from ebbtide.iceberg.file_changes import Deleted, delete_positions, forget_lost
from ebbtide.iceberg.foreign_changes import Counted, Look, count_own, counted_anew, look_at
from ebbtide.iceberg.history import newest_untouched
from ebbtide.iceberg.in_flight import CleaningRound, PartitionRound, new_round_id
from ebbtide.iceberg.state_table import overwrite_state
from ebbtide.iceberg.topics import Topic, current_snapshot, load, load_without_state, table_ids
from ebbtide.jobs.clean_log.lost_round import lost_headers, rebuild_headers
from ebbtide.jobs.removed_rows import PlannedRows, add_to
from ebbtide.jobs.unfinished import check_readable, left_to_its_job, settle
from ebbtide.ledger.erasure_secrets import known_secret
from ebbtide.ledger.own_tables import REPORTED
from ebbtide.ledger.plans import LeavingRows, PartitionSummary, RuleNumbers, partition_summary
from ebbtide.numbers import MAX_OFFSET
from ebbtide.runner.holds import keep_removed
from ebbtide.runner.job import Job, Parameters, PlanRequest, Proposal, Touched
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.undo_points import note_before
from ebbtide.settings.config import TopicConfig
from ebbtide.settings.names import TopicName
from ebbtide.spark.expressions import number_sets
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.rebuilding import LogInTables, RepairInput, parse_asked, rebuilt_states
from ebbtide.state.topic_state import (
    PREFIX,
    PRIMARY,
    REPAIR,
    REPLICA_OF,
    TABLES,
    PartitionState,
    readable_states,
    settings_of,
    state_of,
    to_properties,
)

BEYOND, COPY, NO_BATCH, ERASED = "beyond the end", "copies", "without a batch", "erased"


class StrayRows(NamedTuple):
    """Rows of a table that the repair removes."""

    by_reason: dict[int, dict[str, int]]  # number of rows, by partition and reason
    positions: dict[str, BitMap64]  # by file
    leaving: Mapping[int, PlannedRows] = {}  # the records, if the plan lists offsets
    lost: Mapping[int, BitMap64] = {}  # offsets of which no row is retained

    @property
    def total(self) -> int:
        """The number of rows to remove."""
        return sum(len(positions) for positions in self.positions.values())


def read_log_in_tables(topic: Topic) -> dict[int, LogInTables]:
    """Read each partition's log start, log end and segments from its batch rows."""
    if current_snapshot(topic.spark, topic.name.batches_table) is None:
        return {}
    rows = (
        topic.spark.table(topic.name.batches_table)
        .groupBy("partition", "segment")
        .agg(
            F.min("base_offset").alias("start"),
            F.max("last_offset").alias("last"),
            F.max("max_timestamp_ms").alias("newest_ms"),
            F.max("max_event_time_ms").alias("event_ms"),
        )
        .orderBy("partition", "segment")
        .collect()
    )
    held: dict[int, LogInTables] = {}
    for row in rows:
        one = LogInTables(
            row["start"],
            row["last"] + 1,
            (SegmentStart(row["segment"], -1 if row["newest_ms"] is None else row["newest_ms"]),),
            -1 if row["event_ms"] is None else row["event_ms"],
        )
        before = held.get(row["partition"], one)
        held[row["partition"]] = LogInTables(
            min(before.start, one.start),
            max(before.end, one.end),
            one.segments if before is one else before.segments + one.segments,
            max(before.max_event_time_ms, one.max_event_time_ms),
        )
    return held


def doubled_rows(topic: Topic) -> list[str]:
    """Return one line per table and partition with duplicate rows, with their number."""
    lines: list[str] = []
    for what, table, offset in (
        ("records", topic.name.records_table, "offset"),
        ("batches", topic.name.batches_table, "base_offset"),
    ):
        if current_snapshot(topic.spark, table) is None:
            continue
        counts = (
            topic.spark.table(table)
            .groupBy("partition")
            .agg((F.count(offset) - F.countDistinct(offset)).alias("copies"))
            .where("copies > 0")
            .orderBy("partition")
        )
        lines += [
            f"{what}: {row['copies']} duplicate rows in partition {row['partition']}"
            for row in counts.collect()
        ]
    return lines


def find_removals(
    topic: Topic, states: Mapping[int, PartitionState], *, keeps_offsets: bool = False
) -> dict[str, StrayRows]:
    """Find rows beyond the log end, duplicates, rows without a batch, and erased rows."""
    spark, name = topic.spark, topic.name
    ends = spark.createDataFrame(
        pa.table(
            {
                "partition": pa.array(states, pa.int32()),
                "end": pa.array([state.log_end_offset for state in states.values()], pa.int64()),
            }
        )
    )
    removals = {}
    if current_snapshot(spark, name.batches_table) is not None:
        batches = _numbered(topic, name.batches_table, "base_offset").join(ends, "partition")
        reason = F.when(F.col("base_offset") >= F.col("end"), BEYOND).when(F.col("copy") > 1, COPY)
        removals["batches"] = _removal(batches, reason, keeps_offsets=False)
    if current_snapshot(spark, name.records_table) is not None:
        told = spark.table(name.batches_table).select(
            "partition", F.col("base_offset").alias("batch"), F.lit(True).alias("is_told")
        )
        records = _with_erased(topic, _numbered(topic, name.records_table, "offset"))
        records = records.join(ends, "partition").join(
            told.distinct(), ["partition", "batch"], "left"
        )
        reason = (
            F.when(F.col("offset") >= F.col("end"), BEYOND)
            .when(F.col("copy") > 1, COPY)
            .when(F.col("is_told").isNull(), NO_BATCH)
            .when(F.col("offset") < F.col("erased_before"), ERASED)
        )
        removals["records"] = _removal(records, reason, keeps_offsets=keeps_offsets)
    return removals


def find_taken_back(topic: Topic, snapshot: int) -> dict[int, PlannedRows]:
    """Find the records that the log loses by a rollback of their table to a snapshot."""
    table = topic.name.records_table
    versions = ("", f" VERSION AS OF {snapshot}")
    current, before = (
        number_sets(
            topic.spark.sql(f"SELECT `partition`, offset FROM {table}{version}"),
            ["partition"],
            "offset",
        )
        for version in versions
    )
    leaving = {p: numbers - before.get((p,), BitMap64()) for (p,), numbers in current.items()}
    return {partition: PlannedRows(offsets) for partition, offsets in leaving.items() if offsets}


def _numbered(topic: Topic, table: str, offset: str) -> DataFrame:
    """Return the rows with file and position; the oldest row of an offset has copy number 1."""
    return topic.spark.sql(
        f"SELECT *, _file AS file, _pos AS pos, row_number() OVER (PARTITION BY `partition`, "
        f"{offset} ORDER BY _last_updated_sequence_number, _file, _pos) AS copy FROM {table}"
    )


def _with_erased(topic: Topic, records: DataFrame) -> DataFrame:
    """Add `erased_before`: the offset below which an erasure removed the record's key."""
    rows, secret = erasures_on(topic), known_secret(topic.erased_under)
    if rows is None:
        return records.withColumn("erased_before", F.lit(-1))
    erased = (
        rows.where(F.col("status") == REPORTED)
        .where(F.col("out_of_table_at").isNotNull() & F.col("tombstone_offset").isNotNull())
        .groupBy("partition", "name")
        .agg(F.max("tombstone_offset").alias("erased_before"))
    )
    names = {"sha256": F.sha2("key", 256)}
    if secret is not None:
        names["hmac"] = named_by(secret, F.col("key"))
    for column, name in names.items():
        of_name = erased.withColumnsRenamed({"name": column, "erased_before": f"before_{column}"})
        records = records.withColumn(column, name)
        records = records.join(F.broadcast(of_name), ["partition", column], "left")
    before = [F.coalesce(f"before_{column}", F.lit(-1)) for column in names]
    return records.withColumn("erased_before", F.greatest(F.lit(-1), *before))


def _removal(rows: DataFrame, reason: Column, *, keeps_offsets: bool) -> StrayRows:
    stray = rows.withColumn("reason", reason).where(F.col("reason").isNotNull())
    by_reason: dict[int, dict[str, int]] = {}
    by_file: dict[str, BitMap64] = {}
    of_groups = number_sets(stray, ["file", "partition", "reason"], "pos")
    for (file, partition, why), positions in of_groups.items():
        of_partition = by_reason.setdefault(partition, {})
        of_partition[why] = of_partition.get(why, 0) + len(positions)
        of_file = by_file.setdefault(file, BitMap64())
        of_file |= positions
    if not keeps_offsets:
        return StrayRows(by_reason, by_file)
    offsets = number_sets(stray, ["partition", "reason"], "offset")
    all_of, lost = dict[int, BitMap64](), dict[int, BitMap64]()
    for (partition, why), numbers in offsets.items():
        all_of[partition] = all_of.get(partition, BitMap64()) | numbers
        if why != COPY:  # the first row of a copy is retained, or removed for another reason
            lost[partition] = lost.get(partition, BitMap64()) | numbers
    return StrayRows(by_reason, by_file, _described(stray, all_of), lost)


def _described(stray: DataFrame, offsets: Mapping[int, BitMap64]) -> dict[int, PlannedRows]:
    """Describe the records by their offsets, first and last event time, and two keys."""
    times = [F.unix_millis(side("event_time")) for side in (F.min, F.max)]
    keys = [side("key") for side in (F.min, F.max)]
    described = {}
    for partition, oldest, newest, *of_keys in (
        stray.groupBy("partition").agg(*times, *keys).collect()
    ):
        described[partition] = PlannedRows(
            offsets[partition],
            tuple(ms for ms in (oldest, newest) if ms is not None),
            tuple(dict.fromkeys(bytes(key) for key in of_keys if key is not None)),
        )
    return described


def remove_rows(topic: Topic, table: str, removal: StrayRows, step: Step) -> Deleted:
    """Delete the rows by one commit."""
    ends = dict.fromkeys(removal.by_reason, MAX_OFFSET)
    return delete_positions(topic.spark, table, ends, removal.positions, step)


def rebuild_all_headers(topic: Topic, now_ms: int) -> int:
    """Rebuild the batch headers that count missing records, and return their number."""
    whole_log = _whole_log(topic.config, topic.partitions, now_ms)
    return sum(rebuild_headers(topic, changes) for changes in lost_headers(topic, whole_log))


def _whole_log(
    config: TopicConfig, states: Mapping[int, PartitionState], now_ms: int
) -> CleaningRound:
    """Return a cleaner round that covers the whole log of each partition."""
    parts = {
        partition: PartitionRound(
            log_start_offset=state.log_start_offset,
            first_segment_offset=state.first_segment,
            first_dirty_offset=state.log_start_offset,
            first_uncleanable_offset=state.log_end_offset,
            is_idle=True,
        )
        for partition, state in states.items()
    }
    return CleaningRound(
        id=new_round_id(),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        segment_bytes=config.segment_bytes,
        records_snapshot=-1,
        batches_snapshot=-1,
        partitions=parts,
    )


LONGEST = 60  # characters of a value in the plan; a longer one is stored as a hash
MAX_NAMED = 5  # differences named in an error
TAKE_BACK, KEEP, NONE = "take back", "keep", "none"
NOTHING = (
    "found no foreign change, so there is nothing to repair. keep_changes also looks for duplicate "
    "rows and for work that a killed job left"
)


@dataclass(frozen=True, slots=True)
class RepairPlan(Proposal):
    """The foreign changes of a topic, and their repair."""

    topic: Topic
    now_ms: int
    what: list[str]  # one line per change
    way: str
    # If the change is rolled back: each table's snapshot, and the records that the log loses.
    targets: dict[str, int] = field(default_factory=dict)
    taken_back: Mapping[int, PlannedRows] = field(default_factory=dict)
    # If the change is accepted: the rows to remove, and the partitions' new states.
    removals: dict[str, StrayRows] = field(default_factory=dict)
    states: dict[int, PartitionState] = field(default_factory=dict)
    problem: str | None = None  # why the change cannot be rolled back

    def outcome(self) -> JobOutcome:
        """Return the plan's numbers, with an error if it cannot be executed."""
        topic: dict[str, Any] = {
            "foreign_changes": "; ".join(self.what) or "nothing",
            "method": self.way,
        }
        if not self.what:
            topic["note"] = NOTHING
        for table, snapshot in self.targets.items():
            topic[f"{table}_back_to_snapshot"] = str(snapshot)
        if self.problem:
            topic["cannot_be_rolled_back"] = self.problem
        outcome = JobOutcome(topic=topic, error=self.refusal())
        for partition in sorted({*self.topic.partitions, *self.states}):
            outcome.partitions[partition] = self._numbers(partition)
        if (removal := self.removals.get("records")) is not None:
            outcome.rows_removed = removal.total
        return outcome

    def refusal(self) -> RequestError | None:
        """Return the error if a rollback is requested but not possible."""
        if not self.problem:
            return None
        return RequestError(
            f"expected a foreign change of {self.topic.name} that can be rolled back, found: "
            f"{self.problem}. Nothing was changed. Repair the topic with keep_changes, which "
            "accepts the change and rebuilds the state from the tables"
        )

    def decisions(self) -> dict[str, Any]:
        """Return the repair's decisions, except removed rows, as parameters of a stored plan."""
        return {
            "found": self.what,
            "way": self.way,
            "back_to": {table: str(snapshot) for table, snapshot in self.targets.items()},
            "sets": {str(p): _in_short(state) for p, state in self.states.items()},
        }

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the records to remove, if the request asked for them."""
        return {partition: rows.offsets for partition, rows in self._leaving().items()}

    def loses(self) -> Mapping[int, BitMap64]:
        """Return the offsets that lose all their rows; a duplicate's first row is retained."""
        removal = self.removals.get("records")
        return self.removes() if removal is None else removal.lost

    def summary(self) -> dict[int, PartitionSummary]:
        """Return, by partition, the rows to remove by reason and the new values of the state."""
        leaving, summaries = self._leaving(), {}
        for partition in sorted({*leaving, *self.states}):
            rows = LeavingRows()
            add_to(rows, leaving.get(partition, PlannedRows()))
            rules = self._rules(partition, rows)
            rows.records = sum(numbers["records"] for numbers in rules.values())
            summaries[partition] = partition_summary(
                rows,
                rules,
                shows_keys=self.topic.config.plans_show_keys,
                sets=self._sets(partition),
            )
        return summaries

    def _leaving(self) -> Mapping[int, PlannedRows]:
        removal = self.removals.get("records")
        return self.taken_back if removal is None else removal.leaving

    def _rules(self, partition: int, rows: LeavingRows) -> dict[str, RuleNumbers]:
        """Return the number of rows to remove, by reason."""
        removal = self.removals.get("records")
        if removal is None:
            return {self.way: RuleNumbers(records=rows.records)}
        of_partition = removal.by_reason.get(partition, {})
        return {reason: RuleNumbers(records=rows) for reason, rows in of_partition.items()}

    def _sets(self, partition: int) -> list[str]:
        """Return the fields of the partition's state that change, each with its new value."""
        if partition not in self.states:
            return []
        before = self.topic.partitions.get(partition)
        told = {} if before is None else _in_short(before)
        made = _in_short(self.states[partition])
        return [
            f"{name} {value}" + (f" instead of {told[name]}" if name in told else "")
            for name, value in made.items()
            if told.get(name) != value
        ]

    def _numbers(self, partition: int) -> dict[str, Any]:
        before, after = self.topic.partitions.get(partition), self.states.get(partition)
        state = after or before
        assert state is not None
        numbers: dict[str, Any] = {
            "log_start_offset": state.log_start_offset,
            "low_watermark": self.topic.low_watermark(state.log_start_offset),
            "log_end_offset": state.log_end_offset,
        }
        for table, removal in self.removals.items():
            numbers[f"{table}_removed"] = dict(removal.by_reason.get(partition, {}))
        if after is not None and before is not None and after != before:
            moved = [n for n in ("log_end_offset", "segments") if _differ(before, after, n)]
            numbers["cleaned_again_from"] = after.first_dirty_offset
            numbers["rebuilt"] = ", ".join(moved) or "-"
        return numbers


def _differ(before: PartitionState, after: PartitionState, name: str) -> bool:
    return bool(getattr(before, name) != getattr(after, name))


def _in_short(state: PartitionState) -> dict[str, str]:
    """Return a partition's state by property name, with a hash for each long value."""
    return {
        name.removeprefix(f"{PREFIX}0."): value
        if len(value) <= LONGEST
        else f"sha-256 {hashlib.sha256(value.encode()).hexdigest()[:16]}"
        for name, value in to_properties(0, state).items()
    }


def check_as_planned(plan: RepairPlan, planned: Mapping[str, Any]) -> None:
    """Raise PlanExceededError if the repair differs from the stored plan.

    `planned` has the parameters of the stored plan.
    """
    if differences := list(_differences(plan.decisions(), planned)):
        rest = len(differences) - MAX_NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        raise PlanExceededError(
            f"expected the planned repair of {plan.topic.name}, found since the plan was made: "
            f"{'; '.join(differences[:MAX_NAMED])}{more}. Nothing was changed. Make a new plan"
        )


def _differences(found: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[str]:
    """Yield each difference between repair and plan; none if nothing is left to repair."""
    if not found["found"]:
        return
    for line in found["found"]:
        if line not in planned["found"]:
            yield f"another foreign change, {line}"
    if found["way"] != planned["way"]:
        yield f"the way {found['way']} instead of {planned['way']}"
    for table, snapshot in found["back_to"].items():
        if (target := planned["back_to"].get(table, "none")) != snapshot:
            yield f"a rollback of the {table} table to snapshot {snapshot} instead of {target}"
    for partition in sorted({*found["sets"], *planned["sets"]}, key=int):
        both = (answer["sets"].get(partition, {}) for answer in (found, planned))
        yield from _state_differences(partition, *both)


def _state_differences(
    partition: str, found: Mapping[str, str], planned: Mapping[str, str]
) -> Iterator[str]:
    for name in dict.fromkeys([*found, *planned]):
        if found.get(name) != planned.get(name):
            instead = f"{found.get(name)} instead of {planned.get(name)}"
            yield f"{name} {instead} in partition {partition}"


def plan_repair(
    spark: SparkSession,
    name: TopicName,
    now_ms: int,
    asked: RepairInput,
    *,
    keeps: bool,
    keeps_offsets: bool = False,
) -> RepairPlan:
    """Plan the repair, and find the rows to remove.

    If the change is rolled back, the rows are found only with `keeps_offsets`.
    """
    plan = find_way(spark, name, now_ms, asked, keeps=keeps)
    if plan.way == KEEP:
        removals = find_removals(plan.topic, plan.states, keeps_offsets=keeps_offsets)
        return replace(plan, removals=removals)
    if keeps_offsets and "records" in plan.targets:
        return replace(plan, taken_back=find_taken_back(plan.topic, plan.targets["records"]))
    return plan


def find_way(
    spark: SparkSession, name: TopicName, now_ms: int, asked: RepairInput, *, keeps: bool
) -> RepairPlan:
    """Find the foreign changes and decide how to repair them; `plan_repair` finds the rows.

    `keeps` accepts the change instead of rolling it back. A state that is lost, edited or
    unreadable is always rebuilt. Without a foreign change, `keeps` also looks for duplicate rows
    and for work in flight that only its own job could finish.
    """
    try:
        topic = load(spark, name)
    except StateError as error:
        return _rebuilding(load_without_state(spark, name), now_ms, asked, [str(error)])
    try:
        check_readable(topic)
    except StateError as error:
        return _rebuilding(_with_what_is_readable(topic), now_ms, asked, _found_in(topic, error))
    looks = look_at(topic)
    what = _foreign(looks)
    if keeps and not what:  # the repair of a foreign change includes leftovers
        what = left_behind(topic)
    if not what:
        return RepairPlan(topic, now_ms, [], NONE)
    if keeps:
        return _rebuilding(topic, now_ms, asked, what)
    targets, problems = {}, []
    for look in looks:
        before_change = _before_change(spark, look) if look.foreign else None
        if isinstance(before_change, int):
            targets[look.table.what] = before_change
        elif before_change is not None:
            problems.append(f"{look.table.what}: {before_change}")
    problem = "; ".join(problems) or None
    return RepairPlan(topic, now_ms, what, TAKE_BACK, targets, problem=problem)


def _foreign(looks: Iterable[Look]) -> list[str]:
    return [f"{look.table.what}: {line}" for look in looks for line in look.foreign]


def _found_in(topic: Topic, error: StateError) -> list[str]:
    """Return why the state cannot be read, and the foreign changes that it still shows."""
    with suppress(StateError):
        return [str(error), *_foreign(look_at(topic))]
    return [str(error)]


def _with_what_is_readable(topic: Topic) -> Topic:
    """Return the topic with the partitions whose state can be read.

    The log start offsets of the other partitions are taken from the tables, as for a lost state.
    """
    states = readable_states(topic.properties)
    return Topic(topic.name, _without_work(topic, states), topic.spark)


def left_behind(topic: Topic) -> list[str]:
    """Return one line per leftover of ebbtide's own jobs that a repair removes."""
    works = sorted(left_to_its_job(topic))
    return [*doubled_rows(topic), *(f"state: {work} in flight" for work in works)]


def _before_change(spark: SparkSession, look: Look) -> int | str:
    """Return the snapshot to roll back to, or the reason why there is none."""
    if look.seen is None or look.seen.snapshot is None:
        return "ebbtide committed no rows before the change: there is no snapshot to roll back to"
    return newest_untouched(open_table(spark, look.table.table), look.seen.snapshot)


def _rebuilding(topic: Topic, now_ms: int, asked: RepairInput, what: list[str]) -> RepairPlan:
    states = rebuilt_states(topic.partitions, read_log_in_tables(topic), asked, now_ms)
    return RepairPlan(topic, now_ms, what, KEEP, states=states)


# repair_state: repair a topic after a foreign change of its rows or state.
#
# Either the change is rolled back, if the snapshots before it still exist: then no record is lost
# and the state does not change. Or the change is accepted, and the state is rebuilt from the tables
# so that later jobs remove no record that might be needed (docs/repair_state.md).


log = logging.getLogger(__name__)


def asked_parameters(asked: RepairInput, *, keeps: bool) -> dict[str, Any]:
    """Return the request for a repair, as parameters of a stored plan."""
    return {
        "keep_changes": keeps,
        "log_start_offset": {str(p): n for p, n in asked.log_start_offsets.items()},
        "max_event_time_ms": {str(p): n for p, n in asked.max_event_times_ms.items()},
    }


def propose_repair(spark: SparkSession, name: TopicName, request: PlanRequest) -> RepairPlan:
    """Plan the repair. Raise PlanExceededError if it differs from the stored plan to execute."""
    plan = plan_repair(
        spark,
        name,
        request.now_ms,
        _asked(request.parameters),
        keeps=request.parameters["keep_changes"],
        keeps_offsets=request.keeps_offsets,
    )
    settle(plan.topic, REPAIR, is_plan_only=request.is_plan_only)
    if request.bounds is not None:
        check_as_planned(plan, request.parameters)
    return plan


def execute_repair(plan: RepairPlan) -> JobOutcome:
    """Repair the topic. Raise RequestError if the requested rollback is not possible.

    After a killed repair, a new plan finds less to do.
    """
    for line in plan.what:
        log.warning("repairing: %s", line)
    if not plan.what:
        return plan.outcome()
    if (refusal := plan.refusal()) is not None:
        raise refusal
    for table in Counted.of(plan.topic.name):
        forget_lost(plan.topic.spark, table.table)
    outcome = _take_back(plan) if plan.way == TAKE_BACK else _keep(plan)
    # Removed rows, foreign or by the repair, are in snapshots until these expire.
    if kept := keep_removed(load(plan.topic.spark, plan.topic.name)):
        outcome.topic["copied_for_holds"] = kept
    return outcome


def _resolve(spark: SparkSession, name: TopicName, request: PlanRequest) -> Parameters:
    """Add the repair's decisions to the parameters, so that a stored plan has them."""
    asked = _asked(request.parameters)
    way = find_way(spark, name, request.now_ms, asked, keeps=request.parameters["keep_changes"])
    return {**request.parameters, **way.decisions()}


def _check(args: Namespace) -> None:
    args.asked = RepairInput(
        parse_asked("--log-start-offset", args.log_start_offset),
        parse_asked("--max-event-time-ms", args.max_event_time_ms),
    )


def _asked_of_topics(args: Namespace) -> dict[TopicName, Parameters]:
    return dict.fromkeys(args.topic, asked_parameters(args.asked, keeps=args.keep_changes))


REPAIR_STATE = Job(
    REPAIR,
    propose_repair,
    execute_repair,
    asked=_asked_of_topics,
    check=_check,
    is_by_hand=lambda _: True,
    needs_approval=lambda plan: bool(plan.what),
    resolve=_resolve,
    is_checked=False,
)


def _asked(parameters: Parameters) -> RepairInput:
    names = ("log_start_offset", "max_event_time_ms")
    return RepairInput(*({int(p): n for p, n in parameters[name].items()} for name in names))


def _take_back(plan: RepairPlan) -> JobOutcome:
    spark, outcome = plan.topic.spark, plan.outcome()
    steps = (Step.REPAIR_RECORDS, Step.REPAIR_BATCHES)
    for table, step in zip(Counted.of(plan.topic.name), steps, strict=True):
        if table.what in plan.targets:
            target = plan.targets[table.what]
            back = open_table(spark, table.table).java.manageSnapshots().setCurrentSnapshot(target)
            commit(step, back.commit)
            outcome.snapshot_ids.append(target)
    count_own(load(spark, plan.topic.name))
    return outcome


def _keep(plan: RepairPlan) -> JobOutcome:
    """Accept the change: remove rows first, then write the new state, which unblocks the topic."""
    topic, outcome = plan.topic, plan.outcome()
    repaired = Topic(topic.name, _without_work(topic, plan.states), topic.spark)
    note_before(repaired, Touched(repaired.partitions))  # no run before it can be undone
    steps = (Step.REPAIR_RECORDS, Step.REPAIR_BATCHES)
    for table, step in zip(Counted.of(topic.name), steps, strict=True):
        if table.what in plan.removals:
            deleted = remove_rows(topic, table.table, plan.removals[table.what], step)
            outcome.files_removed += len(deleted.files)
            outcome.snapshot_ids += deleted.snapshots
    outcome.topic["headers_rebuilt"] = rebuild_all_headers(repaired, plan.now_ms)
    state = {**state_of(repaired.properties), **counted_anew(repaired)}
    state[TABLES] = table_ids(topic.spark, topic.name)
    commit(Step.REPAIR_STATE, partial(overwrite_state, topic.spark, topic.name, state))
    return outcome


def _without_work(topic: Topic, states: Mapping[int, PartitionState]) -> dict[str, str]:
    """Return the properties with these states, without work in flight: its input has changed."""
    properties = settings_of(topic.properties)
    for name in (REPLICA_OF, PRIMARY):
        if name in topic.properties:
            properties[name] = topic.properties[name]
    for partition, state in states.items():
        properties |= to_properties(partition, state)
    return properties
