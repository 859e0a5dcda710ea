"""configure_topic: settings are checked, and their effect is shown, before they are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.log.config import parse_config, settings
from ebbtide.log.credentials import check_uri
from ebbtide.log.names import quoted_list
from ebbtide.log.state import PREFIX, ROUND
from ebbtide.log.upstream import SOURCE
from ebbtide.tables.commits import Step
from ebbtide.tables.event_time import event_time_of
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.clean import plan_clean
from ebbtide.tables.stages.expire import plan_expire
from ebbtide.tables.stages.mark import MarkPlan, plan_mark
from ebbtide.tables.tombstones import tombstone_rule
from ebbtide.tables.topics import Changes, Topic, compare_and_set

# Iceberg's own setting that decides when a deletion is off the disk.
ICEBERG_SETTINGS = frozenset({"history.expire.max-snapshot-age-ms"})
EVENT_TIME = "ebbtide.event.time"
TOMBSTONE = "ebbtide.tombstone."


@dataclass(frozen=True, slots=True)
class ConfigurePlan:
    """The settings to change, and what the next run would remove with them."""

    topic: Topic
    changes: Changes
    effect: dict[int, dict[str, Any]]
    guard: dict[str, Any]  # the next expiry's plan and its share of the bytes
    marking: MarkPlan | None = None  # where what makes a tombstone changes

    def outcome(self) -> Outcome:
        """The numbers of the plan."""
        outcome = Outcome(topic={"changes": dict(self.changes), "next_run": self.guard})
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
        if self.marking is not None and "note" in (said := self.marking.outcome().topic):
            notes.append(said["note"])
        return notes


def plan_configure(topic: Topic, changes: Changes, now_ms: int) -> ConfigurePlan:
    """Check the changes and work out what a run at `now_ms` would then remove."""
    check_names(changes)
    properties = _changed(topic.properties, changes)
    event_time_of(topic.spark, parse_config(properties).event_time)
    changed = Topic(topic.spark, topic.name, properties)
    tombstone_rule(topic.spark, changed.config)
    marking = plan_mark(changed) if any(name.startswith(TOMBSTONE) for name in changes) else None
    cleaned = plan_clean(changed, now_ms).outcome().partitions
    expired = plan_expire(changed, now_ms).outcome()
    effect = {
        p: {"clean_log": cleaned[p], "expire_segments": expired.partitions[p]} for p in cleaned
    }
    for partition, counts in (marking.counts if marking is not None else {}).items():
        effect[partition]["mark_tombstones"] = counts.to_dict()
    return ConfigurePlan(topic, changes, effect, expired.topic, marking)


def parse_setting(text: str) -> tuple[str, str]:
    """A setting given as NAME=VALUE, checked as far as it can be without the topic."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RequestError(f"expected NAME=VALUE for a setting, found {text!r}")
    check_names({name: value})
    parse_config({name: value})
    return name, value


def check_names(changes: Changes) -> None:
    """ConfigurationError for a name that no topic may be given."""
    known = {*settings(), *ICEBERG_SETTINGS}
    for name, value in changes.items():
        if name == SOURCE and value is not None:
            check_uri(value.partition(":")[2])
        is_kafka = name.startswith("kafka.")  # parse_config tells these apart
        if name.startswith(PREFIX) or name == ROUND or not (is_kafka or name in known):
            raise ConfigurationError(
                f"expected one of {quoted_list(sorted(known))}, found {name!r}"
            )
        if name in ICEBERG_SETTINGS and value is not None and not value.isdigit():
            raise ConfigurationError(f"expected milliseconds for {name}, found {value!r}")


def _changed(properties: Mapping[str, str], changes: Changes) -> dict[str, str]:
    merged: dict[str, str | None] = {**properties, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def execute_configure(plan: ConfigurePlan) -> Outcome:
    """Set the properties."""
    compare_and_set(plan.topic, Step.CONFIGURE_TOPIC, lambda _: plan.changes)
    return plan.outcome()
