"""A closed archive whose keys are erased."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.jobs.erase_keys.stage import erase_keys
from ebbtide.ledger.own_tables import ERASURES
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure
from ebbtide.state.topic_state import APPEND
from tests.tables.nights import DAY_MS
from tests.tables.partition_log import T0

CONFIG = {
    "kafka.cleanup.policy": "compact",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.delete.retention.ms": str(DAY_MS),
    "ebbtide.source": "",
}
ERASED_MS = T0 + 10 * DAY_MS


def batch(first: int, *pairs: tuple[str, str | None]) -> bytes:
    records = [
        Record(first + i, T0 + first + i, key.encode(), value and value.encode())
        for i, (key, value) in enumerate(pairs)
    ]
    return write_batch(BatchFields(leader_epoch=3), records)


def configure(spark: SparkSession, name: TopicName, properties: dict[str, str | None]) -> None:
    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: properties)


def erasure_of(*keys: str, **fields: Any) -> Erasure:
    ordinary = {
        "run_id": "erase-1",
        "now_ms": ERASED_MS,
        "requested_by": "privacy office",
        "reason": "request 17",
        "appends": True,
    }
    return Erasure(keys=tuple(key.encode() for key in keys), **{**ordinary, **fields})


def erase(spark: SparkSession, name: TopicName, erasure: Erasure) -> JobOutcome:
    return erase_keys(spark, name, erasure)


def records(spark: SparkSession, name: TopicName) -> list[tuple[int, int, str, str | None]]:
    rows = spark.table(name.records_table).orderBy("partition", "offset").collect()
    return [
        (r["partition"], r["offset"], r["key"].decode(), r["value"] and r["value"].decode())
        for r in rows
    ]


def batches(spark: SparkSession, name: TopicName) -> list[dict[str, Any]]:
    table = spark.table(name.batches_table).orderBy("partition", "base_offset")
    rows: list[dict[str, Any]] = table.toArrow().to_pylist()
    return rows


def erased(spark: SparkSession, name: TopicName) -> None:
    """Assert what an erasure of a, c and x leaves, each tombstone once."""
    held = records(spark, name)
    assert held == [
        (0, 1, "b", "1"),
        (0, 4, "c", None),
        (0, 5, "d", "1"),
        (0, 6, "a", None),
        (1, 1, "a", None),
    ]
    by_place = [(b["partition"], b["base_offset"], b["record_count"]) for b in batches(spark, name)]
    assert [place for place in by_place if place[2]] == [(0, 0, 1), (0, 4, 2), (0, 6, 1), (1, 1, 1)]
    states = load(spark, name).partitions
    assert {p: (s.log_end_offset, s.first_appended_offset) for p, s in states.items()} == {
        0: (7, 6),
        1: (2, 1),
    }
    assert APPEND not in load(spark, name).properties


def erasures(spark: SparkSession, name: TopicName, status: str) -> dict[Any, dict[str, Any]]:
    rows = spark.table(ERASURES.in_catalog()).where(f"topic = '{name}' AND status = '{status}'")
    kept_rows = rows.toArrow().to_pylist()
    assert len({(r["partition"], r["key_hmac"]) for r in kept_rows}) == len(kept_rows)
    return {(row["partition"], row["key_hmac"]): row for row in kept_rows}
