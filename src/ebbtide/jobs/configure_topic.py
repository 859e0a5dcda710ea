"""configure_topic: check settings and show their effect before setting them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import ConfigurationError, UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import Topic, compare_and_set, find_replica, load, replica_names
from ebbtide.jobs.clean_log.choice import RoundBounds
from ebbtide.jobs.clean_log.stage import CleanPlan, plan_clean
from ebbtide.jobs.expire_segments import ExpirePlan, plan_expire
from ebbtide.jobs.ingest_segments.append import check_topic_id, event_time_of
from ebbtide.jobs.mark_tombstones import MarkPlan, plan_mark
from ebbtide.jobs.unfinished import settle
from ebbtide.kafka.low_watermarks import deadline_gap, settings_to_follow
from ebbtide.ledger.plans import Bounds, PartitionSummary, together, union
from ebbtide.runner.job import (
    Job,
    Parameters,
    PlanRequest,
    Proposal,
    asked_of_each,
    removes_records,
)
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import DEADLINE_MS, drifts, parse_config
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import SOURCE
from ebbtide.specs.settings_changes import (
    SettingChanges,
    changed,
    check_changes,
    check_names,
    parse_changes,
    removing_more,
)
from ebbtide.text import number


def changes_from_source(topic: Topic) -> dict[str, str | None]:
    """Return the settings that differ from those of the source's brokers, with the brokers' values.

    Raise ConfigurationError if the source is not a Kafka connection.
    """
    upstream = topic.config.upstream
    if upstream is None or upstream.connection is None:
        raise ConfigurationError(
            f"expected {SOURCE}=kafka:<connection> for {topic.name}, found "
            f"{upstream or 'no source'}. Set it with configure_topic or by running ingest_topic"
        )
    live = LiveTopic.connect(upstream.connection, topic.name.topic)
    check_topic_id(topic, live.description.topic_id, f"connection {upstream.connection!r}")
    return {drift.name: drift.broker for drift in drifts(topic.properties, live.configs)}


EVENT_TIME = "ebbtide.event.time"
TOMBSTONE = "ebbtide.tombstone."


@dataclass(frozen=True, slots=True)
class ConfigurePlan(Proposal):
    """The settings to change, and the records that the next nightly run would remove with them.

    `cleaning` and `expiry` are planned as if every record were marked, since a nightly run marks
    first. An adopted topic has no `marking`: its rows themselves show which are tombstones.
    """

    topic: Topic
    changes: SettingChanges
    marking: MarkPlan | None
    cleaning: CleanPlan
    expiry: ExpirePlan
    removing_more: Sequence[str] = ()  # settings by which a later nightly run may remove more
    replica_notes: Sequence[str] = ()  # replicas that may miss the deadline of erasure

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        before = self.topic.properties
        changes = {name: [before.get(name), after] for name, after in self.changes.items()}
        cleaned, expired = self.cleaning.outcome(), self.expiry.outcome()
        outcome = JobOutcome(topic={"changes": changes, "next_run": expired.topic})
        if notes := self._notes():
            outcome.topic["note"] = "; ".join(notes)
        counts = self.marking.counts if self.marking and self._changes_marks else {}
        for partition in self.topic.partitions:
            effect = {"clean_log": cleaned.partitions[partition]}
            if partition in expired.partitions:
                effect["expire_segments"] = expired.partitions[partition]
            if partition in counts:
                effect["mark_tombstones"] = counts[partition].to_dict()
            # Not of self.topic, whose settings may be invalid.
            numbers = self.cleaning.topic.offsets_of(partition)
            outcome.partitions[partition] = numbers | {"next_run": effect}
        return outcome

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets that the next run would remove with the new settings."""
        stages = [stage.removes() for stage in self._stages]
        return {
            p: union(offsets[p] for offsets in stages if p in offsets)
            for p in self.topic.partitions
        }

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the bounds of the cleaner round and of the expiry, by partition."""
        cleaned, expired = self.cleaning.fixed(), self.expiry.fixed()
        return {p: {**cleaned.get(p, {}), **expired[p]} for p in expired}

    def summary(self) -> dict[int, PartitionSummary]:
        """Return a summary of all removals by the next run's stages, by partition."""
        summaries: dict[int, PartitionSummary] = {}
        for of_stage in (stage.summary() for stage in self._stages):
            for p, summary in of_stage.items():
                summaries[p] = together(summaries[p], summary) if p in summaries else summary
        return summaries

    @property
    def _stages(self) -> Sequence[Proposal]:
        marking = [] if self.marking is None else [self.marking]
        return [self.cleaning, self.expiry, *marking]

    @property
    def _changes_marks(self) -> bool:
        if self.marking is None:
            return False
        is_told = any(name.startswith(TOMBSTONE) for name in self.changes)
        return is_told or bool(self.marking.changes)

    def _notes(self) -> list[str]:
        notes = list(self.replica_notes)
        if self.removing_more:
            notes.append(
                "a later nightly run may remove more because of " + ", ".join(self.removing_more)
            )
        if self.marking is None:
            return notes
        if EVENT_TIME in self.changes:
            notes.append(
                f"{EVENT_TIME} applies to records ingested from now on; records in the tables keep "
                "their event time"
            )
        if self._changes_marks:
            notes.append(_marks_in_words(self.marking))
        if "note" in (numbers := self.marking.outcome().topic):
            notes.append(numbers["note"])
        return notes


def _marks_in_words(marking: MarkPlan) -> str:
    counts = marking.counts.values()
    marked, unmarked = (
        sum(partition_counts.marked for partition_counts in counts),
        sum(partition_counts.unmarked for partition_counts in counts),
    )
    return (
        f"of the records not judged yet, the next nightly run marks {number(marked)} as tombstones "
        f"and {number(unmarked)} as none, so its cleaner round may remove other records than this "
        "plan shows; a record judged before keeps its mark until mark_tombstones judges it again"
    )


def plan_configure(
    topic: Topic,
    changes: SettingChanges,
    now_ms: int,
    bounds: Bounds | None = None,
    *,
    keeps_offsets: bool = False,
) -> ConfigurePlan:
    """Check the changes and plan the removals of a run at `now_ms` with the new settings.

    `bounds` are those of a stored plan. With `keeps_offsets`, the plan lists the offsets to remove.
    """
    check_names(changes)
    check_changes(topic.properties, changes)
    properties = changed(topic.properties, changes)
    event_time_of(topic.spark, parse_config(properties).event_time)
    after = Topic(topic.name, properties, topic.spark)
    more, replicas = removing_more(topic.properties, changes), list(_check_replicas(after))
    marking = None if topic.is_adopted else plan_mark(after, bounds=bounds)
    marked = after if marking is None else marking.marked()
    cleaning = plan_clean(marked, now_ms, _of_round(bounds), keeps_offsets=keeps_offsets)
    expiry = plan_expire(marked, now_ms, bounds, keeps_offsets=keeps_offsets)
    return ConfigurePlan(topic, changes, marking, cleaning, expiry, more, replicas)


def _check_replicas(after: Topic) -> Iterator[str]:
    """Yield a note for each table replica that may miss the topic's deadline of erasure.

    Raise ConfigurationError if nightly runs cannot meet it on a replica.
    """
    for name in replica_names(after) if after.deadline is not None else ():
        try:
            replica = find_replica(after.spark, name)
        except UnavailableError:
            yield f"the replica {name} may miss {DEADLINE_MS}: it cannot be reached"
            continue
        if replica is None:  # replicate_log makes it with the settings of its primary
            continue
        followed = changed(
            replica.properties, settings_to_follow(after.properties, replica.properties)
        )
        try:
            check_changes(followed, {})
        except ConfigurationError as error:
            raise ConfigurationError(f"on the replica {name}: {error}") from None
        if gap := deadline_gap(after.properties, replica.properties):
            yield f"the replica {name} may miss {DEADLINE_MS}: {gap}"


def _of_round(bounds: Bounds | None) -> dict[int, RoundBounds] | None:
    """Return the cleaner round's part of a stored plan's bounds, or None without a plan."""
    if bounds is None:
        return None
    return {
        p: RoundBounds(*(numbers[name] for name in RoundBounds._fields))
        for p, numbers in bounds.items()
        if RoundBounds._fields[0] in numbers
    }


def execute_configure(plan: ConfigurePlan) -> JobOutcome:
    """Set or unset the table properties."""
    compare_and_set(plan.topic, Step.CONFIGURE_TOPIC, lambda _: plan.changes)
    return plan.outcome()


def _check(args: Namespace) -> None:
    args.changes = parse_changes(args.set, args.unset)


def _resolve(spark: SparkSession, name: TopicName, request: PlanRequest) -> Parameters:
    asked = request.parameters
    taken_over = changes_from_source(load(spark, name)) if asked["from_source"] else {}
    return {"changes": {**taken_over, **asked["changes"]}}


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> ConfigurePlan:
    topic = load(spark, name)
    if not topic.is_adopted:
        topic = settle(topic, "configure_topic", is_plan_only=request.is_plan_only)
    return plan_configure(
        topic,
        request.parameters["changes"],
        request.now_ms,
        request.bounds,
        keeps_offsets=request.keeps_offsets,
    )


CONFIGURE_TOPIC = Job(
    "configure_topic",
    _plan,
    execute_configure,
    asked=asked_of_each("changes", "from_source"),
    check=_check,
    resolve=_resolve,
    is_by_hand=lambda _: True,
    needs_approval=lambda plan: removes_records(plan) or bool(plan.removing_more),
)
