"""The sample as exported after each night: Kafka's classes, a broker and our ingest read it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.configure_topic import execute_configure, plan_configure
from ebbtide.records.log_directory import list_log_directory, read_manifest
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.jobs.export_segments.exports import (
    add_log_directories,
    assert_same,
    export,
    kafkas_states,
)
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import QUIET, Consumed, ConsumedRecord, Isolation, consume, create_topics
from tests.kafka.oracle import LogState
from tests.lake_sandbox import LakeSandbox
from tests.tables.kafka_view import View, view_of_kafka, view_of_table
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, clean, ingest, mark, night

pytestmark = pytest.mark.long

FLIGHTS = TopicName("log", "flights")
PARTITIONS = range(3)
GROWN = TopicName("log", "grown")
SERVED = [*(("flights", partition) for partition in PARTITIONS), ("grown", 0)]
NIGHTS = (1, 2)


@dataclass(frozen=True)
class Exported:
    """The sample's flights as exported after a night, and what the tables held then."""

    directory: Path
    outcome: JobOutcome
    views: list[View]
    attributes: dict[tuple[int, int], int]  # of records, by partition and offset
    crcs: dict[tuple[int, int], int]  # of untouched uncompressed batches


def export_flights(spark: SparkSession, target: Path) -> Exported:
    records = spark.table(FLIGHTS.records_table)
    untouched = spark.table(FLIGHTS.batches_table).where("crc IS NOT NULL AND attributes & 7 = 0")
    return Exported(
        target,
        export(spark, FLIGHTS, target),
        [view_of_table(spark, FLIGHTS, partition) for partition in PARTITIONS],
        {(r[0], r[1]): r[2] for r in records.select("partition", "offset", "attributes").collect()},
        {(r[0], r[1]): r[2] for r in untouched.select("partition", "base_offset", "crc").collect()},
    )


@pytest.fixture(scope="module")
def nights(
    sandbox: LakeSandbox, sample: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Exported]:
    """What was exported after each night; the tables are as the last night left them."""
    manifest = read_manifest(str(sample))
    assert manifest is not None
    assert manifest.last_append_ms is not None
    first_ms = (manifest.last_append_ms // DAY_MS + 1) * DAY_MS + HOUR_MS
    exports = tmp_path_factory.mktemp("exports")
    ingest(sandbox.session, str(FLIGHTS), sample, first_ms)
    views = {}
    for number in NIGHTS:
        night(sandbox.session, str(FLIGHTS), first_ms + (number - 1) * DAY_MS)
        views[number] = export_flights(sandbox.session, exports / str(number))
    return views


@pytest.fixture(scope="module")
def kafkas(nights: dict[int, Exported], kafka_jars: Path) -> dict[int, dict[str, LogState]]:
    return {n: kafkas_states(exported.directory, kafka_jars) for n, exported in nights.items()}


@pytest.mark.long
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("number", NIGHTS)
def test_kafkas_classes_read_what_the_tables_hold(
    nights: dict[int, Exported],
    kafkas: dict[int, dict[str, LogState]],
    number: int,
    partition: int,
) -> None:
    state, exported = kafkas[number][f"flights-{partition}"], nights[number]
    assert_same(view_of_kafka(state), exported.views[partition])
    records = [record for record in state.records if not record.is_control]
    assert {r.offset: r.attributes for r in records} == {
        offset: bits for (p, offset), bits in exported.attributes.items() if p == partition
    }


@pytest.mark.long
@pytest.mark.parametrize("number", NIGHTS)
def test_an_untouched_uncompressed_batch_has_its_own_crc(
    nights: dict[int, Exported], kafkas: dict[int, dict[str, LogState]], number: int
) -> None:
    crcs = {
        (partition, batch.base_offset): batch.crc
        for partition in PARTITIONS
        for batch in kafkas[number][f"flights-{partition}"].batches
    }
    expected = nights[number].crcs
    assert len(expected) > 20
    assert {key: crcs[key] for key in expected} == expected


def test_the_sample_has_all_that_is_hard_to_write(kafkas: dict[int, dict[str, LogState]]) -> None:
    batches = [b for states in kafkas.values() for state in states.values() for b in state.batches]
    with_horizon = [batch for batch in batches if batch.delete_horizon_ms is not None]
    assert {batch.is_control for batch in with_horizon} == {False, True}
    assert {batch.compression for batch in batches} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert any(not batch.record_count for batch in batches)


def test_the_numbers_of_the_run(nights: dict[int, Exported]) -> None:
    for exported in nights.values():
        assert sorted(exported.outcome.partitions) == list(PARTITIONS)
        for partition, numbers in exported.outcome.partitions.items():
            files = list((exported.directory / f"flights-{partition}").glob("*.log"))
            assert numbers["segments"] == len(files)
            assert numbers["bytes"] == sum(file.stat().st_size for file in files)
            assert numbers["records"] == len(exported.views[partition].records)
            assert numbers["batches"] == len(exported.views[partition].batches)
            assert numbers["batches_above_max_message_bytes"] == 0
            assert numbers["converted_batches"] == 0


def test_files_have_the_times_of_their_segments(nights: dict[int, Exported]) -> None:
    listed = list_log_directory(str(nights[1].directory))
    assert sorted(partition.partition for partition in listed) == list(PARTITIONS)
    for partition in listed:
        times = [Path(file.path).stat().st_mtime_ns for file in partition.segments]
        view = nights[1].views[partition.partition]
        assert times == [modified_ms * 1_000_000 for _, modified_ms in view.segments]


def test_the_same_tables_give_the_same_bytes(
    nights: dict[int, Exported], sandbox: LakeSandbox, tmp_path: Path
) -> None:
    export(sandbox.session, FLIGHTS, tmp_path / "again")
    again = {p.relative_to(tmp_path / "again"): p for p in (tmp_path / "again").rglob("*")}
    first = nights[2].directory
    files = {p.relative_to(first): p for p in first.rglob("*")}
    assert sorted(again) == sorted(files)
    assert {path.parent.name for path in files.values() if path.suffix == ".log"} == {
        f"flights-{partition}" for partition in PARTITIONS
    }
    for name, path in files.items():
        assert path.is_dir() or path.read_bytes() == again[name].read_bytes(), name


@pytest.fixture(scope="module")
def grown(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A topic with a batch that its horizon made larger than max.message.bytes; that limit."""
    segments = [[Message("a", "1"), Message("b", None)], [Message("c", "1")]]
    limit = len(batch_of(segments[0], 0))
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "max.message.bytes": str(limit),
    }
    source = write_log(tmp_path_factory.mktemp("grown"), "grown", segments, config)
    ingest(sandbox.session, str(GROWN), source, FIRST_MS)
    mark(sandbox.session, str(GROWN))
    clean(sandbox.session, str(GROWN), FIRST_MS + 1_000 * DAY_MS)
    return limit


@pytest.fixture(scope="module")
def served(
    nights: dict[int, Exported],
    grown: int,
    sandbox: LakeSandbox,
    kafka_jars: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Isolation, Consumed]:
    """What consumers get of a broker that lost its topics' logs and was given our exports."""
    work = tmp_path_factory.mktemp("broker")
    broker = KafkaBroker(kafka_jars, work / "broker", **QUIET)
    with broker:
        create_topics(broker.bootstrap_servers, {"flights": 3, "grown": 1})
    for name in (FLIGHTS, GROWN):
        set_topic_id(sandbox.session, name, broker.log_dir / f"{name.topic}-0")
        outcome = export(sandbox.session, name, work / name.topic)
        too_large = outcome.partitions[0]["batches_above_max_message_bytes"]
        assert too_large == (1 if name == GROWN else 0)
    assert outcome.partitions[0]["largest_batch_bytes"] > grown
    for topic, partition in SERVED:
        shutil.rmtree(broker.log_dir / f"{topic}-{partition}")
    add_log_directories(broker, work / "flights", work / "grown")
    with broker:
        consumed: dict[Isolation, Consumed] = {
            isolation: consume(broker.client(), SERVED, isolation)
            for isolation in ("read_committed", "read_uncommitted")
        }
    for topic, partition in SERVED:
        assert (work / topic / f"{topic}-{partition}" / "00000000000000000000.index").exists()
        assert not (broker.log_dir / f"{topic}-{partition}").exists()
    return consumed


def set_topic_id(spark: SparkSession, name: TopicName, directory: Path) -> None:
    """Give the table the topic id that a broker's partition has."""
    topic_id = (directory / "partition.metadata").read_text().split("topic_id:")[1].strip()
    changes = {"kafka.topic.id": topic_id}
    execute_configure(plan_configure(load(spark, name), changes, FIRST_MS))


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_broker_serves_what_the_view_and_the_table_hold(
    sandbox: LakeSandbox, served: dict[Isolation, Consumed], isolation: Isolation
) -> None:
    selected: Consumed = {partition: [] for partition in SERVED}
    for name in (FLIGHTS, GROWN):
        table = name.committed_view if isolation == "read_committed" else name.records_table
        rows = sandbox.session.table(table).orderBy("partition", "offset").toArrow().to_pylist()
        for row in rows:
            at_ms = int(row["timestamp"].timestamp() * 1000)
            headers = tuple((header["key"], header["value"]) for header in row["headers"])
            record = ConsumedRecord(row["offset"], at_ms, row["key"], row["value"], headers)
            selected[name.topic, row["partition"]].append(record)
    assert served[isolation] == selected
    assert all(selected.values())


@pytest.mark.long
def test_what_is_ingested_again_is_the_same(
    nights: dict[int, Exported], sandbox: LakeSandbox
) -> None:
    copy = TopicName("copy", "flights")
    ingest(sandbox.session, str(copy), nights[2].directory, FIRST_MS)
    for partition in PARTITIONS:
        view = view_of_table(sandbox.session, copy, partition)
        assert_same(view, nights[2].views[partition])
    columns = (
        "partition", "offset", "batch", "timestamp", "event_time", "key", "value", "headers",
        "attributes", "size_bytes",
    )  # fmt: skip
    for attribute in ("records_table", "committed_view"):
        theirs = all_rows(sandbox.session, getattr(FLIGHTS, attribute), columns)
        assert all_rows(sandbox.session, getattr(copy, attribute), columns).equals(theirs)
    before, after = load(sandbox.session, FLIGHTS), load(sandbox.session, copy)
    of_the_copy = {"topic_id": None, "upstream": None}
    assert replace(after.config, **of_the_copy) == replace(before.config, **of_the_copy)  # type: ignore[arg-type]


def all_rows(spark: SparkSession, table: str, columns: tuple[str, ...]) -> pa.Table:
    rows = spark.table(table).select(*columns).orderBy("partition", "offset")
    return rows.toArrow().combine_chunks()
