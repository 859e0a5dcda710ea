"""Ways to clean a log in Spark; each says how long its steps took, in seconds.

All but ours know the rule that a later record of a key supersedes the earlier, and nothing else:
no batches, no horizons, no state, no round that a killed run could finish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession

from benchmarks.clean_log.data.cells import NOW_MS, Cell
from benchmarks.clean_log.data.tables import ADOPTED, NAME, PLAIN, PLAIN_COLUMNS
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean

Steps = dict[str, float]
RAW = ADOPTED.records_table
# Beyond that many keys, a broadcast is more than a driver of 2 GB should hold.
MOST_KEYS_TO_BROADCAST = 1_000_000


class Contender(NamedTuple):
    """How to clean which table, and what of its properties and the session's settings to change."""

    table: str
    clean: Callable[[SparkSession, Cell], Steps]
    properties: Mapping[str, str] = {}
    settings: Mapping[str, str] = {}
    is_ours: bool = False


def ours(spark: SparkSession, cell: Cell) -> Steps:
    """What the job clean_log does to a topic: plan, then execute."""
    started = time.perf_counter()
    plan = plan_clean(load(spark, NAME), NOW_MS)
    planned = time.perf_counter()
    execute_clean(plan)
    steps = {"plan": planned - started, "execute": time.perf_counter() - planned}
    state = load(spark, NAME).partitions[0]
    assert state.first_dirty_offset == cell.records, f"expected a round, found {state}"
    return steps


def adopted(spark: SparkSession, cell: Cell) -> Steps:
    """What the job clean_log does to a topic whose table others write: look, plan, execute."""
    started = time.perf_counter()
    plan = plan_clean(load(spark, ADOPTED), NOW_MS)
    planned = time.perf_counter()
    execute_clean(plan)
    steps = {"plan": planned - started, "execute": time.perf_counter() - planned}
    state = load(spark, ADOPTED).partitions[0]
    assert state.first_dirty_offset == cell.records, f"expected a round, found {state}"
    return steps


def overwrite(spark: SparkSession, cell: Cell) -> Steps:
    """Number each key's records from the last one on, and write the first ones anew."""
    return _timed(
        spark,
        f"""
        INSERT OVERWRITE {PLAIN} SELECT {PLAIN_COLUMNS} FROM (
            SELECT *, row_number() OVER (PARTITION BY `partition`, key ORDER BY offset DESC) AS age
            FROM {PLAIN}
        ) WHERE age = 1
        """,
    )


def delete(spark: SparkSession, cell: Cell, table: str = PLAIN) -> Steps:
    """One DELETE with EXISTS over the dirty part."""
    return _timed(
        spark,
        f"""
        DELETE FROM {table} AS old WHERE EXISTS (
            SELECT {_hint(cell)} 1 FROM {_latest(cell, table)} AS latest
            WHERE latest.key = old.key AND old.offset < latest.offset
        )
        """,
    )


def merge(spark: SparkSession, cell: Cell, table: str = PLAIN) -> Steps:
    """One MERGE of the dirty part's last offsets."""
    return _timed(
        spark,
        f"""
        MERGE INTO {table} AS old
        USING (SELECT {_hint(cell)} * FROM {_latest(cell, table)} AS latest) AS latest
        ON old.key = latest.key AND old.offset < latest.offset WHEN MATCHED THEN DELETE
        """,
    )


def two_steps(spark: SparkSession, cell: Cell) -> Steps:
    """Find the superseded offsets by a join and keep them; delete them in a second statement."""
    started = time.perf_counter()
    victims = spark.sql(
        f"""
        SELECT {_hint(cell)} old.offset FROM {PLAIN} AS old JOIN {_latest(cell, PLAIN)} AS latest
        ON old.key = latest.key AND old.offset < latest.offset
        """
    ).cache()
    victims.createOrReplaceTempView("victims")
    victims.count()
    found = time.perf_counter() - started
    hint = _hint(cell).replace("latest", "victims")
    condition = f"offset IN (SELECT {hint} offset FROM victims)"
    return {"find": found, **_timed(spark, f"DELETE FROM {PLAIN} WHERE {condition}")}


def _latest(cell: Cell, table: str) -> str:
    """The last offset of each dirty key; a view of it would trip Spark 4.1's MERGE and DELETE."""
    dirty = "segment" if table == PLAIN else "offset"
    return (
        f"(SELECT key, max(offset) AS offset FROM {table} "
        f"WHERE {dirty} >= {cell.clean_records} GROUP BY key)"
    )


def _hint(cell: Cell) -> str:
    return "/*+ BROADCAST(latest) */" if cell.dirty_records <= MOST_KEYS_TO_BROADCAST else ""


def _timed(spark: SparkSession, statement: str) -> Steps:
    started = time.perf_counter()
    spark.sql(statement)
    return {statement.split(maxsplit=1)[0].lower(): time.perf_counter() - started}


# Without it, rows would be sorted by segment once more before they are written.
_FANOUT = {"write.spark.fanout.enabled": "true"}
# (One DELETE with EXISTS, copy-on-write, ends in an internal error of Spark 4.1's planner.)
_COPY_ON_WRITE = _FANOUT
_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.delete.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
_FORMAT_3 = {"format-version": "3"}
# Four partitions, the nightly jobs' setting, would each be sorted on the disk.
_MANY_PARTITIONS = {"spark.sql.shuffle.partitions": "32"}
CONTENDERS = {
    "ours": Contender(NAME.records_table, ours, is_ours=True),
    "overwrite": Contender(PLAIN, overwrite, _FANOUT, settings=_MANY_PARTITIONS),
    "cow-merge": Contender(PLAIN, merge, _COPY_ON_WRITE),
    "cow-two-steps": Contender(PLAIN, two_steps, _COPY_ON_WRITE),
    "mor-delete": Contender(PLAIN, delete, _MERGE_ON_READ),
    "mor-merge": Contender(PLAIN, merge, _MERGE_ON_READ),
    "mor-two-steps": Contender(PLAIN, two_steps, _MERGE_ON_READ),
    "adopted": Contender(RAW, adopted, is_ours=True),
    "adopted-v3": Contender(RAW, adopted, _FORMAT_3, is_ours=True),
    "delete-on-adopted": Contender(RAW, partial(delete, table=RAW), _MERGE_ON_READ),
    "merge-on-adopted": Contender(RAW, partial(merge, table=RAW), _MERGE_ON_READ),
    "cow-merge-on-adopted": Contender(RAW, partial(merge, table=RAW), _COPY_ON_WRITE),
    "merge-on-adopted-v3": Contender(
        RAW, partial(merge, table=RAW), {**_MERGE_ON_READ, **_FORMAT_3}
    ),
}
