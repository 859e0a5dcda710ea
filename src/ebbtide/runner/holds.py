"""`lake.ebbtide.holds`: the events of holds; rows never change.

Each catalog that holds a replica of a topic has such a table too, so that nobody removes there what
is held here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import EbbtideError, HoldError, RequestError, is_transient
from ebbtide.iceberg.adopted.rows import AdoptedRows, time_of
from ebbtide.iceberg.catalog import Table, find_table, java_table, open_table, table_exists
from ebbtide.iceberg.commits import Commits, Step, commit, current_commits
from ebbtide.iceberg.data_files import numbers_in
from ebbtide.iceberg.history import history_since
from ebbtide.iceberg.own_tables import append_own
from ebbtide.iceberg.schema import RECORD_NAMES, create_held, create_held_of_others
from ebbtide.iceberg.segment_planning import RowsAsked, matching_files
from ebbtide.iceberg.topics import Topic, compare_and_set, current_snapshot, read_again
from ebbtide.ledger.holds import (
    HOLDS,
    Hold,
    HoldEvent,
    Kind,
    holds_of,
    newest_events,
    pause_of,
    paused,
    that_keep,
)
from ebbtide.ledger.plans import Removes, offset_range
from ebbtide.moments import machine_clock, to_datetime, to_us
from ebbtide.runner.outages import explained
from ebbtide.settings.names import TopicName
from ebbtide.spark.expressions import any_column, any_of, number_sets
from ebbtide.spark.job_log import watched
from ebbtide.spark.jvm import java_class
from ebbtide.state.topic_state import HELD
from ebbtide.text import number

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
    asked = RowsAsked("topic", frozenset({_within(name), None}))
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


HOLD_ID = "hold_id"


def covers(hold: Hold) -> str:
    """Return, as SQL, whether a hold covers a record.

    A record without an event time may be of any time, so that it is covered.
    """
    bounds = (
        ("`partition` = {}", hold.partition),
        ("offset >= {}", hold.first_offset),
        ("offset < {}", hold.end_offset),
    )
    conditions = [condition.format(bound) for condition, bound in bounds if bound is not None]
    times = ((">=", hold.event_time_from), ("<", hold.event_time_until))
    conditions += [
        f"coalesce(event_time {is_in} timestamp_micros({to_us(at)}), true)"
        for is_in, at in times
        if at is not None
    ]
    if hold.key_hashes is not None:
        hashes = ", ".join(f"'{key_hash}'" for key_hash in hold.key_hashes)
        conditions.append(f"coalesce(sha2(key, 256) IN ({hashes}), false)")
    return " AND ".join(conditions) or "true"


def any_covers(holds: Iterable[Hold]) -> Column:
    """Return whether any of the holds covers a record."""
    return F.expr(any_of(map(covers, holds)))


def covered(rows: DataFrame, holds: Sequence[Hold]) -> DataFrame:
    """Return each row once for every hold that covers it, with the hold's id."""
    ids = [F.when(F.expr(covers(hold)), F.lit(hold.hold_id)) for hold in holds]
    return rows.where(any_covers(holds)).withColumn(
        HOLD_ID, F.explode(F.array_compact(F.array(*ids)))
    )


def below_starts(topic: Topic, holds: Sequence[Hold]) -> dict[int, int]:
    """Return the log start offsets below which a hold may cover a row: rows there go any time."""
    return {
        partition: state.log_start_offset
        for partition, state in topic.partitions.items()
        if any(
            hold.is_on(partition) and (hold.first_offset or 0) < state.log_start_offset
            for hold in holds
        )
    }


def within_holds(leaving: Removes, holds: Sequence[Hold]) -> dict[int, BitMap64]:
    """Return those of the offsets that a hold may cover, by partition; empty where none is."""
    may_be: dict[int, BitMap64] = {}
    for partition, offsets in leaving.items():
        within = BitMap64()
        for hold in holds:
            if hold.is_on(partition) and offsets:
                first = hold.first_offset or 0
                end = offsets.max() + 1 if hold.end_offset is None else hold.end_offset
                within |= offsets & offset_range(first, end)
        if within:
            may_be[partition] = within
    return may_be


def at_offsets(
    spark: SparkSession, rows: DataFrame, removes: Removes, below: Mapping[int, int]
) -> DataFrame:
    """Return the rows at these offsets, and those below an offset by partition.

    A first run of offsets stays a range. A log may be so long that all below its start, as a set
    of offsets, would fill the memory.
    """
    partition_of, offset = F.col("partition"), F.col("offset")
    ranges = [(partition_of == partition) & (offset < end) for partition, end in below.items()]
    single = []
    for partition, offsets in sorted(removes.items()):
        if not offsets:
            continue
        first, end = max(offsets.min(), below.get(partition, 0)), _end_of_first_run(offsets)
        ranges.append((partition_of == partition) & (offset >= first) & (offset < end))
        rest = offsets - offset_range(offsets.min(), end)
        if rest := rest - offset_range(rest.min() if rest else 0, below.get(partition, 0)):
            single.append((partition, rest))
    in_ranges = rows.where(any_column(ranges))
    if not single:
        return in_ranges
    bounds = any_column(
        (F.col("partition") == partition) & F.col("offset").between(rest.min(), rest.max())
        for partition, rest in single
    )
    listed = F.broadcast(spark.createDataFrame(_table_of(dict(single))))
    return in_ranges.unionByName(rows.where(bounds).join(listed, ["partition", "offset"], "semi"))


def _end_of_first_run(offsets: BitMap64) -> int:
    """Return the first offset after the smallest that is missing, by halving."""
    first, low, high = offsets.min(), offsets.min() + 1, offsets.max() + 1
    while low < high:  # [first, low) is whole, [first, high + 1) is not
        middle = (low + high + 1) // 2
        if offsets.contains_range(first, middle):
            low = middle
        else:
            high = middle - 1
    return int(low)


def _table_of(offsets: Mapping[int, BitMap64]) -> pa.Table:
    partitions = [
        np.full(len(bitmap), partition, np.int32) for partition, bitmap in offsets.items()
    ]
    numbers = [numbers_in(bitmap) for bitmap in offsets.values()]
    columns = {"partition": np.concatenate(partitions), "offset": np.concatenate(numbers)}
    return pa.table(columns)


ROW = "row"  # all columns of a row of an adopted table
# Types of a key column whose values have bytes of their own, or a text.
_TEXTS = frozenset({"string", "int", "long", "uuid"})


def live_records(topic: Topic, snapshot: int | None = None) -> DataFrame:
    """Return the live records with `partition`, offset, event_time, key and all that is kept.

    Of an adopted topic, `snapshot` is the one that they are read from.
    """
    if not topic.is_adopted:
        return topic.spark.table(topic.name.records_table).select(RECORD_NAMES)
    rows = AdoptedRows.of(topic)
    current = snapshot or current_snapshot(topic.spark, topic.name.records_table)
    assert current is not None, f"{topic.name} has no snapshot"
    return _judged(rows, rows.at(current))


def records_as_of(topic: Topic, snapshot: int) -> DataFrame:
    """Return the live records of an older snapshot."""
    if topic.is_adopted:
        adopted = AdoptedRows.of(topic)
        return _judged(adopted, adopted.as_of(snapshot))
    rows = topic.spark.sql(f"SELECT * FROM {topic.name.records_table} VERSION AS OF {snapshot}")
    return rows.select(RECORD_NAMES)


def check_has_key_bytes(topic: Topic) -> None:
    """Raise RequestError for an adopted topic whose keys are no bytes, text or numbers."""
    if topic.is_adopted and key_bytes(AdoptedRows.of(topic)) is None:
        raise RequestError(
            f"expected keys of bytes, text or whole numbers in {topic.name}, found "
            f"{_kind_of_key(AdoptedRows.of(topic))}; name offsets or event times instead"
        )


def key_bytes(rows: AdoptedRows) -> Column | None:
    """Return a key's bytes: its own, or its text as UTF-8; None for other types."""
    kind = _kind_of_key(rows)
    if kind in _TEXTS:
        return F.col("key").cast("string").cast("binary")
    return F.col("key") if kind == "binary" or kind.startswith("fixed") else None


def _kind_of_key(rows: AdoptedRows) -> str:
    return "no key column" if rows.layout.key is None else rows.layout.key.type


def _judged(rows: AdoptedRows, records: DataFrame) -> DataFrame:
    event_time = F.when(F.col("timestamp_ms") >= 0, time_of("timestamp_ms"))
    of_key = key_bytes(rows)
    key = F.lit(None).cast("binary") if of_key is None else of_key
    is_placed = F.col("partition").isNotNull() & F.col("offset").isNotNull()
    return records.where(is_placed).select(
        "partition", "offset", event_time.alias("event_time"), key.alias("key"), ROW
    )


def create_held_table(topic: Topic) -> None:
    """Create the table of the topic's held records if there was none; the state keeps its id.

    Raise HoldError if somebody dropped it.
    """
    table = find_held_table(topic)
    if table is None:
        create = create_held_of_others if topic.is_adopted else create_held
        commit(Step.HELD_TABLE, partial(create, topic.spark, topic.name))
        table = open_table(topic.spark, topic.name.held_table)
    if HELD not in read_again(topic).properties:
        held = {HELD: table.metadata.uuid}
        compare_and_set(topic, Step.HELD_TABLE, lambda _: held)


def find_held_table(topic: Topic) -> Table | None:
    """Return the table of the topic's held records, or None if none was ever made.

    Raise HoldError if the state tells of another one than there is: somebody dropped it.
    """
    spark, name = topic.spark, topic.name
    table, known = find_table(spark, name.held_table), read_again(topic).properties.get(HELD)
    if known is None or (table is not None and table.metadata.uuid == known):
        return table
    raise HoldError(
        f"expected the records that holds keep of {name} in {name.held_table}, the table {known}, "
        f"found {'none' if table is None else table.metadata.uuid}: somebody dropped it, and what "
        "it kept is gone from there. Register its last metadata file again; or end each hold on "
        "the topic and make it again, which copies what snapshots still have"
    )


def widen_held_table(topic: Topic, rows: DataFrame) -> None:
    """Add the columns of an adopted table that the table of its held records lacks.

    What was read from that table before cannot be written to it any more.
    """
    if not topic.is_adopted:
        return
    table = java_table(topic.spark, topic.name.held_table)
    schemas = java_class(topic.spark, "org.apache.iceberg.spark.SparkSchemaUtil")
    schema = schemas.convert(rows.select(ROW)._jdf.schema())
    update = table.updateSchema().unionByNameWith(schema)
    if not update.apply().sameSchema(table.schema()):
        commit(Step.HELD_TABLE, update.commit)


def as_held(topic: Topic, rows: DataFrame) -> DataFrame:
    """Return the rows in the columns of the table of held records, null where they have none."""
    held = topic.spark.table(topic.name.held_table)
    if not topic.is_adopted:
        return rows.select(held.columns)
    return held.limit(0).unionByName(rows.select(held.columns), allowMissingColumns=True)


# Copy held records to a table of their own before they leave a log; drop those of ended holds.
#
# The log itself goes on as Kafka's. A row is copied once for each hold that covers it: a hold's
# rows are a partition of the table. A killed copy is found again by the rows that it has left.


log = logging.getLogger(__name__)

# By hold, as a message names it.
KeptRows = dict[str, int]
_PLACE = [HOLD_ID, "partition", "offset"]
_JUDGED = ["partition", "offset", "event_time", "key"]


def keep_leaving(
    topic: Topic,
    removes: Removes,
    more_holds: Sequence[Hold] = (),
    below: Mapping[int, int] | None = None,
    *,
    snapshot: int | None = None,
) -> KeptRows:
    """Copy the held ones of the records at these offsets; how many, by hold.

    Beside them those below the log start offsets, and below those of `below` by partition.
    `more_holds` are of a replica's primary; `snapshot` is what an adopted topic is read from.
    """
    holds = _holds_on(topic, more_holds)
    leaving = within_holds(removes, holds)
    starts = below_starts(topic, holds) | (dict(below or {}) if holds else {})
    if not (leaving or starts) or current_snapshot(topic.spark, topic.name.records_table) is None:
        return {}
    rows = live_records(topic, snapshot)
    return _keep(topic, at_offsets(topic.spark, rows, leaving, starts), holds)


def add_kept(kept: KeptRows, more: KeptRows) -> None:
    """Count these beside the others."""
    for hold, rows in more.items():
        kept[hold] = kept.get(hold, 0) + rows


def count_leaving(topic: Topic, removes: Removes) -> KeptRows:
    """Return how many of the records at these offsets each hold would keep."""
    holds = _holds_on(topic, ())
    leaving = within_holds(removes, holds)
    if not leaving or current_snapshot(topic.spark, topic.name.records_table) is None:
        return {}
    rows = live_records(topic).select(_JUDGED)
    return _counted(covered(at_offsets(topic.spark, rows, leaving, {}), holds), holds)


def count_covered(topic: Topic, hold: Hold) -> Counter[int]:
    """Return how many records of the log the hold covers, by partition."""
    if current_snapshot(topic.spark, topic.name.records_table) is None:
        return Counter()
    rows = live_records(topic).where(F.expr(covers(hold)))
    counts = rows.groupBy("partition").count().collect()
    return Counter({row["partition"]: row["count"] for row in counts})


def offsets_let_go(topic: Topic, hold: Hold) -> dict[int, BitMap64]:
    """Return the offsets of the records kept for the hold that it covers no more."""
    spark, name = topic.spark, topic.name
    if not table_exists(spark, name.held_table):
        return {}
    rows = spark.table(name.held_table).where(F.expr(_let_go(hold)))
    return {p: offsets for (p,), offsets in number_sets(rows, ["partition"], "offset").items()}


def holds_on_keys(topic: Topic, hashes: Sequence[str]) -> list[Hold]:
    """Return the holds on keys, given as SHA-256 in hex, or on records of them."""
    spark, name, holds = topic.spark, topic.name, _holds_on(topic, ())
    by_key = [hold for hold in holds if set(hold.key_hashes or ()) & set(hashes)]
    others = [hold for hold in holds if hold.key_hashes is None]
    if by_key or not others or not hashes:
        return by_key
    wanted = spark.createDataFrame(pa.table({"key_sha256": list(hashes)}))
    ids: set[str] = set()
    tables = [] if current_snapshot(spark, name.records_table) is None else [live_records(topic)]
    tables += [spark.table(name.held_table)] if table_exists(spark, name.held_table) else []
    for table in tables:
        rows = table.select(_JUDGED).withColumn("key_sha256", F.sha2("key", 256))
        found = covered(rows.join(F.broadcast(wanted), "key_sha256", "left_semi"), others)
        ids |= {row[HOLD_ID] for row in found.select(HOLD_ID).distinct().collect()}
    return [hold for hold in others if hold.hold_id in ids]


def keep_removed(topic: Topic, snapshots: Collection[int] | None = None) -> KeptRows:
    """Copy held records that the log has lost but a snapshot still has; how many, by hold.

    Of the records table's snapshots these are looked at, all without `snapshots`; of an adopted
    table those before a removal of ebbtide's. What lies in quarantine counts as lost.
    """
    spark, name = topic.spark, topic.name
    holds = _holds_on(topic, ())
    if not holds:
        return {}
    lost = [
        records_as_of(topic, version)
        for version in reversed(_before_removals(topic))
        if snapshots is None or version in snapshots
    ]
    if snapshots is None and table_exists(spark, name.quarantine_table):
        quarantined = spark.table(name.quarantine_table)
        lost.append(quarantined.where(F.col("table_id") == _id_of(topic)).select(RECORD_NAMES))
    kept: KeptRows = {}
    if not lost:
        return kept
    live = live_records(topic).select("partition", "offset")
    for rows in lost:  # one by one: the newest version of a record is kept
        gone = rows.where(any_covers(holds))
        add_kept(kept, _keep(topic, gone.join(live, ["partition", "offset"], "left_anti"), holds))
    return kept


def keep_removed_by(topic: Topic, commits: Commits) -> KeptRows:
    """Copy held records that a run's commits have taken out and that are not copied yet.

    A hold that was made while the run was at work covers them too; how many, by hold.
    """
    known = open_table(topic.spark, topic.name.records_table).metadata.snapshots
    own = [known[snapshot] for snapshot in commits.snapshots if snapshot in known]
    before = {made.parent for made in own if made.may_remove_rows and made.parent is not None}
    return keep_removed(topic, before) if before else {}


def drop_unheld(topic: Topic) -> int:
    """Delete the kept rows that their hold covers no more; how many."""
    spark, name = topic.spark, topic.name
    table = find_held_table(topic)
    if table is None or table.current is None:
        return 0
    known = newest_events(read_holds(spark, name))
    # A row whose hold nobody knows stays: only an event ends a hold.
    let_go = {hold.hold_id: _let_go(hold) for hold in known}
    of_any = spark.table(name.held_table).where(F.expr(any_of(let_go.values())))
    gone = {row[HOLD_ID]: row["count"] for row in of_any.groupBy(HOLD_ID).count().collect()}
    for hold_id in gone:  # by hold: the rows of one that has ended go with their files, unread
        delete = partial(spark.sql, f"DELETE FROM {name.held_table} WHERE {let_go[hold_id]}")
        commit(Step.HELD_ENDED, delete)
    total = int(sum(gone.values()))
    if total:
        log.info("%s kept records are held no more", number(total))
    return total


def _let_go(hold: Hold) -> str:
    """Return, as SQL, whether a kept row is the hold's and it covers the row no more."""
    is_its = f"hold_id = {_text(hold.hold_id)}"
    if hold.event is HoldEvent.ENDED or hold.kind is not Kind.KEEP:
        return is_its
    return f"{is_its} AND NOT ({covers(hold)})"


def _holds_on(topic: Topic, more: Iterable[Hold]) -> list[Hold]:
    """Return the holds that keep records of the topic, each id once."""
    own = standing_holds(topic.spark, topic.name, machine_clock())
    return list({hold.hold_id: hold for hold in that_keep([*more, *own])}.values())


def _keep(topic: Topic, rows: DataFrame, holds: Sequence[Hold]) -> KeptRows:
    """Copy the rows that a hold covers, without those that are copied already.

    CommitConflictError where another job copied some meanwhile.
    """
    spark, name = topic.spark, topic.name
    create_held_table(topic)
    before = current_snapshot(spark, name.held_table)
    with watched(spark, log, "copies held records of"):
        counts = _counted(_missing(topic, rows, holds), holds)
    if not counts:
        return {}
    widen_held_table(topic, rows)
    writer = as_held(topic, _missing(topic, rows, holds)).writeTo(name.held_table)
    writer = writer.option("isolation-level", "serializable")
    if before is not None:
        writer = writer.option("validate-from-snapshot-id", str(before))
    # Overwriting no rows is an append that also checks that nobody else appended.
    commit(Step.HELD_ROWS, lambda: writer.overwrite(F.lit(False)))
    for hold, rows_kept in counts.items():
        log.info("%s keeps %s records", hold, number(rows_kept))
    return counts


def _missing(topic: Topic, rows: DataFrame, holds: Sequence[Hold]) -> DataFrame:
    """Return the rows that a hold covers and that are not copied yet, as this job keeps them."""
    kept = topic.spark.table(topic.name.held_table)
    mine = kept.where(F.col("table_id") == _id_of(topic)).select(_PLACE)
    run = current_commits()
    columns: dict[str, Any] = {
        "job": None if run is None else run.job,
        "run_id": None if run is None else run.run_id,
        "kept_at": machine_clock(),
        "table_id": _id_of(topic),
    }
    missing = covered(rows, holds).join(mine, _PLACE, "left_anti")
    return missing.withColumns({column: F.lit(value) for column, value in columns.items()})


def _counted(rows: DataFrame, holds: Sequence[Hold]) -> KeptRows:
    names = {hold.hold_id: str(hold) for hold in holds}
    counts = rows.groupBy(HOLD_ID).count().collect()
    return {names[row[HOLD_ID]]: row["count"] for row in sorted(counts)}


def _before_removals(topic: Topic) -> list[int]:
    """Return the snapshots that have rows which a newer one, or none, may lack.

    Of an adopted topic those before which ebbtide removed rows of it, if they are there still.
    """
    opened = open_table(topic.spark, topic.name.records_table)
    commits = opened.metadata.snapshots.values()
    removals = [made for made in commits if made.may_remove_rows]
    if topic.is_adopted:
        own = (made for made in removals if made.is_own and made.is_of(str(topic.name)))
        wanted = {made.parent for made in own}
    else:
        heads = {made.id for made in commits} - {made.parent for made in commits}
        heads -= {None if opened.current is None else opened.current.id}
        wanted = {made.parent for made in removals} | heads
    return [made.id for made in commits if made.id in wanted]


def _id_of(topic: Topic) -> str:
    return open_table(topic.spark, topic.name.records_table).metadata.uuid


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
