"""The table `lake.ebbtide.holds` of hold events, and the copies of the records that holds cover.

Rows of the table never change. Each catalog that has a replica has such a table too: a hold on the
primary also protects the records of the replica.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.erased_keys import TIMES
from ebbtide.errors import ConfigurationError, EbbtideError, HoldError, RequestError, is_transient
from ebbtide.iceberg.adopted.rows import AdoptedRows, time_of
from ebbtide.iceberg.catalog import Table, find_table, java_table, open_table, table_exists
from ebbtide.iceberg.commits import Commits, Step, commit, current_commits
from ebbtide.iceberg.data_files import numbers_in
from ebbtide.iceberg.erasures import without_erased
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

# Property of the table of holds: ids of snapshots whose deletion or rollback is intended.
ACCEPTED = "ebbtide.accepted"


def append_hold(
    spark: SparkSession, name: TopicName, hold: Hold, check: Callable[[], object] = lambda: None
) -> None:
    """Store an event of a hold on the topic in the topic's catalog, unless `check` raises."""
    event = replace(hold, topic=_within(name))
    append_own(spark, HOLDS, [event], Step.HOLD_EVENT, name.catalog, check=check)


def standing_holds(spark: SparkSession, name: TopicName, now: datetime) -> list[Hold]:
    """Return the holds on the topic that are in force at `now`.

    Raise HoldError if they cannot be read.
    """
    return holds_of(read_holds(spark, name), now)


def read_holds(spark: SparkSession, name: TopicName) -> list[Hold]:
    """Return all events of holds on the topic, in no order.

    Raise HoldError if they cannot be read: no record may be removed then.
    """
    try:
        return [HOLDS.to_row(cells) for cells in _rows(spark, name)]
    except Exception as failure:
        error = explained(failure)
        if isinstance(error, EbbtideError) and (is_transient(error) or type(error) is HoldError):
            raise error from failure
        raise HoldError(
            f"expected readable holds on {name} in {HOLDS.in_catalog(name.catalog)}, found "
            f"{type(error).__name__}: {error}. Restore the table; until then no job removes "
            "records that a hold might cover"
        ) from failure


def hand_on_holds(spark: SparkSession, primary: TopicName, replica: TopicName) -> None:
    """Append to the replica the newest event of each hold on the primary, if it is missing."""
    events = newest_events(read_holds(spark, primary))
    known = {(hold.hold_id, hold.event, hold.at) for hold in read_holds(spark, replica)}
    for hold in events:
        if (hold.hold_id, hold.event, hold.at) not in known:
            append_hold(spark, replica, hold)


def holds_at(topic: Topic, now_ms: int) -> list[Hold]:
    """Return the holds on the topic that are in force at a run's `now`."""
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
    """Return the reason for each paused partition: the text of `why` for its pause."""
    pauses = ((partition, pause_of(holds, partition)) for partition in topic.partitions)
    return {partition: why(pause) for partition, pause in pauses if pause is not None}


def _within(name: TopicName) -> str:
    """Return `<cluster>.<topic>`, the topic's name without its catalog."""
    return f"{name.cluster}.{name.topic}"


def _rows(spark: SparkSession, name: TopicName) -> Iterable[dict[str, Any]]:
    """Return the topic's rows, and the rows without a topic, which may be meant for any topic."""
    table = HOLDS.in_catalog(name.catalog)
    _check_whole(spark, name, find_table(spark, table))
    asked = RowsAsked("topic", frozenset({_within(name), None}))
    rows: list[dict[str, Any]] = []
    for found, has_deletes in matching_files(spark, table, asked):
        if has_deletes:
            raise HoldError(
                f"expected no delete files in {table}, found some of another tool. Rewrite the "
                "table's data files with that tool"
            )
        rows += found.to_pylist()
    return rows


def _check_whole(spark: SparkSession, name: TopicName, table: Table | None) -> None:
    """Raise HoldError if another tool dropped the table, deleted its rows or rolled it back."""
    if table is None:
        if table_exists(spark, name.held_table):
            raise HoldError(
                f"expected the holds on {name} in {HOLDS.in_catalog(name.catalog)}, found no such "
                f"table, but {name.held_table} with records that were copied for holds: the table "
                f"of holds was dropped. Register its last metadata file again, or drop "
                f"{name.held_table} too"
            )
        return
    history = history_since(table, None)
    on_main = {made.id for made in history.commits}
    accepted = table.metadata.properties.get(ACCEPTED, "").split(",")
    for made in table.metadata.snapshots.values():
        is_rolled_back = made.id not in on_main and made.adds_rows and not history.is_cut
        has_deleted = made.id in on_main and made.may_remove_rows
        if (is_rolled_back or has_deleted) and str(made.id) not in accepted:
            what = "a rollback of snapshot" if is_rolled_back else "rows deleted in snapshot"
            raise HoldError(
                f"expected unchanged rows in {table}, found {what} {made.id}: a hold may be "
                "missing. Roll the table back to the snapshot with these rows by "
                "set_current_snapshot; or, to accept the change, set the table's property "
                f"{ACCEPTED} to {','.join([*filter(None, accepted), str(made.id)])}"
            )


HOLD_ID = "hold_id"


def covers(hold: Hold) -> str:
    """Return, as SQL, whether a hold covers a record.

    A record without an event time counts as within the hold's times.
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
    """Return one row per record and hold that covers it, with the hold's id."""
    ids = [F.when(F.expr(covers(hold)), F.lit(hold.hold_id)) for hold in holds]
    return rows.where(any_covers(holds)).withColumn(
        HOLD_ID, F.explode(F.array_compact(F.array(*ids)))
    )


def below_starts(topic: Topic, holds: Sequence[Hold]) -> dict[int, int]:
    """Return the log start offset of each partition in which a hold may cover rows below it.

    Any commit may delete the rows below a log start offset.
    """
    return {
        partition: state.log_start_offset
        for partition, state in topic.partitions.items()
        if any(
            hold.is_on(partition) and (hold.first_offset or 0) < state.log_start_offset
            for hold in holds
        )
    }


def within_holds(leaving: Removes, holds: Sequence[Hold]) -> dict[int, BitMap64]:
    """Return the offsets that a hold may cover, by partition, without partitions that have none."""
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
    """Return the rows at the offsets `removes`, and all rows below the offsets `below`.

    The first contiguous offsets of a partition are compared as a range. Listed one by one, the
    offsets below the start of a long log would exhaust the memory.
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
    """Return the end of the first contiguous offsets, by binary search."""
    first, low, high = offsets.min(), offsets.min() + 1, offsets.max() + 1
    while low < high:  # [first, low) has no gap, [first, high + 1) has one
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
# Types of a key column whose keys are read as text, in UTF-8.
_TEXTS = frozenset({"string", "int", "long", "uuid"})


def live_records(topic: Topic, snapshot: int | None = None) -> DataFrame:
    """Return the live records, with all columns that a hold judges or copies.

    An adopted topic is read at `snapshot`, or at its current snapshot.
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
    """Raise RequestError if the keys of an adopted topic are not bytes, text or whole numbers."""
    if topic.is_adopted and key_bytes(AdoptedRows.of(topic)) is None:
        raise RequestError(
            f"expected keys of bytes, text or whole numbers in {topic.name}, found "
            f"{_kind_of_key(AdoptedRows.of(topic))}. Name offsets or event times instead"
        )


def key_bytes(rows: AdoptedRows) -> Column | None:
    """Return a key's bytes, or its text as UTF-8, or None if its type has neither."""
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
    """Create the table of the topic's held records if it never existed, and record its id.

    Raise HoldError if the table was dropped.
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
    """Return the table of the topic's held records, or None if it never existed.

    Raise HoldError if its id is not the recorded one: the table was dropped.
    """
    spark, name = topic.spark, topic.name
    table, known = find_table(spark, name.held_table), read_again(topic).properties.get(HELD)
    if known is None or (table is not None and table.metadata.uuid == known):
        return table
    raise HoldError(
        f"expected table {known} with the held records of {name} as {name.held_table}, found "
        f"{'no table' if table is None else f'table {table.metadata.uuid}'}: the table was dropped "
        "with its copies. Register its last metadata file again; or end each hold on the topic and "
        "make it again, which copies the records that snapshots still have"
    )


def widen_held_table(topic: Topic, rows: DataFrame) -> None:
    """Add the adopted table's columns that its table of held records lacks.

    A DataFrame read from the table of held records before this cannot be written to it.
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
    """Return the rows in the columns of the table of held records; missing columns are null."""
    held = topic.spark.table(topic.name.held_table)
    if not topic.is_adopted:
        return rows.select(held.columns)
    return held.limit(0).unionByName(rows.select(held.columns), allowMissingColumns=True)


# Copy held records to a separate table before a job removes them; delete the copies of ended holds.
#
# Holds do not change what is removed from the log. A record is copied once per hold that covers it;
# the copies table is partitioned by hold. A run after a killed one skips the rows already copied.


log = logging.getLogger(__name__)

KeptRows = dict[str, int]  # numbers of rows by str(hold)
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
    """Copy the held records at the offsets `removes`, and return their number by hold.

    Held records below the log start offsets and below the offsets `below` are copied too.
    `more_holds` are the holds on a replica's primary. An adopted topic is read at `snapshot`.
    """
    holds = _holds_on(topic, more_holds)
    leaving = within_holds(removes, holds)
    starts = below_starts(topic, holds) | (dict(below or {}) if holds else {})
    if not (leaving or starts) or current_snapshot(topic.spark, topic.name.records_table) is None:
        return {}
    rows = live_records(topic, snapshot)
    return _keep(topic, at_offsets(topic.spark, rows, leaving, starts), holds)


def add_kept(kept: KeptRows, more: KeptRows) -> None:
    """Add the counts of `more` to those of `kept`, by hold."""
    for hold, rows in more.items():
        kept[hold] = kept.get(hold, 0) + rows


def count_leaving(topic: Topic, removes: Removes) -> KeptRows:
    """Return the number of records at these offsets that each hold would copy."""
    holds = _holds_on(topic, ())
    leaving = within_holds(removes, holds)
    if not leaving or current_snapshot(topic.spark, topic.name.records_table) is None:
        return {}
    rows = _copied(topic, at_offsets(topic.spark, _judged_records(topic), leaving, {}))
    return _counted(covered(rows, holds), holds)


class Covered(NamedTuple):
    """The live records that a hold's conditions cover, by partition."""

    records: Counter[int]  # which it would copy
    erased: Counter[int]  # whose keys were erased after they were written: it never copies them


def count_covered(topic: Topic, hold: Hold) -> Covered:
    """Count the live records under a hold.

    Without the secret of erased keys, none counts as erased: a hold can always be made.
    """
    if current_snapshot(topic.spark, topic.name.records_table) is None:
        return Covered(Counter(), Counter())
    rows = _judged_records(topic).where(F.expr(covers(hold)))
    found = _by_partition(rows)
    with suppress(ConfigurationError):
        copied = _copied(topic, rows)
        if copied is not rows:
            records = _by_partition(copied)
            return Covered(records, found - records)
    return Covered(found, Counter())


def _by_partition(rows: DataFrame) -> Counter[int]:
    counts = rows.groupBy("partition").count().collect()
    return Counter({row["partition"]: row["count"] for row in counts})


def offsets_let_go(topic: Topic, hold: Hold) -> dict[int, BitMap64]:
    """Return the offsets of the hold's copies that it no longer covers, by partition."""
    spark, name = topic.spark, topic.name
    if not table_exists(spark, name.held_table):
        return {}
    rows = spark.table(name.held_table).where(F.expr(_let_go(hold)))
    return {p: offsets for (p,), offsets in number_sets(rows, ["partition"], "offset").items()}


def holds_on_keys(topic: Topic, keys: Sequence[bytes]) -> list[Hold]:
    """Return the holds on these keys or on records with them."""
    hashes = [hashlib.sha256(key).hexdigest() for key in keys]
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
    """Copy held records that an older snapshot has and the log does not; return counts by hold.

    The snapshots before removals are read (in an adopted table: before ebbtide's removals); if
    `snapshots` is given, only those among them. Otherwise quarantined records are copied too.
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
    for rows in lost:  # newest snapshot first: a record's newest version is copied
        gone = rows.where(any_covers(holds))
        add_kept(kept, _keep(topic, gone.join(live, ["partition", "offset"], "left_anti"), holds))
    return kept


def keep_removed_by(topic: Topic, commits: Commits) -> KeptRows:
    """Copy the held records that a run's commits removed and that are not copied yet.

    This includes records of holds that were made during the run. Return their number by hold.
    """
    known = open_table(topic.spark, topic.name.records_table).metadata.snapshots
    own = [known[snapshot] for snapshot in commits.snapshots if snapshot in known]
    before = {made.parent for made in own if made.may_remove_rows and made.parent is not None}
    return keep_removed(topic, before) if before else {}


def drop_unheld(topic: Topic) -> int:
    """Delete the copies that their hold no longer covers, and return their number."""
    spark, name = topic.spark, topic.name
    table = find_held_table(topic)
    if table is None or table.current is None:
        return 0
    known = newest_events(read_holds(spark, name))
    # A copy of an unknown hold is retained: only an event ends a hold.
    let_go = {hold.hold_id: _let_go(hold) for hold in known}
    of_any = spark.table(name.held_table).where(F.expr(any_of(let_go.values())))
    gone = {row[HOLD_ID]: row["count"] for row in of_any.groupBy(HOLD_ID).count().collect()}
    for hold_id in gone:  # by hold: those of an ended hold are whole files, deleted unread
        delete = partial(spark.sql, f"DELETE FROM {name.held_table} WHERE {let_go[hold_id]}")
        commit(Step.HELD_ENDED, delete)
    total = int(sum(gone.values()))
    if total:
        log.info("deleted %s copies that no hold covers", number(total))
    return total


def _let_go(hold: Hold) -> str:
    """Return, as SQL, whether a row is a copy for the hold that the hold no longer covers."""
    is_its = f"hold_id = {_text(hold.hold_id)}"
    if hold.event is HoldEvent.ENDED or hold.kind is not Kind.KEEP:
        return is_its
    return f"{is_its} AND NOT ({covers(hold)})"


def _holds_on(topic: Topic, more: Iterable[Hold]) -> list[Hold]:
    """Return the holds that copy records of the topic, each id once."""
    own = standing_holds(topic.spark, topic.name, machine_clock())
    return list({hold.hold_id: hold for hold in that_keep([*more, *own])}.values())


def _keep(topic: Topic, rows: DataFrame, holds: Sequence[Hold]) -> KeptRows:
    """Copy the rows that a hold covers and that are not copied yet; return counts by hold.

    Raise CommitConflictError if another job has copied rows since.
    """
    spark, name, rows = topic.spark, topic.name, _copied(topic, rows)
    create_held_table(topic)
    before = current_snapshot(spark, name.held_table)
    with watched(spark, log, "copying held records"):
        counts = _counted(_missing(topic, rows, holds), holds)
    if not counts:
        return {}
    widen_held_table(topic, rows)
    writer = as_held(topic, _missing(topic, rows, holds)).writeTo(name.held_table)
    writer = writer.option("isolation-level", "serializable")
    if before is not None:
        writer = writer.option("validate-from-snapshot-id", str(before))
    # Overwriting no rows is an append that fails if another job has appended.
    commit(Step.HELD_ROWS, lambda: writer.overwrite(F.lit(False)))
    for hold, rows_kept in counts.items():
        log.info("copied %s records for %s", number(rows_kept), hold)
    return counts


def _copied(topic: Topic, rows: DataFrame) -> DataFrame:
    """Return the rows without those of erased keys: a hold does not bring them back."""
    if not topic.is_adopted:
        return without_erased(topic, rows, keeps_places=False)
    timed = rows.withColumn("timestamp", F.col("event_time"))
    copied = without_erased(topic, timed, keeps_places=False)
    return rows if copied is timed else copied.drop("timestamp")


def _judged_records(topic: Topic) -> DataFrame:
    """Return the live records with the columns that decide whether a hold copies them."""
    times = () if topic.is_adopted else TIMES
    return live_records(topic).select(*_JUDGED, *times)


def _missing(topic: Topic, rows: DataFrame, holds: Sequence[Hold]) -> DataFrame:
    """Return the rows that a hold covers and that are not copied yet, one per hold."""
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
    """Return the snapshots with rows that may no longer be live.

    They precede a removal, or were rolled back. Of an adopted topic, return only the snapshots
    that precede ebbtide's removals of its rows.
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
