"""Copies of tables that others write, as the job takes them, and what the copies hold."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import load
from ebbtide.jobs.ingest_table import TableSource, ingest_table
from ebbtide.jobs.quarantine import RunOf
from ebbtide.layouts.copied import CopiedTable
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.tables.adopted import Record
from tests.tables.counted import assert_counted
from tests.tables.nights import at

NOW_MS = 100_000


class Held(NamedTuple):
    """A record as a copy holds it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None


def source_of(name: TopicName) -> str:
    """The table that the tests copy to a topic."""
    return f"{name.cluster}_source.{name.topic}"


def copy(
    spark: SparkSession,
    name: TopicName,
    source: str | None = "",
    *,
    plan_only: bool = False,
    now_ms: int = NOW_MS,
    **more: object,
) -> JobOutcome:
    """Copy what is new, and check that the state counts all rows of both tables."""
    table = None if source is None else TopicName.parse(source or source_of(name))
    table_source = TableSource(at(now_ms), table, **more)  # type: ignore[arg-type]
    outcome = ingest_table(
        spark, name, table_source, RunOf("run", table_source.now), is_plan_only=plan_only
    )
    if not plan_only:
        assert_counted(spark, name)
    return outcome


def held(spark: SparkSession, name: TopicName, table: str = "") -> list[Held]:
    """The topic's records, or those of another of its tables, by partition and offset."""
    rows = spark.table(table or name.records_table).selectExpr(
        "`partition`", "offset", "key", "value", "unix_millis(timestamp)"
    )
    found = [
        Held(p, offset, _bytes(key), _bytes(value), ms)
        for p, offset, key, value, ms in rows.collect()
    ]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def as_held(records: list[Record]) -> list[Held]:
    """What a copy holds of these records; of those with the same offset one."""
    by_place = {(record.partition, record.offset): record for record in records}
    return [
        Held(
            *place,
            None if kept.key is None else kept.key.encode(),
            None if kept.value is None else kept.value.encode(),
            kept.timestamp_ms,
        )
        for place, kept in sorted(by_place.items())
    ]


def ends(spark: SparkSession, name: TopicName) -> dict[int, tuple[int, int]]:
    """Log start and log end offset of each partition."""
    states = load(spark, name).partitions
    return {p: (state.log_start_offset, state.log_end_offset) for p, state in states.items()}


def copied(spark: SparkSession, name: TopicName) -> CopiedTable:
    """What the state says of the source."""
    found = CopiedTable.of(load(spark, name).properties)
    assert found is not None
    return found


def rewrite(spark: SparkSession, table: str) -> None:
    """Rewrite all files of a table into one, as others' maintenance does."""
    options = "options => map('rewrite-all', 'true')"
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', {options})")


def expire(spark: SparkSession, table: str) -> None:
    """Expire all snapshots of a table but the newest."""
    loaded = java_table(spark, TopicName.parse(table).records_table)
    loaded.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
