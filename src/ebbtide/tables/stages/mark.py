"""mark_tombstones: find the tombstones among what was not marked yet (KIP-87).

A record is one when its value is null, or when bit 5 of its own attributes is set; the second
may carry a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from ebbtide.log.state import to_properties
from ebbtide.tables.commits import Step, commit
from ebbtide.tables.runs import Outcome
from ebbtide.tables.topics import Changes, Topic, compare_and_set, current_snapshot

TOMBSTONE_FLAG = 0x20
NULL_VALUE = "null_value"
FLAG = "flag"
# Which records are tombstones, and why; SQL, since the same words count and update.
REASON = f"""CASE WHEN value IS NULL THEN '{NULL_VALUE}'
    WHEN (attributes & {TOMBSTONE_FLAG}) != 0 THEN '{FLAG}' END"""


@dataclass(frozen=True, slots=True)
class MarkPlan:
    """The offsets to look at and the tombstones found there, {partition: {reason: count}}."""

    topic: Topic
    ranges: dict[int, tuple[int, int]]
    found: dict[int, dict[str, int]] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        """The numbers of the plan."""
        outcome = Outcome()
        for partition in self.topic.partitions:
            by = self.found.get(partition, {})
            numbers = {"marked": sum(by.values()), "by": by}
            outcome.partitions[partition] = self.topic.offsets_of(partition) | numbers
        return outcome


def plan_mark(topic: Topic) -> MarkPlan:
    """Find the tombstones in [first unmarked offset, log end offset) of each partition."""
    ranges = {
        partition: (state.first_unmarked_offset, state.log_end_offset)
        for partition, state in topic.partitions.items()
        if state.first_unmarked_offset < state.log_end_offset
    }
    if not ranges:
        return MarkPlan(topic, ranges)
    rows = (
        topic.spark.table(topic.name.records_table)
        .where(within(ranges) & ~F.col("is_tombstone"))
        .withColumn("reason", F.expr(REASON))
        .where("reason IS NOT NULL")
        .groupBy("partition", "reason")
        .count()
        .collect()
    )
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["partition"], {})[row["reason"]] = row["count"]
    return MarkPlan(topic, ranges, found)


def within(ranges: Mapping[int, tuple[int, int]]) -> Column:
    """Whether the row's offset lies in its partition's half-open range."""
    conditions = (
        (F.col("partition") == partition) & (F.col("offset") >= first) & (F.col("offset") < end)
        for partition, (first, end) in ranges.items()
    )
    return reduce(Column.__or__, conditions, F.lit(False))


def execute_mark(plan: MarkPlan) -> Outcome:
    """Mark what the plan found, then move the first unmarked offset past it."""
    outcome = plan.outcome()
    topic = plan.topic
    if plan.found:
        offsets = " OR ".join(
            f"(`partition` = {p} AND offset >= {first} AND offset < {end})"
            for p, (first, end) in plan.ranges.items()
            if p in plan.found
        )
        update = (
            f"UPDATE {topic.name.records_table} SET is_tombstone = true, tombstone_by = {REASON} "
            f"WHERE ({offsets}) AND NOT is_tombstone AND ({REASON}) IS NOT NULL"
        )
        commit(Step.MARK_RECORDS, lambda: topic.spark.sql(update))
        snapshot = current_snapshot(topic.spark, topic.name.records_table)
        outcome.snapshot_ids = [] if snapshot is None else [snapshot]
    if plan.ranges:
        compare_and_set(topic, Step.MARK_STATE, lambda current: _marked(current, plan))
    return outcome


def _marked(current: Topic, plan: MarkPlan) -> Changes:
    changes: dict[str, str | None] = {}
    for partition, (_, end) in plan.ranges.items():
        state = current.partitions[partition]
        first_unmarked = max(state.first_unmarked_offset, end)
        changes |= to_properties(partition, state.moved(first_unmarked_offset=first_unmarked))
    return changes
