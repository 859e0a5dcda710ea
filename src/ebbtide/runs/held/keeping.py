"""Copy held records to a table of their own before they leave a log; drop those of ended holds.

The log itself goes on as Kafka's. A row is copied once for each hold that covers it: a hold's rows
are a partition of the table. A killed copy is found again by the rows that it has left.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Commits, Step, commit, current_commits
from ebbtide.iceberg.schema import RECORD_NAMES
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.log.holds import Event, Hold, Kind, newest_events, that_keep
from ebbtide.log.plans.offsets import Removes
from ebbtide.runs.held.rows import (
    HOLD_ID,
    any_covers,
    at_offsets,
    below_starts,
    covered,
    covers,
    within_holds,
)
from ebbtide.runs.held.sources import (
    as_held,
    create_held_table,
    find_held_table,
    live_records,
    records_as_of,
    widen_held_table,
)
from ebbtide.runs.holds_table import read_holds, standing_holds
from ebbtide.spark.conditions import any_of
from ebbtide.spark.job_log import watched
from ebbtide.spark.number_sets import number_sets
from ebbtide.text import number

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
    if hold.event is Event.ENDED or hold.kind is not Kind.KEEP:
        return is_its
    return f"{is_its} AND NOT ({covers(hold)})"


def _holds_on(topic: Topic, more: Iterable[Hold]) -> list[Hold]:
    """Return the holds that keep records of the topic, each id once."""
    own = standing_holds(topic.spark, topic.name, datetime.now(UTC))
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
        "kept_at": datetime.now(UTC),
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
