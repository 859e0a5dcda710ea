"""Detect whether another tool or person changed a topic's rows since ebbtide's last commit.

The state records the last snapshot of each data table and its live rows by segment. Each job first
reads the commits since then. It counts the rows of ebbtide's own, and ignores those that only
rewrite files. Any other is a foreign change and blocks the topic. If the snapshots in between are
expired, the rows are counted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ebbtide.errors import ConfigurationError, ForeignChangeError
from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.data_files import read_segment
from ebbtide.iceberg.history import Since, history_since, live_rows, rows_changed
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.iceberg.schema import BATCH_NAMES, RECORD_NAMES
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.numbers import MAX_OFFSET
from ebbtide.settings.names import TopicName, quoted_list
from ebbtide.state.topic_state import (
    NOTHING_SEEN,
    REMOVING,
    RowsBySegment,
    Seen,
    added,
    differences,
    partitions_of,
    rows_properties,
    seen_of,
    seen_property,
    told_rows,
)

SHOWN = 5


class Counted(NamedTuple):
    """A data table: its name in the state, the column of its rows' offsets, and all columns."""

    what: str
    table: str
    offset: str
    columns: list[str]

    @classmethod
    def of(cls, name: TopicName) -> tuple[Counted, Counted]:
        """Return the topic's two data tables."""
        return (
            cls("records", name.records_table, "offset", RECORD_NAMES),
            cls("batches", name.batches_table, "base_offset", BATCH_NAMES),
        )


class Look(NamedTuple):
    """The commits of one data table since the state was written."""

    table: Counted
    seen: Seen | None
    counted: dict[str, str | None]  # new values of the state's row counts
    foreign: list[str]  # foreign changes, as text
    is_rolled_back: bool = False  # commits of ebbtide are no longer in the table


def look_at(topic: Topic) -> list[Look]:
    """Compare each of the topic's data tables with the state."""
    return [_look_at(topic, table) for table in Counted.of(topic.name)]


def check_unchanged(topic: Topic) -> None:
    """Raise ForeignChangeError after a foreign change of the topic's rows. Nothing is written."""
    _counted(topic)


def count_own(topic: Topic) -> Topic:
    """Record in the state the row counts after ebbtide's latest commits.

    Raise ForeignChangeError after a foreign change of the topic's rows.
    """
    counted = _counted(topic)
    if not counted:
        return topic

    def as_counted(current: Topic) -> PropertyChanges:
        return counted if current.properties == topic.properties else _counted(current)

    return compare_and_set(topic, Step.ROWS_COUNTED, as_counted)


def announce_removal(topic: Topic) -> None:
    """Record in the state that rows are about to be removed.

    After a kill, this explains why the table has fewer rows than recorded.
    """
    if REMOVING not in topic.properties:
        compare_and_set(topic, Step.ROWS_REMOVING, lambda _: {REMOVING: "true"})


def set_counted(
    topic: Topic, step: Step, change: Callable[[Topic], PropertyChanges | None]
) -> Topic:
    """Change the state by `compare_and_set`, and in the same commit its row counts.

    Raise ForeignChangeError if the job's commits were rolled back meanwhile: the state must not
    record them. Any other foreign change is left for the next job to detect.
    """

    def counting(current: Topic) -> PropertyChanges | None:
        changes = change(current)
        if not changes:
            return changes
        looks = look_at(current)
        if any(look.is_rolled_back for look in looks):
            raise foreign_change(topic.name, looks)
        if any(look.foreign for look in looks):
            return changes
        return {**changes, **_properties_of(current, looks)}

    return compare_and_set(topic, step, counting)


def _counted(topic: Topic) -> PropertyChanges:
    looks = look_at(topic)
    if any(look.foreign for look in looks):
        raise foreign_change(topic.name, looks)
    return _properties_of(topic, looks)


def _properties_of(topic: Topic, looks: Sequence[Look]) -> dict[str, str | None]:
    """Return the state's properties with the row counts of the looks."""
    counted = {name: text for look in looks for name, text in look.counted.items()}
    if REMOVING in topic.properties:
        counted[REMOVING] = None
    return counted


def counted_anew(topic: Topic) -> dict[str, str]:
    """Return the state's properties with the current row counts, foreign changes included."""
    counted: dict[str, str | None] = {}
    for table in Counted.of(topic.name):
        opened = open_table(topic.spark, table.table)
        counted |= _told(table, opened, _all_rows(opened), {})
    return {name: text for name, text in counted.items() if text is not None}


def _all_rows(opened: Table) -> RowsBySegment:
    if opened.current is None:
        return {}
    rows = live_rows(opened.spark, opened.name, opened.current.id).collect()
    return {(row["partition"], row["segment"]): row["rows"] for row in rows if row["rows"]}


def foreign_change(name: TopicName, looks: Sequence[Look]) -> ForeignChangeError:
    """Return the error that names the foreign changes and the command that plans the repair."""
    changes = "; ".join(
        f"{look.table.what}: {', '.join(look.foreign[:SHOWN])}" for look in looks if look.foreign
    )
    return ForeignChangeError(
        f"expected the rows of {name} as of ebbtide's last commit, found a foreign change: "
        f"{changes}. The topic is blocked until it is repaired. To plan the repair: "
        f'airflow dags trigger repair_state --conf \'{{"topic": "{name}"}}\''
    )


def _look_at(topic: Topic, table: Counted) -> Look:
    opened = open_table(topic.spark, table.table)
    _check_columns(opened, table)
    seen = seen_of(topic.properties, table.what)
    if seen is None:
        return Look(table, None, _told(table, opened, _all_rows(opened), {}), [])
    since = history_since(opened, seen.snapshot)
    foreign = [str(commit) for commit in reversed(since.commits) if commit.is_foreign]
    if lines := _rolled_back(opened, seen, since):
        return Look(table, seen, {}, [*lines, *foreign], is_rolled_back=True)
    if since.is_reached:
        if not since.commits:
            return Look(table, seen, {}, [])
        own_commits = [commit.id for commit in since.commits if commit.is_own]
        changed = rows_changed(opened, own_commits)
        before = told_rows(topic.properties, table.what, partitions_of(changed))
        return Look(table, seen, _told(table, opened, added(before, changed), changed), foreign)
    held_rows, told = _all_rows(opened), told_rows(topic.properties, table.what)
    if not foreign:
        own_commits = [commit.id for commit in _own_after(opened, seen)]
        expected = added(told, rows_changed(opened, own_commits))
        foreign = _unexplained(topic, table, expected, held_rows)
    return Look(table, seen, _told(table, opened, held_rows, told), foreign)


def _told(
    table: Counted, opened: Table, rows: RowsBySegment, before: RowsBySegment
) -> dict[str, str | None]:
    """Return the properties that record these rows, also for partitions that had rows before."""
    seen = NOTHING_SEEN
    if opened.current is not None:
        seen = Seen(opened.current.id, opened.metadata.last_sequence_number)
    partitions = partitions_of(rows, before)
    return {**seen_property(table.what, seen), **rows_properties(table.what, rows, partitions)}


def _check_columns(opened: Table, table: Counted) -> None:
    """Raise ConfigurationError if one of ebbtide's columns is missing. More columns are allowed."""
    columns = [column.name for column in opened.metadata.columns]
    missing = [name for name in table.columns if name not in columns]
    if missing:
        others = [name for name in columns if name not in table.columns]
        raise ConfigurationError(
            f"expected columns {quoted_list(missing)} in {table.table}, found "
            f"{quoted_list(others) or 'none'} that are not ebbtide's: another tool renamed or "
            "dropped the expected ones. Rename the columns back with ALTER TABLE, or roll the "
            "table's metadata back"
        )


def _rolled_back(opened: Table, seen: Seen, since: Since) -> list[str]:
    """Describe how the table was rolled back since the state was written; empty if it was not."""
    # Each commit's sequence number is larger than all earlier ones, so a lower one is a rollback.
    is_older = any(commit.sequence_number <= seen.sequence_number for commit in since.commits)
    if is_older or not (since.is_reached or since.is_cut):
        newest = since.commits[0].id if since.commits else "none"
        return [
            f"rolled back from snapshot {seen.snapshot} to another history, with newest snapshot "
            f"{newest}"
        ]
    last = opened.metadata.last_sequence_number
    if since.is_cut or last == seen.sequence_number + len(since.commits):
        return []  # by their numbers, no commit since then is missing from the main branch
    kept = {commit.id for commit in since.commits}
    return [
        f"rolled back to before ebbtide's commit {commit}"
        for commit in _own_after(opened, seen)
        if commit.id not in kept
    ]


def _own_after(opened: Table, seen: Seen) -> list[Snapshot]:
    """Return ebbtide's own commits that are not counted yet and not expired."""
    return [
        commit
        for commit in opened.metadata.snapshots.values()
        if commit.sequence_number > seen.sequence_number and commit.is_own
    ]


def _unexplained(
    topic: Topic, table: Counted, expected: RowsBySegment, held_rows: RowsBySegment
) -> list[str]:
    """Describe the differences in row counts that no known cause explains.

    Known causes are an append in flight and an announced removal.
    """
    off = differences(expected, held_rows)
    more = {place: count for place, count in off.items() if count > 0}
    appended = _appended(topic, table, more) if more else {}
    lines = []
    for (partition, segment), count in off.items():
        count -= appended.get((partition, segment), 0) if count > 0 else 0
        if count > 0 or (count < 0 and REMOVING not in topic.properties):
            lines.append(
                f"{abs(count)} rows {'more' if count > 0 else 'fewer'} than recorded in partition "
                f"{partition}, segment {segment}"
            )
    return lines


def _appended(topic: Topic, table: Counted, places: RowsBySegment) -> dict[tuple[int, int], int]:
    """Count the rows of these segments at or above their partition's log end offset."""
    current = open_table(topic.spark, table.table).current
    assert current is not None
    ends = dict.fromkeys((partition for partition, _ in places), MAX_OFFSET)
    units = plan_segments(topic.spark, table.table, current.id, ends)
    states, beyond = topic.partitions, {}
    for unit in units:
        if (place := (unit.partition, unit.segment)) in places:
            offsets = read_segment(unit, (table.offset,), table.offset).table[table.offset]
            state = states.get(unit.partition)
            end = 0 if state is None else state.log_end_offset
            beyond[place] = int(np.count_nonzero(offsets.to_numpy() >= end))
    return beyond
