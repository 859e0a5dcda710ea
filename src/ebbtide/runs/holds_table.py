"""`lake.ebbtide.holds`: the events of holds; rows never change.

Each catalog that holds a replica of a topic has such a table too, so that nobody removes there what
is held here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError, HoldError, is_transient
from ebbtide.iceberg.catalog import Table, find_table, table_exists
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.matching_rows import Asked, matching_files
from ebbtide.iceberg.history import history_since
from ebbtide.iceberg.own_tables import append_own
from ebbtide.iceberg.topics import Topic
from ebbtide.log.holds import HOLDS, Hold, holds_of, newest_events, pause_of, paused
from ebbtide.log.settings.names import TopicName
from ebbtide.moments import to_datetime
from ebbtide.runs.outages import explained

# On the table of holds: the snapshots of a deletion or a rollback that is meant to be.
ACCEPTED = "ebbtide.accepted"


def append_hold(
    spark: SparkSession, name: TopicName, hold: Hold, check: Callable[[], object] = lambda: None
) -> None:
    """Store an event of a hold on the topic in its own catalog, unless `check` raises."""
    event = replace(hold, topic=_within(name))
    append_own(spark, HOLDS, [event], Step.HOLD_EVENT, name.catalog, check=check)


def standing_holds(spark: SparkSession, name: TopicName, now: datetime) -> list[Hold]:
    """Return the holds on the topic that stand at a moment; HoldError where that is unknown."""
    return holds_of(read_holds(spark, name), now)


def read_holds(spark: SparkSession, name: TopicName) -> list[Hold]:
    """Return all events of holds on the topic, in no order.

    Raise HoldError where they cannot be read: nobody knows then what must not be removed.
    """
    try:
        return [HOLDS.to_row(cells) for cells in _rows(spark, name)]
    except Exception as failure:
        error = explained(failure)
        if isinstance(error, EbbtideError) and (is_transient(error) or type(error) is HoldError):
            raise error from failure
        raise HoldError(
            f"expected the holds on {name} in {HOLDS.in_catalog(name.catalog)}, found that they "
            f"cannot be read: {type(error).__name__}: {error}; restore the table, until then "
            "nothing is removed that they might cover"
        ) from failure


def hand_on_holds(spark: SparkSession, primary: TopicName, replica: TopicName) -> None:
    """Append the newest event of each hold on a primary that its replica does not have yet."""
    events = newest_events(read_holds(spark, primary))
    known = {(hold.hold_id, hold.event, hold.at) for hold in read_holds(spark, replica)}
    for hold in events:
        if (hold.hold_id, hold.event, hold.at) not in known:
            append_hold(spark, replica, hold)


def holds_at(topic: Topic, now_ms: int) -> list[Hold]:
    """Return the holds on the topic that stand at a run's `now`."""
    return standing_holds(topic.spark, topic.name, to_datetime(now_ms))


def holds_to_review(topic: Topic, now: datetime) -> list[str]:
    """Return a sentence for each hold on the topic whose review date has passed."""
    return [
        hold.review_warning
        for hold in standing_holds(topic.spark, topic.name, now)
        if hold.is_to_be_reviewed(now)
    ]


def pauses_on(
    topic: Topic, holds: Sequence[Hold], why: Callable[[Hold], str] = paused
) -> dict[int, str]:
    """Return why a hold lets nothing be removed, of each partition where one does."""
    pauses = ((partition, pause_of(holds, partition)) for partition in topic.partitions)
    return {partition: why(pause) for partition, pause in pauses if pause is not None}


def _within(name: TopicName) -> str:
    """Return the topic's name in its own catalog, by which that catalog's lake knows it."""
    return f"{name.cluster}.{name.topic}"


def _rows(spark: SparkSession, name: TopicName) -> Iterable[dict[str, Any]]:
    """Return the rows of the topic, and those of no topic, which may be meant for any."""
    table = HOLDS.in_catalog(name.catalog)
    _check_whole(spark, name, find_table(spark, table))
    asked = Asked("topic", frozenset({_within(name), None}))
    rows: list[dict[str, Any]] = []
    for found, has_deletes in matching_files(spark, table, asked):
        if has_deletes:
            raise HoldError(
                f"expected no delete files in {table}, found some, which another tool has written; "
                "rewrite its data files with that tool"
            )
        rows += found.to_pylist()
    return rows


def _check_whole(spark: SparkSession, name: TopicName, table: Table | None) -> None:
    """Raise HoldError where somebody dropped the table, deleted rows of it, or rolled it back."""
    if table is None:
        if table_exists(spark, name.held_table):
            raise HoldError(
                f"expected the holds on {name} in {HOLDS.in_catalog(name.catalog)}, found no such "
                f"table beside {name.held_table}, which has records that were kept for one: "
                "somebody dropped it; register its last metadata file again, or drop that table as "
                "well"
            )
        return
    history = history_since(table, None)
    on_main = {made.id for made in history.commits}
    accepted = table.metadata.properties.get(ACCEPTED, "").split(",")
    for made in table.metadata.snapshots.values():
        is_rolled_back = made.id not in on_main and made.adds_rows and not history.is_cut
        has_deleted = made.id in on_main and made.may_remove_rows
        if (is_rolled_back or has_deleted) and str(made.id) not in accepted:
            what = "rolled back snapshot" if is_rolled_back else "deleted rows in snapshot"
            raise HoldError(
                f"expected the rows of {table}, which never change, found that somebody {what} "
                f"{made.id}: a hold may be missing. Set the table back to the snapshot with these "
                f"rows by set_current_snapshot; or if they are to be gone, set its property "
                f"{ACCEPTED} to {','.join([*filter(None, accepted), str(made.id)])}"
            )
