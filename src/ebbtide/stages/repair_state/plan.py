"""Plan the repair of a topic: what others did to it, and the way back or on from there.

A topic that others have changed stands still, so that an execution finds what a kept plan has
found: no other change, the same way, the same snapshots to go back to, the same state to set. A
killed execution leaves less to do, never more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import PlanExceededError, RequestError, StateError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.foreign_changes import Look, look_at
from ebbtide.iceberg.history import newest_untouched
from ebbtide.iceberg.topics import Topic, load, load_without_state
from ebbtide.log.plans.summary import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    partition_summary,
)
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.rebuilding import Asked, rebuilt_states
from ebbtide.log.state.topic_state import PREFIX, PartitionState, to_properties
from ebbtide.runs.proposals import Proposal
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.planned_rows import PlannedRows, add_to
from ebbtide.stages.repair_state.repaired_rows import (
    StrayRows,
    doubled_rows,
    find_removals,
    find_taken_back,
    read_log_in_tables,
)
from ebbtide.stages.unfinished import left_to_its_job

LONGEST = 60  # of a value in the plan; the segments of a long log are a hash
MAX_NAMED = 5  # differences of an error
TAKE_BACK, KEEP, NONE = "take back", "keep", "none"
NOTHING = (
    "nobody else has changed the topic; there is nothing to repair. keep_changes looks further, "
    "for rows that are there twice and for work that a killed job has left"
)


@dataclass(frozen=True, slots=True)
class RepairPlan(Proposal):
    """The changes found in a topic, and its repair.

    `targets` are the snapshots that tables go back to, where the change is taken back; `taken_back`
    are the records that the log loses by that. `states` take the place of the topic's where the
    change is kept.
    """

    topic: Topic
    now_ms: int
    what: list[str]  # what others did, a line each
    way: str
    targets: dict[str, int] = field(default_factory=dict)
    removals: dict[str, StrayRows] = field(default_factory=dict)
    states: dict[int, PartitionState] = field(default_factory=dict)
    taken_back: Mapping[int, PlannedRows] = field(default_factory=dict)
    problem: str | None = None  # why the change cannot be taken back

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan, and the error of one that cannot be executed."""
        topic: dict[str, Any] = {"found": "; ".join(self.what) or "nothing", "way": self.way}
        if not self.what:
            topic["note"] = NOTHING
        for table, snapshot in self.targets.items():
            topic[f"{table}_back_to_snapshot"] = str(snapshot)
        if self.problem:
            topic["cannot_be_taken_back"] = self.problem
        outcome = JobOutcome(topic=topic, error=self.refusal())
        for partition in sorted({*self.topic.partitions, *self.states}):
            outcome.partitions[partition] = self._numbers(partition)
        outcome.rows_removed = sum(of.total for of in self.removals.values())
        return outcome

    def refusal(self) -> RequestError | None:
        """Return the error where the requested way is not possible."""
        if not self.problem:
            return None
        return RequestError(
            f"expected to take back what was done to {self.topic.name}, found that this is not "
            f"possible: {self.problem}; repair it with keep_changes, which leaves the tables as "
            "they are and rebuilds the state from them"
        )

    def decisions(self) -> dict[str, Any]:
        """Return what the repair does beside taking rows out, as a plan's parameters keep it."""
        return {
            "found": self.what,
            "way": self.way,
            "back_to": {table: str(snapshot) for table, snapshot in self.targets.items()},
            "sets": {str(p): _in_short(state) for p, state in self.states.items()},
        }

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the records that are taken out, if the order asked for them."""
        return {partition: of.offsets for partition, of in self._leaving().items()}

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what is taken out and why, and what of the state is set."""
        leaving, summaries = self._leaving(), {}
        for partition in sorted({*leaving, *self.states}):
            rows = LeavingRows()
            add_to(rows, leaving.get(partition, PlannedRows()))
            rules = self._rules(partition, rows)
            rows.records = sum(of["records"] for of in rules.values())
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
        """Return how many rows leave by which reason."""
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
            f"{name} {value}" + (f", it is {told[name]}" if name in told else "")
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
    """Return a partition's state by the names of its properties, long values as their SHA-256."""
    return {
        name.removeprefix(f"{PREFIX}0."): value
        if len(value) <= LONGEST
        else f"sha-256 {hashlib.sha256(value.encode()).hexdigest()[:16]}"
        for name, value in to_properties(0, state).items()
    }


def check_as_planned(plan: RepairPlan, planned: Mapping[str, Any]) -> None:
    """Raise PlanExceededError where the repair would change what the plan does not say.

    `planned` are the parameters of the kept plan.
    """
    if differences := list(_differences(plan.decisions(), planned)):
        rest = len(differences) - MAX_NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        raise PlanExceededError(
            f"expected to repair {plan.topic.name} as its plan says, found since it was made: "
            f"{'; '.join(differences[:MAX_NAMED])}{more}; nothing was changed, make a new plan"
        )


def _differences(found: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the repair would change otherwise; nothing where nothing is left to repair."""
    if not found["found"]:
        return
    for line in found["found"]:
        if line not in planned["found"]:
            yield f"another change of others, {line}"
    if found["way"] != planned["way"]:
        yield f"the way {found['way']} instead of {planned['way']}"
    for table, snapshot in found["back_to"].items():
        if (target := planned["back_to"].get(table, "where it is")) != snapshot:
            yield f"the {table} table back at snapshot {snapshot} instead of {target}"
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
    asked: Asked,
    *,
    keeps: bool,
    keeps_offsets: bool = False,
) -> RepairPlan:
    """Plan what to repair and how, and find the rows that are taken out.

    Where the change is taken back, these are worked out only for `keeps_offsets`.
    """
    plan = find_way(spark, name, now_ms, asked, keeps=keeps)
    if plan.way == KEEP:
        removals = find_removals(plan.topic, plan.states, keeps_offsets=keeps_offsets)
        return replace(plan, removals=removals)
    if keeps_offsets and "records" in plan.targets:
        return replace(plan, taken_back=find_taken_back(plan.topic, plan.targets["records"]))
    return plan


def find_way(
    spark: SparkSession, name: TopicName, now_ms: int, asked: Asked, *, keeps: bool
) -> RepairPlan:
    """Find what others did, and decide how that is repaired; the rows are left to `plan_repair`.

    `keeps` leaves the tables as others left them instead of taking their change back. Where the
    state itself is lost or was edited, there is no other way. It also finds what no stranger has
    done: rows that are there twice, and work that waits for a job that may never come.
    """
    try:
        topic = load(spark, name)
    except StateError as error:
        return _rebuilding(load_without_state(spark, name), now_ms, asked, [str(error)])
    looks = look_at(topic)
    what = [f"{look.table.what}: {line}" for look in looks for line in look.foreign]
    if keeps and not what:  # a foreign change is repaired with all of it
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


def left_behind(topic: Topic) -> list[str]:
    """Return what ebbtide's own jobs have left and a repair takes out, a line each."""
    works = sorted(left_to_its_job(topic))
    return [*doubled_rows(topic), *(f"state: {work}, begun and not finished" for work in works)]


def _before_change(spark: SparkSession, look: Look) -> int | str:
    """Return the snapshot to go back to, or why there is none."""
    if look.seen is None or look.seen.snapshot is None:
        return "it had no rows of ebbtide's before, so there is no snapshot to go back to"
    return newest_untouched(open_table(spark, look.table.table), look.seen.snapshot)


def _rebuilding(topic: Topic, now_ms: int, asked: Asked, what: list[str]) -> RepairPlan:
    states = rebuilt_states(topic.partitions, read_log_in_tables(topic), asked, now_ms)
    return RepairPlan(topic, now_ms, what, KEEP, states=states)
