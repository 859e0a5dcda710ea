"""adopt_table: recognise the layout of a table that ebbtide does not own, and make it a topic.

The job writes the states first, then the layout as a property of the table. After a kill, no job
reads the states without the layout, and adopt_table can be run again. A table becomes several
topics if its topic column has several values (docs/adr/0016).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, NotCoveredError, UnknownTopicError
from ebbtide.iceberg.adopted.arrivals import Arrivals, EventClock, look
from ebbtide.iceberg.adopted.removal import check_format
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import Table, find_table, open_table, table_exists
from ebbtide.iceberg.commits import Step, commit, current_commits
from ebbtide.iceberg.erasures import ROWS_OF_ERASED_KEYS
from ebbtide.iceberg.state_table import overwrite_state, read_state
from ebbtide.iceberg.topics import Topic, adopted_ids, current_snapshot, set_properties
from ebbtide.jobs.table_layout import count_returned, returned_note
from ebbtide.kafka.adopted_segments import new_log, with_arrived
from ebbtide.layouts.layout import (
    LAYOUT,
    Choices,
    Column,
    Columns,
    Layout,
    NamedLayout,
    check_shares,
    table_properties,
    topic_names,
    topic_properties,
)
from ebbtide.layouts.recognition import Recognised, recognise
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.moments import machine_clock
from ebbtide.runner.job import Job, PlanRequest
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.undo_points import append_point, new_point_id, read_points
from ebbtide.settings.names import TopicName, quoted_list
from ebbtide.specs.settings_changes import SettingChanges, check_changes, parse_changes
from ebbtide.specs.support import Exactness, rules_of
from ebbtide.state.covered_offsets import count_missing
from ebbtide.state.topic_state import (
    ADOPTED_SEEN,
    TABLES,
    PartitionState,
    settings_of,
    to_properties,
)


class AdoptedTopic(NamedTuple):
    """A topic of the table to adopt: its rows in numbers, and the states of its partitions."""

    name: TopicName
    arrivals: Arrivals | None
    states: Mapping[int, PartitionState]
    is_adopted: bool  # before this run, which then may change layout and settings, but no state
    returned: int = 0  # rows with a key that was erased after they were written

    @property
    def records(self) -> int:
        """The number of the topic's records."""
        return sum(segment.record_count for state in self.states.values() for segment in state.sums)


@dataclass(frozen=True, slots=True)
class Adoption:
    """The planned adoption of a table: its layout, its settings and its topics."""

    spark: SparkSession
    name: TopicName
    recognised: Recognised
    named: NamedLayout
    settings: SettingChanges
    topics: Sequence[AdoptedTopic]

    def outcome(self) -> JobOutcome:
        """Return the table's layout and its rules, and the numbers of its topics."""
        outcome = JobOutcome()
        outcome.topic = {
            "layout": f"{self.recognised.profile.writer} ({self.recognised.profile.source})",
            "columns": _columns(self.named),
            **{
                exactness.value: [
                    f"{rule.name}: {rule.reason}"
                    for rule in rules_of(self.recognised.layout)
                    if rule.exactness is exactness
                ]
                for exactness in Exactness
            },
        }
        if [topic.name for topic in self.topics] == [self.name]:
            for partition, state in self.topics[0].states.items():
                outcome.partitions[partition] = {
                    "log_start_offset": state.log_start_offset,
                    "low_watermark": state.log_start_offset,
                    "log_end_offset": state.log_end_offset,
                    "records": sum(each.record_count for each in state.sums),
                }
                if state.missing:
                    outcome.partitions[partition]["missing_offsets"] = count_missing(state.missing)
        else:
            outcome.topic["topics"] = [
                f"{topic.name}: {len(topic.states)} partitions, {topic.records} records"
                for topic in self.topics
            ]
        notes = [self.recognised.profile.warning]
        if unplaced := sum(
            topic.arrivals.unplaced for topic in self.topics if topic.arrivals is not None
        ):
            notes.append(f"{unplaced} rows have no partition or no offset")
        if returned := sum(topic.returned for topic in self.topics):
            notes.append(returned_note(returned))
            outcome.topic[ROWS_OF_ERASED_KEYS] = returned
        if note := "; ".join(filter(None, notes)):
            outcome.topic["note"] = note
        return outcome


def _columns(named: NamedLayout) -> list[str]:
    found: dict[str, Any] = named._asdict()
    values: list[Column] = found.pop("values")
    columns = [f"{part}: {column.name}" for part, column in found.items() if column is not None]
    return columns + [f"value: {column.name}" for column in values]


def plan_adoption(
    spark: SparkSession,
    name: TopicName,
    choices: Choices,
    settings: SettingChanges,
    now_ms: int,
    *,
    profile: str = "",
) -> Adoption:
    """Recognise a table's layout and read its rows.

    Raise NotCoveredError if ebbtide cannot apply Kafka's rules to such a table.
    """
    table = _table_of_others(spark, name)
    properties = table.metadata.properties
    check_changes({LAYOUT: "", **topic_properties(name, properties)}, settings)
    recognised = recognise(
        Columns.readable(table.metadata.schema, name.records_table), choices, profile
    )
    if why := recognised.profile.read_only:
        raise NotCoveredError(
            f"expected a table that ebbtide may write to, found {name} of "
            f"{recognised.profile.writer}: {why}. Nothing was adopted. To copy its rows to a "
            "topic, run ingest_table"
        )
    recognised = recognised._replace(layout=replace(recognised.layout, headers=None))
    before = Layout.parse(properties[LAYOUT]) if LAYOUT in properties else None
    if before is not None:
        _check_same_places(name, before, recognised.layout)
    found = _topics_in(spark, name, recognised.layout)
    layout = _with_topics(name, recognised.layout, before, found)
    names = _names(name, found) if layout.is_shared else [name]
    topics = [
        _looked_at(
            Topic(topic_name, settings_of(topic_properties(topic_name, properties)), spark),
            layout,
            now_ms,
            has_layout=before is not None,
        )
        for topic_name in names
    ]
    named = AdoptedRows.of_layout(spark, name, layout).layout
    return Adoption(spark, name, recognised._replace(layout=layout), named, settings, topics)


def _table_of_others(spark: SparkSession, name: TopicName) -> Table:
    """Load the table to adopt.

    Raise NotCoveredError if it is one of ebbtide's own topics or has format version 1.
    """
    table = find_table(spark, name.records_table)
    if table is None:
        raise UnknownTopicError(
            f"expected the table {name.records_table}, found none. Check its name"
        )
    if table_exists(spark, name.whole_table.batches_table):
        raise NotCoveredError(
            f"expected a table that ebbtide does not own, found {name}, one of ebbtide's own topics"
            ". Retention applies to it without an adoption: set its rules with configure_topic"
        )
    check_format(table.java)
    return table


def _topics_in(spark: SparkSession, name: TopicName, layout: Layout) -> set[str]:
    """Return the topics that the table's rows name; none if it has no topic column."""
    check_shares(name, layout)
    snapshot = current_snapshot(spark, name.records_table)
    if snapshot is None:
        return set()
    return AdoptedRows.of_layout(spark, name.whole_table, layout).topics(snapshot)


def _with_topics(name: TopicName, layout: Layout, before: Layout | None, found: Set[str]) -> Layout:
    """Return the layout with the name of the table's only topic, or as shared by several topics."""
    is_shared = name.in_table is not None or len(found) > 1
    is_shared |= before is not None and before.is_shared
    if before is not None and before.is_shared != is_shared:
        raise NotCoveredError(
            f"expected a table that was adopted as several topics, found {name.whole_table}, which "
            "was adopted as one topic. Run abandon_table, then adopt_table: each topic that its "
            "rows name is then adopted as a topic of its own"
        )
    one_topic = None if is_shared else next(iter(found), None)
    return replace(layout, topic_name=one_topic, is_shared=is_shared)


def _names(name: TopicName, found: Set[str]) -> list[TopicName]:
    """Return the requested topic, or all topics of the table if the table was requested."""
    if name.in_table is None:
        return topic_names(name, found)
    if name.in_table not in found:
        raise UnknownTopicError(
            f"expected rows of the topic {name.in_table} in {name.records_table}, found rows of "
            f"{quoted_list(sorted(found)) or 'no topic'}"
        )
    return [name]


def _looked_at(topic: Topic, layout: Layout, now_ms: int, *, has_layout: bool) -> AdoptedTopic:
    spark, name = topic.spark, topic.name
    rows = AdoptedRows.of_layout(spark, name, layout)
    arrivals = look(rows, {}, None, EventClock(now_ms))
    is_adopted = has_layout and read_state(spark, name) is not None
    returned = 0
    if arrivals is not None and not is_adopted:
        returned = count_returned(topic, rows, arrivals.snapshot, None)
    arrived = {} if arrivals is None else arrivals.by_partition
    states = {p: with_arrived(new_log(0, now_ms), rows, now_ms) for p, rows in arrived.items()}
    return AdoptedTopic(name, arrivals, states, is_adopted, returned)


def _check_same_places(name: TopicName, before: Layout, after: Layout) -> None:
    places = [(layout.partition, layout.offset, layout.timestamp) for layout in (before, after)]
    if places[0] != places[1] or (before.is_shared and before.topic != after.topic):
        raise NotCoveredError(
            "expected the partition, offset and timestamp columns with which "
            f"{name} was adopted (and its topic column if several topics share the table), found "
            "different columns. To change them, run abandon_table first, then adopt_table"
        )


def execute_adoption(plan: Adoption) -> JobOutcome:
    """Write the states of new topics, then the layout and the settings as table properties.

    Raise CommitConflictError if abandon_table dropped a state meanwhile.
    """
    spark, name = plan.spark, plan.name
    ids = adopted_ids(open_table(spark, name.records_table))
    for topic in plan.topics:
        if not topic.is_adopted:
            _end_earlier_runs(spark, topic)
            _write_state(spark, topic, ids)
    changes = {LAYOUT: plan.recognised.layout.to_json(), **table_properties(name, plan.settings)}
    commit(Step.ADOPTED_LAYOUT, partial(set_properties, spark, name.records_table, changes))
    for topic in plan.topics:
        if read_state(spark, topic.name) is None:
            raise CommitConflictError(
                f"expected a state of {topic.name} once its table has a layout, found none: "
                "abandon_table dropped it meanwhile. Run adopt_table again"
            )
    return plan.outcome()


def _end_earlier_runs(spark: SparkSession, topic: AdoptedTopic) -> None:
    """Append an undo point, so that no run on an earlier topic of this name can be undone.

    The table may hold another log now.
    """
    commits, earlier = current_commits(), read_points(spark, topic.name)
    known = {partition for point in earlier for partition in point.states}
    if commits is None or not known:
        return
    point = UndoPoint(
        point_id=new_point_id(),
        run_id=commits.run_id,
        job=commits.job,
        topic=str(topic.name),
        at=machine_clock(),
        states=dict.fromkeys(known, new_log(0, 0)) | dict(topic.states),
    )
    append_point(spark, point, Step.UNDO_POINT)


def _write_state(spark: SparkSession, topic: AdoptedTopic, table_ids: str) -> None:
    state = {TABLES: table_ids}
    if topic.arrivals is not None:
        state[ADOPTED_SEEN] = str(topic.arrivals.snapshot)
    for partition, partition_state in topic.states.items():
        state |= to_properties(partition, partition_state)
    commit(Step.ADOPTED_STATE, partial(overwrite_state, spark, topic.name, state))


def _check(args: Namespace) -> None:
    args.settings, args.choices = parse_changes(args.set, ()), Choices.of(args)


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> Adoption:
    args = request.given
    profile = args.profile or ""
    return plan_adoption(spark, name, args.choices, args.settings, request.now_ms, profile=profile)


ADOPT_TABLE = Job("adopt_table", _plan, execute_adoption, check=_check, is_checked=False)
