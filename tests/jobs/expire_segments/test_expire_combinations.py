"""KIP-870's test plan through Spark: a pairwise cover of the settings, each row of it a topic."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.settings.names import CATALOG, TopicName
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import marker
from tests.log.retention_model import (
    EVENT_MS,
    FUTURE_MS,
    GRANULARITY,
    LOGS,
    NOW_MS,
    POLICY,
    SETTINGS,
    TYPE,
    Entry,
    Log,
    retained,
)
from tests.tables.nights import expire, ingest, set_properties

pytestmark = pytest.mark.long

INGEST_MS = NOW_MS - 150
TOPICS_AT_ONCE = 4
FACTORS: dict[str, tuple[str | None, ...]] = dict(SETTINGS)
Row = tuple[str | None, ...]
# A partition each; what lies above the high watermark is not ingested.
PARTITIONS = [
    *("at the limits", "out of order", "a replay", "late events", "events of the future"),
    *("records without event time", "empty segments", "the newest event has gone"),
    *("records below the log start", "segments of markers"),
]


def pairs(row: Row) -> set[tuple[int, str | None, int, str | None]]:
    """Which two values a row brings together, by the numbers of their factors."""
    return {(i, one, j, other) for (i, one), (j, other) in combinations(enumerate(row), 2)}


def pairwise_cover() -> list[Row]:
    """Rows that bring every two values together, the one with the most new pairs first.

    Of two as good, the one that sets more, so that most topics have something to lose.
    """
    rows = {row: pairs(row) for row in product(*FACTORS.values())}
    missing = set().union(*rows.values())
    cover = []
    while missing:
        best = max(rows, key=lambda row: (len(rows[row] & missing), _weight(row)))
        cover.append(best)
        missing -= rows[best]
    return cover


def _weight(row: Row) -> int:
    settings = dict(zip(FACTORS, row, strict=True))
    is_deleted = "delete" in (settings[POLICY] or "")
    has_singles = settings[EVENT_MS] is not None and settings[GRANULARITY] == "record"
    return is_deleted + is_deleted * has_singles


COVER = pairwise_cover()


def settings_of(row: Row) -> dict[str, str]:
    chosen = zip(FACTORS, row, strict=True)
    return {name: value for name, value in chosen if value is not None}


def as_ingested(log: Log, kind: str) -> Log:
    """The log as one ingest at INGEST_MS takes it: only a stamped record keeps its append time."""

    def entry_at(offset: int, entry: Entry) -> Entry:
        if entry.is_marker or kind == "CreateTime":
            return entry._replace(append_ms=INGEST_MS)
        if offset < log.start:  # of a batch that is hidden, nobody knows the producer's time
            return Entry(None, INGEST_MS)
        return entry._replace(event_ms=entry.append_ms) if entry.event_ms is None else entry

    return replace(
        log,
        segments={
            base: tuple(entry_at(base + i, entry) for i, entry in enumerate(entries))
            for base, entries in log.segments.items()
        },
    )


def batch_of(offset: int, entry: Entry, kind: str) -> bytes:
    if entry.is_marker:
        return marker(offset, "COMMIT", producer=1, at_ms=entry.append_ms)
    fields = BatchFields()
    if kind == "LogAppendTime":
        fields = BatchFields(attributes=LOG_APPEND_TIME, max_timestamp_ms=entry.append_ms)
    at_ms = -1 if entry.event_ms is None else entry.event_ms
    return write_batch(fields, [Record(offset, at_ms, b"k", b"v")])


def write_partition(directory: Path, log: Log, kind: str) -> None:
    directory.mkdir(parents=True)
    for base, entries in log.segments.items():
        path = directory / f"{base:020}.log"
        path.write_bytes(b"".join(batch_of(base + i, e, kind) for i, e in enumerate(entries)))
        os.utime(path, ns=(log.modified_ms * 1_000_000,) * 2)


def write_topics(directory: Path, logs: Mapping[str, Mapping[int, Log]]) -> None:
    """A broker's directory with the cover's topics."""
    starts, configs = [], {}
    for number, row in enumerate(COVER):
        topic, settings = f"t{number}", settings_of(row)
        configs[topic] = {
            "config": {
                **{k.removeprefix("kafka."): v for k, v in settings.items() if "kafka." in k},
                "message.timestamp.after.max.ms": str(FUTURE_MS),
            }
        }
        for partition, log in logs[topic].items():
            write_partition(directory / f"{topic}-{partition}", log, settings[TYPE])
            starts += [f"{topic} {partition} {log.start}"] if log.start else []
    checkpoint = "\n".join(["0", str(len(starts)), *starts, ""])
    (directory / "log-start-offset-checkpoint").write_text(checkpoint)
    manifest = {"files": {}, "topics": configs}
    (directory / "ebbtide-manifest.json").write_text(json.dumps(manifest))


def configure(spark: SparkSession, name: TopicName, row: Row, logs: Mapping[int, Log]) -> None:
    """Settings that no broker knows, and the max event time as a table of that age has it."""
    newest = {
        f"ebbtide.state.{partition}.max-event-time-ms": str(max(log.newest_ms, log.gone_ms))
        for partition, log in logs.items()
    }
    texts = {k: v for k, v in settings_of(row).items() if k.startswith("ebbtide.")}
    set_properties(spark, str(name), {**texts, **newest})


def session_of(spark: SparkSession) -> SparkSession:
    """A session of the thread's own, on the same lake."""
    session = spark.newSession()
    for key, value in spark.conf.getAll.items():
        if key.startswith(f"spark.sql.catalog.{CATALOG}"):
            session.conf.set(key, value)
    return session


def left_of(spark: SparkSession, name: TopicName) -> Iterator[tuple[int, tuple[int, list[int]]]]:
    """Each partition's log start offset and records."""
    rows = spark.table(name.records_table).select("partition", "offset").collect()
    for partition, state in load(spark, name).partitions.items():
        offsets = sorted(row["offset"] for row in rows if row["partition"] == partition)
        yield partition, (state.log_start_offset, offsets)


@pytest.fixture(scope="module")
def logs() -> dict[str, dict[int, Log]]:
    """By topic and partition."""
    return {
        f"t{number}": {
            partition: as_ingested(LOGS[log], settings_of(row)[TYPE])
            for partition, log in enumerate(PARTITIONS)
        }
        for number, row in enumerate(COVER)
    }


@pytest.fixture(scope="module")
def expired(
    sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory, logs: dict[str, dict[int, Log]]
) -> dict[str, dict[int, tuple[int, list[int]]]]:
    """What all topics hold after an ingest of real segment files and a night's retention."""
    directory = tmp_path_factory.mktemp("broker")
    write_topics(directory, logs)
    sandbox.session.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()

    def run(number: int) -> dict[int, tuple[int, list[int]]]:
        spark, name = session_of(sandbox.session), TopicName("c", f"t{number}")
        ingest(spark, str(name), directory, INGEST_MS, accept_gap=True)
        configure(spark, name, COVER[number], logs[name.topic])
        expire(spark, str(name), NOW_MS)
        return dict(left_of(spark, name))

    with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
        return dict(zip(logs, pool.map(run, range(len(COVER))), strict=True))


def test_the_cover_brings_every_two_values_together() -> None:
    covered = set().union(*map(pairs, COVER))
    factors = enumerate(FACTORS.values())
    wanted = {
        (i, one, j, other)
        for (i, ones), (j, others) in combinations(factors, 2)
        for one, other in product(ones, others)
    }
    assert covered == wanted
    assert len(COVER) < 20


@pytest.mark.parametrize("number", range(len(COVER)))
def test_each_topic_of_the_cover_keeps_what_the_model_keeps(
    number: int,
    expired: dict[str, dict[int, tuple[int, list[int]]]],
    logs: dict[str, dict[int, Log]],
) -> None:
    topic, row = f"t{number}", COVER[number]
    expected = {
        PARTITIONS[p]: tuple(retained(log, settings_of(row))) for p, log in logs[topic].items()
    }
    assert {PARTITIONS[p]: left for p, left in expired[topic].items()} == expected
