"""adopt_table: recognise the layout of a table that others write, and keep it as a topic.

The state is written first, then the layout as a property of the table: a killed run leaves a state
that nobody reads, and another run begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError, UnknownTopicError
from ebbtide.iceberg.adopted.arrivals import Arrivals, EventClock, look
from ebbtide.iceberg.adopted.row_deletes import check_format
from ebbtide.iceberg.adopted.rows import AdoptedRows, columns_of_schema
from ebbtide.iceberg.catalog import find_table, java_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.state_table import overwrite_state, read_state
from ebbtide.iceberg.topics import Topic, adopted_ids, set_properties
from ebbtide.log.adopted.layout import LAYOUT, Choices, Column, Layout, NamedLayout
from ebbtide.log.adopted.recognition import Recognised, recognise
from ebbtide.log.adopted.segments import new_log, with_arrived
from ebbtide.log.adopted.support import Exactness, rules_of
from ebbtide.log.settings.changes import SettingChanges, check_changes
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import ADOPTED_SEEN, TABLES, PartitionState, to_properties
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.jvm import as_dict


@dataclass(frozen=True, slots=True)
class Adoption:
    """What adopting a table comes to: its layout, and the state of its partitions."""

    topic: Topic
    recognised: Recognised
    named: NamedLayout
    settings: SettingChanges
    arrivals: Arrivals | None
    states: Mapping[int, PartitionState]
    is_adopted: bool  # already: its layout or settings change, its state stays

    def outcome(self) -> JobOutcome:
        """Return what is to be said of the table and its partitions."""
        outcome = JobOutcome()
        for partition, state in self.states.items():
            outcome.partitions[partition] = {
                "log_start_offset": state.log_start_offset,
                "low_watermark": state.log_start_offset,
                "log_end_offset": state.log_end_offset,
                "records": sum(of.record_count for of in state.sums),
            }
        outcome.topic = {
            "layout": f"{self.recognised.profile.writer} ({self.recognised.profile.source})",
            "columns": [f"{part}: {name}" for part, name in _columns(self.named)],
            **{of.value: _rules(self.recognised.layout, of) for of in Exactness},
        }
        notes = [self.recognised.profile.warning]
        if self.arrivals is not None and self.arrivals.unplaced:
            notes.append(f"{self.arrivals.unplaced} rows have no partition or no offset")
        if note := "; ".join(filter(None, notes)):
            outcome.topic["note"] = note
        return outcome


def _columns(named: NamedLayout) -> list[tuple[str, str]]:
    found: dict[str, Any] = named._asdict()
    values: list[Column] = found.pop("values")
    columns = [(part, column.name) for part, column in found.items() if column is not None]
    return columns + [("value", column.name) for column in values]


def _rules(layout: Layout, exactness: Exactness) -> list[str]:
    return [f"{r.name}: {r.reason}" for r in rules_of(layout) if r.exactness is exactness]


def plan_adoption(
    spark: SparkSession,
    name: TopicName,
    choices: Choices,
    settings: SettingChanges,
    now_ms: int,
    *,
    profile: str = "",
) -> Adoption:
    """Recognise a table's layout and look at its rows; NotCoveredError where it cannot be."""
    table = find_table(spark, name.records_table)
    if table is None:
        raise UnknownTopicError(f"expected the table {name.records_table}, found none")
    if table_exists(spark, name.batches_table):
        raise NotCoveredError(
            f"expected a table that others write, found {name}, a topic of ebbtide's own"
        )
    check_format(table)
    properties = as_dict(spark, table.properties())
    check_changes(properties, settings)
    recognised = recognise(columns_of_schema(spark, table.schema()), choices, profile)
    _check_writable(name, recognised)
    layout, held = replace(recognised.layout, headers=None), read_state(spark, name)
    rows = AdoptedRows.of_layout(spark, name.records_table, layout)
    before = properties.get(LAYOUT)
    is_adopted = before is not None and held is not None
    if before is not None:
        _check_same_places(name, Layout.parse(before), layout)
    arrivals = look(rows, {}, None, EventClock(now_ms))
    if arrivals is not None and arrivals.topics:
        layout = _of_topic(layout, arrivals)
    states = {} if arrivals is None else _new_states(arrivals, now_ms)
    topic = Topic(spark, name, properties)
    new = Recognised(recognised.profile, layout)
    return Adoption(topic, new, rows.layout, settings, arrivals, states, is_adopted)


def _check_writable(name: TopicName, recognised: Recognised) -> None:
    if why := recognised.profile.read_only:
        raise NotCoveredError(
            f"expected a table that ebbtide may delete from, found {name} of "
            f"{recognised.profile.writer}: {why}; ingest_table copies its rows to a topic"
        )


def _of_topic(layout: Layout, arrivals: Arrivals) -> Layout:
    """Return the layout with the name of the table's one topic."""
    (topic,) = arrivals.topics
    return replace(layout, topic_name=topic)


def _check_same_places(name: TopicName, before: Layout, after: Layout) -> None:
    places = [(of.partition, of.offset, of.timestamp) for of in (before, after)]
    if places[0] != places[1]:
        raise NotCoveredError(
            f"expected the columns of partition, offset and timestamp with which {name} was "
            "adopted, found others; run abandon_table first, then adopt the table anew"
        )


def _new_states(arrivals: Arrivals, now_ms: int) -> dict[int, PartitionState]:
    return {
        partition: with_arrived(new_log(0, now_ms), rows, now_ms)
        for partition, rows in arrivals.by_partition.items()
    }


def execute_adoption(plan: Adoption) -> JobOutcome:
    """Write the state, unless the table has been adopted before, and the layout on the table."""
    spark, name = plan.topic.spark, plan.topic.name
    if not plan.is_adopted:
        table = java_table(spark, name.records_table)
        state = {TABLES: adopted_ids(table)}
        if plan.arrivals is not None:
            state[ADOPTED_SEEN] = str(plan.arrivals.snapshot)
        for partition, of in plan.states.items():
            state |= to_properties(partition, of)
        commit(Step.ADOPTED_STATE, partial(overwrite_state, spark, name, state))
    changes: SettingChanges = {LAYOUT: plan.recognised.layout.to_json(), **plan.settings}
    commit(Step.ADOPTED_LAYOUT, partial(set_properties, spark, name.records_table, changes))
    return plan.outcome()
