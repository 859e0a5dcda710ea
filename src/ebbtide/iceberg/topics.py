"""A topic's tables: finding them, their settings and state, and compare-and-set on the state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import (
    CommitConflictError,
    ConfigurationError,
    EbbtideError,
    ForeignChangeError,
    NotCoveredError,
    RequestError,
    StateError,
    UnavailableError,
    UnknownTopicError,
)
from ebbtide.iceberg.catalog import Table, find_table, open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.state_table import HeldState, create_state, read_state
from ebbtide.layouts.layout import LAYOUT, check_is_told, table_properties, topic_properties
from ebbtide.layouts.topic import DescribedTopic
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import (
    REPAIR,
    REPLICA_OF,
    TABLES,
    PartitionState,
    check_layout_of_settings,
    has_partitions,
    is_state,
    readable_states,
    settings_of,
    state_of,
)

T = TypeVar("T")
# A property set to None is removed.
PropertyChanges = Mapping[str, str | None]
CAS_ATTEMPTS = 20
BATCHES = "batches"  # the batches table's name in the state


@dataclass(frozen=True)
class Topic(DescribedTopic[TopicName]):
    """A topic with the Spark session that reads and changes its tables."""

    spark: SparkSession


def exists(spark: SparkSession, name: TopicName) -> bool:
    """Return whether the topic has its tables. Raise ForeignChangeError if one was dropped."""
    return _data_tables(spark, name) is not None


def was_adopted(spark: SparkSession, name: TopicName) -> bool:
    """Return whether the topic's table exists and is adopted, whatever its state."""
    table = find_table(spark, name.records_table)
    return table is not None and LAYOUT in table.metadata.properties


def find(spark: SparkSession, name: TopicName) -> Topic | None:
    """Load the topic's current state, or return None if it has no tables.

    Raise ForeignChangeError if one of the tables was dropped, or dropped and created again.
    """
    tables = _data_tables(spark, name)
    if tables is None:
        return None
    held = read_state(spark, name)
    properties = topic_properties(name, tables.records.metadata.properties)
    if held is not None and TABLES in held.properties:
        _check_tables(name, held.properties[TABLES], tables)
    if held is None:
        check_is_told(name, properties)
        check_layout_of_settings(str(name), properties)
    if held is None and tables.has_been_filled:
        is_adopted = tables.batches is None
        way_out = "adopt_table again" if is_adopted else f"{REPAIR}, which rebuilds the state"
        raise StateError(
            f"expected the state of {name} in {name.state_table}, found no such table: it was "
            f"dropped. Run {way_out}"
        )
    state = {} if held is None else held.properties
    return Topic(name, {**settings_of(properties), **state}, spark)


def load(spark: SparkSession, name: TopicName) -> Topic:
    """Load the topic's current state. Raise UnknownTopicError if it has no tables."""
    topic = find(spark, name)
    if topic is None:
        raise UnknownTopicError(
            f"expected table {name.records_table}, found none. Ingest the topic first"
        )
    return topic


class _DataTables(NamedTuple):
    """A topic's two data tables; an adopted one has no batches."""

    records: Table
    batches: Table | None

    @property
    def ids(self) -> str:
        """The ids of both tables, as the state records them."""
        tables = {"records": self.records, BATCHES: self.batches}
        return json.dumps(
            {what: table.metadata.uuid for what, table in tables.items() if table is not None}
        )

    @property
    def has_been_filled(self) -> bool:
        """True if a job has written to the tables, so that a state must exist too."""
        return self.batches is None or self.batches.current is not None


def _data_tables(spark: SparkSession, name: TopicName) -> _DataTables | None:
    """Load both data tables, or return None if the topic does not exist.

    A single table that a killed creation left is no topic. Raise ForeignChangeError if one was
    dropped.
    """
    records = find_table(spark, name.records_table)
    if records is not None and LAYOUT in records.metadata.properties:
        return _DataTables(records, None)
    batches = find_table(spark, name.batches_table)
    if records is not None and batches is not None:
        return _DataTables(records, batches)
    tables = {name.records_table: records, name.batches_table: batches}
    missing = [table for table, loaded in tables.items() if loaded is None]
    held = read_state(spark, name)
    if held is not None and batches is None and _is_of_adopted(held):
        raise _lost_adopted(name, records, held.properties[TABLES])
    if len(missing) == len(tables):
        return None
    if held is not None and has_partitions(held.properties):
        raise ForeignChangeError(
            f"expected table {missing[0]}, which the state of {name} records, found none: it was "
            "dropped. Register its last metadata file again. To start the topic again from "
            "nothing: drop the other table too"
        )
    if records is not None and batches is None and not _is_own(records):
        raise NotCoveredError(
            f"expected a topic of ebbtide, found {name.records_table}, a table of another tool "
            "that is not adopted. If its rows are records, run adopt_table first"
        )
    left = records or batches
    if left is not None and left.current is not None:  # a killed creation leaves no snapshot
        raise ForeignChangeError(
            f"expected table {missing[0]} and the state in {name.state_table}, since {left} has "
            "rows, found neither: both were dropped. Register their last metadata files again. To "
            f"start the topic again from nothing: drop {left} too"
        )
    return None


def _is_own(records: Table) -> bool:
    """Return whether a table has the columns of a records table, so that ebbtide created it."""
    columns = {field["name"] for field in records.metadata.schema["fields"]}
    return columns >= {"partition", "offset", "segment", "batch"}


def is_still_adopted(topic: Topic) -> bool:
    """Return whether an adopted topic still has its layout and state; abandon_table drops both."""
    records = find_table(topic.spark, topic.name.records_table)
    has_layout = records is not None and LAYOUT in records.metadata.properties
    return has_layout and read_state(topic.spark, topic.name) is not None


def check_still_adopted(topic: Topic) -> None:
    """Raise CommitConflictError if abandon_table has run on an adopted topic meanwhile."""
    if topic.is_adopted and not is_still_adopted(topic):
        raise CommitConflictError(
            f"expected {topic.name} to be still adopted, found that abandon_table ran meanwhile. "
            "Nothing was committed"
        )


def while_adopted(topic: Topic, commit_it: Callable[[], T]) -> Callable[[], T]:
    """Return the commit, preceded by a check that the topic is still adopted."""

    def checked() -> T:
        check_still_adopted(topic)
        return commit_it()

    return checked


def _is_of_adopted(held: HeldState) -> bool:
    """Return whether a state is of an adopted topic, which has no batches table."""
    return BATCHES not in json.loads(held.properties.get(TABLES, f'{{"{BATCHES}": ""}}'))


def _lost_adopted(name: TopicName, found: Table | None, known: str) -> ForeignChangeError:
    """Return the error for an adopted table that was dropped or has lost its layout."""
    of_state = f"expected adopted table {name.records_table}, which the state of {name} records"
    back = "Register the old table's last metadata file again"
    if found is None:
        return ForeignChangeError(
            f"{of_state}, found none: it was dropped. {back}, or run abandon_table, which drops "
            "the state too"
        )
    if adopted_ids(found) != known:
        return ForeignChangeError(
            f"{of_state}, with id {known}, found another table of this name, with id "
            f"{adopted_ids(found)}: it was dropped and created again. {back}, or run adopt_table, "
            "which adopts the new table and reads its log from the beginning"
        )
    return ForeignChangeError(
        f"{of_state}, found no property {LAYOUT} on it: another tool removed the property, or "
        "abandon_table was killed. Run abandon_table again, or adopt_table to adopt the table again"
    )


def load_without_state(spark: SparkSession, name: TopicName) -> Topic:
    """Return the topic with its settings only, for a state that is lost or cannot be trusted."""
    return Topic(name, settings_of(_records_properties(spark, name)), spark)


def _check_tables(name: TopicName, known: str, tables: _DataTables) -> None:
    if known != tables.ids:
        is_adopted = tables.batches is None
        anew = "run abandon_table, then adopt_table" if is_adopted else "drop both tables"
        raise ForeignChangeError(
            f"expected the tables of {name} that its state records, with ids {known}, found "
            f"{tables.ids}: a table was dropped and created again. Register the old table's last "
            f"metadata file again. To start the topic again from nothing: {anew}"
        )


def table_ids(spark: SparkSession, name: TopicName) -> str:
    """Return the ids of the data tables.

    The state records them, so that a new table is detected.
    """
    tables = _data_tables(spark, name)
    assert tables is not None
    return tables.ids


def adopted_ids(table: Table) -> str:
    """Return the id of an adopted table, as the state records it."""
    return _DataTables(table, None).ids


def read_again(topic: Topic) -> Topic:
    """Load the topic's current state again."""
    return _read(topic.spark, topic.name, read_state(topic.spark, topic.name))


def first_segments_now(topic: Topic) -> dict[int, int]:
    """Return the current base offset of each partition's first segment.

    Older batches may have been removed.
    """
    # A repair also calls this, while a part of the state may still be unreadable.
    states = readable_states(read_again(topic).properties)
    return {partition: state.first_segment for partition, state in states.items()}


def _read(spark: SparkSession, name: TopicName, held: HeldState | None) -> Topic:
    state = {} if held is None else held.properties
    return Topic(name, {**settings_of(_records_properties(spark, name)), **state}, spark)


def _records_properties(spark: SparkSession, name: TopicName) -> dict[str, str]:
    return topic_properties(name, open_table(spark, name.records_table).metadata.properties)


def own_spec_id(table: Table) -> int:
    """Return the id of the partition spec that ebbtide created the table with.

    It is by partition and segment alone. ebbtide writes files by it even if another tool has
    changed the table's partitioning. Raise ConfigurationError if the table no longer has the spec.
    """
    for spec_id, fields in table.metadata.specs.items():
        if fields == (("partition", "identity"), ("segment", "identity")):
            return spec_id
    raise ConfigurationError(
        f"expected {table} to be partitioned by `partition` and `segment`, found "
        f"{table.java.spec()}. Restore its partition fields"
    )


def compare_and_set(
    topic: Topic, step: Step, change: Callable[[Topic], PropertyChanges | None]
) -> Topic:
    """Commit `change` on the newest properties; try again if another writer was faster.

    `change` gets the newest properties each time. It checks its conditions, and returns None if
    nothing is left to do. Settings among the changes are set before the state, and only if the
    state is still the one that `change` got. Raise CommitConflictError after 20 attempts.
    """
    spark, name = topic.spark, topic.name
    for _ in range(CAS_ATTEMPTS):
        held = _state_to_change(topic)
        current = _read(spark, name, held)
        changes = {
            n: v for n, v in (change(current) or {}).items() if current.properties.get(n) != v
        }
        if not changes:
            return current
        state = {n: v for n, v in changes.items() if is_state(n)}
        if state and TABLES not in held.properties:
            state[TABLES] = table_ids(spark, name)
        settings = {n: v for n, v in changes.items() if not is_state(n)}
        try:
            if settings:
                settings_step = Step.FOLLOW_SETTINGS if state else step
                of_table = table_properties(name, settings)
                commit(settings_step, partial(_set_settings, spark, name, of_table, held))
            if state:
                commit(step, partial(held.change_to, _merged(held.properties, state)))
        except CommitConflictError:
            continue
        return Topic(name, _merged(current.properties, changes), spark)
    raise CommitConflictError(
        f"expected a change of the properties of {topic.name} within {CAS_ATTEMPTS} attempts, "
        "found that another writer was faster each time. Run the job again when that writer is done"
    )


def _state_to_change(topic: Topic) -> HeldState:
    """Return the topic's state; create it if the topic was read without one.

    Raise CommitConflictError if the topic was read with a state that no longer exists.
    """
    spark, name = topic.spark, topic.name
    held = read_state(spark, name)
    if held is None and state_of(topic.properties):
        raise CommitConflictError(
            f"expected the state of {name} in {name.state_table}, found none: abandon_table or "
            "another tool dropped it after this job read it. Run the job again"
        )
    if held is None:
        commit(Step.STATE_TABLE, partial(create_state, spark, name, {}))
        held = read_state(spark, name)
        assert held is not None
    return held


def _set_settings(
    spark: SparkSession, name: TopicName, changes: PropertyChanges, held: HeldState
) -> None:
    """Set settings that were chosen by this state.

    Raise CommitConflictError if another job has changed the state since. State and settings are in
    two tables, so a change between this check and the commit goes undetected.
    """
    newest = read_state(spark, name)
    if newest is None or newest.properties != held.properties:
        raise CommitConflictError(
            f"expected the state of {name} as it was read, found that another job changed it "
            "meanwhile. Run the job again"
        )
    set_properties(spark, name.records_table, changes)


def set_properties(spark: SparkSession, table: str, changes: PropertyChanges) -> None:
    """Set and remove properties of a table."""
    update = open_table(spark, table).java.updateProperties()
    for name, value in changes.items():
        update = update.remove(name) if value is None else update.set(name, value)
    update.commit()


def _merged(properties: Mapping[str, str], changes: PropertyChanges) -> dict[str, str]:
    return {name: value for name, value in {**properties, **changes}.items() if value is not None}


def current_snapshot(spark: SparkSession, table: str) -> int | None:
    """Return the id of the table's current snapshot, or None if it has no data."""
    snapshot = open_table(spark, table).current
    return None if snapshot is None else snapshot.id


def snapshot_after(spark: SparkSession, table: str, write: Callable[[], object]) -> int | None:
    """Write to the table, and return the id of its current snapshot after that."""
    write()
    return current_snapshot(spark, table)


def find_snapshot(spark: SparkSession, table: str, name: str, value: str) -> int | None:
    """Return the newest snapshot in the table's history whose summary has `name` = `value`."""
    return open_table(spark, table).metadata.find_after(name, value)


def replica_names(topic: Topic) -> list[TopicName]:
    """Return the names of the replicas.

    Raise ConfigurationError for one whose catalog Spark lacks.
    """
    names = [replica.of(topic.name) for replica in topic.config.table_replicas]
    for name in names:
        setting = f"spark.sql.catalog.{name.catalog}"
        if topic.spark.conf.get(setting, None) is None:
            raise ConfigurationError(
                f"expected {setting} in Spark's settings, since {name} is a replica of "
                f"{topic.name}, found none. Set it, or change ebbtide.replicas"
            )
        if name == topic.name:
            raise ConfigurationError(
                f"expected only other namespaces in ebbtide.replicas of {topic.name}, found its "
                "own. Remove it from the list with configure_topic"
            )
    return names


def check_is_no_replica(topic: Topic, what_to_do: str) -> None:
    """Raise RequestError if the topic is a replica: all its records come from its primary."""
    if REPLICA_OF in topic.properties:
        raise RequestError(
            f"expected a topic that is no replica, found replica {topic.name}. To change it, "
            f"{what_to_do} its primary; replicate_log then brings the change"
        )


def find_replica(spark: SparkSession, name: TopicName) -> Topic | None:
    """Return the current replica, or None if it has no tables yet.

    Raise UnavailableError if its catalog does not answer.
    """
    try:
        return find(spark, name)
    except EbbtideError:
        raise
    except Exception as error:  # each catalog raises another class
        raise UnavailableError(
            f"expected the catalog of replica {name} to answer, found: {_first_line(error)}. "
            "Run again once the catalog can be reached"
        ) from error


class ReplicaEnd(NamedTuple):
    """The log end offset of a replica's partition; 0 if the replica has none that can be read."""

    offset: int
    replica: TopicName
    unknown: str = ""  # why there is none, and what to do

    def in_words(self) -> str:
        """Return the replica, its end or why that is not known, and what to do."""
        known = f"ends at offset {self.offset}: run replicate_log"
        return f"{self.replica}, which {self.unknown or known}"


_UNREACHED = "cannot be reached: once it can, run replicate_log"
_NOT_THERE = "does not have the partition yet: run replicate_log"


def first_replica_ends(topic: Topic) -> dict[int, ReplicaEnd]:
    """Return for each partition the replica that ends first; empty without replicas."""
    ends: dict[int, ReplicaEnd] = {}
    for name in replica_names(topic):
        states = _states(topic.spark, name)
        for partition in topic.partitions:
            if states is None:
                end = ReplicaEnd(0, name, _UNREACHED)
            elif partition in states:
                end = ReplicaEnd(states[partition].log_end_offset, name)
            else:
                end = ReplicaEnd(0, name, _NOT_THERE)
            ends[partition] = min(end, ends.get(partition, end), key=itemgetter(0))
    return ends


def _states(spark: SparkSession, name: TopicName) -> dict[int, PartitionState] | None:
    """Return the partitions of a replica, or None if it cannot be reached."""
    try:
        replica = find_replica(spark, name)
    except UnavailableError:
        return None
    return {} if replica is None else replica.partitions


def _first_line(error: Exception) -> str:
    message = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return next((line.strip() for line in str(message).splitlines() if line.strip()), "no message")
