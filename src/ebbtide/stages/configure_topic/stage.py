"""configure_topic: check settings and show their effect before setting them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import Topic, compare_and_set
from ebbtide.log.settings.changes import SettingChanges, changed, check_names
from ebbtide.log.settings.config import parse_config
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_log.stage import plan_clean
from ebbtide.stages.expire_segments.stage import plan_expire
from ebbtide.stages.ingest_segments.event_time import event_time_of
from ebbtide.stages.mark_tombstones.stage import MarkPlan, plan_mark
from ebbtide.stages.mark_tombstones.tombstones import tombstone_rule

EVENT_TIME = "ebbtide.event.time"
TOMBSTONE = "ebbtide.tombstone."


@dataclass(frozen=True, slots=True)
class ConfigurePlan:
    """The settings to change, and what the next run would remove with them."""

    topic: Topic
    changes: SettingChanges
    effect: dict[int, dict[str, Any]]
    guard: dict[str, Any]  # the next expiry's plan and its share of the bytes
    marking: MarkPlan | None = None  # where what makes a tombstone changes

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        before = self.topic.properties
        changes = {name: [before.get(name), after] for name, after in self.changes.items()}
        outcome = JobOutcome(topic={"changes": changes, "next_run": self.guard})
        if notes := self._notes():
            outcome.topic["note"] = "; ".join(notes)
        for partition in self.topic.partitions:
            numbers = {"next_run": self.effect[partition]}
            outcome.partitions[partition] = self.topic.offsets_of(partition) | numbers
        return outcome

    def _notes(self) -> list[str]:
        notes = []
        if EVENT_TIME in self.changes:
            notes.append(
                f"{EVENT_TIME} is for what is ingested from now on; records that are held keep "
                "the event time they have"
            )
        if self.marking is not None and "note" in (numbers := self.marking.outcome().topic):
            notes.append(numbers["note"])
        return notes


def plan_configure(topic: Topic, changes: SettingChanges, now_ms: int) -> ConfigurePlan:
    """Check the changes and work out what a run at `now_ms` would then remove."""
    check_names(changes)
    properties = changed(topic.properties, changes)
    event_time_of(topic.spark, parse_config(properties).event_time)
    after = Topic(topic.spark, topic.name, properties)
    tombstone_rule(topic.spark, after.config)
    marking = plan_mark(after) if any(name.startswith(TOMBSTONE) for name in changes) else None
    cleaned = plan_clean(after, now_ms).outcome().partitions
    expired = plan_expire(after, now_ms).outcome()
    effect = {
        p: {"clean_log": cleaned[p], "expire_segments": expired.partitions[p]} for p in cleaned
    }
    for partition, counts in (marking.counts if marking is not None else {}).items():
        effect[partition]["mark_tombstones"] = counts.to_dict()
    return ConfigurePlan(topic, changes, effect, expired.topic, marking)


def execute_configure(plan: ConfigurePlan) -> JobOutcome:
    """Set the properties."""
    compare_and_set(plan.topic, Step.CONFIGURE_TOPIC, lambda _: plan.changes)
    return plan.outcome()
