"""The sample as ingested: what a consumer of the real broker gets, by Spark and by pyiceberg."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from ebbtide.lake.reader import open_lake
from ebbtide.settings.names import TopicName
from tests.kafka.consume import Consumed, ConsumedRecord, Isolation, consume_log
from tests.lake_sandbox import LakeSandbox
from tests.tables.nights import DAY_MS, ingest

pytestmark = pytest.mark.long

TOPICS = {"flights": 3, "audit": 1}
PARTITIONS = [(topic, p) for topic, count in TOPICS.items() for p in range(count)]
NOW_MS = 1_795_306_400_000 + DAY_MS
NARROW = {
    "records": [
        "partition", "offset", "segment", "batch", "timestamp", "event_time", "append_time", "key",
        "attributes", "is_tombstone", "size_bytes",
    ],
    "batches": [
        "partition", "base_offset", "last_offset", "segment", "attributes", "base_timestamp_ms",
        "max_timestamp_ms", "max_event_time_ms", "producer_id", "producer_epoch", "record_count",
        "size_bytes", "crc", "control_type", "txn_first_offset",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def lake(sandbox: LakeSandbox, sample: Path) -> LakeSandbox:
    """A lake that holds the sample."""
    for topic in TOPICS:
        ingest(sandbox.session, f"log.{topic}", sample, NOW_MS)
    return sandbox


@pytest.fixture(scope="module")
def consumed(
    sample: Path, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[Isolation, Consumed]:
    """What a real broker hands out of the sample."""
    return consume_log(sample, kafka_jars, tmp_path_factory.mktemp("broker"))


@pytest.fixture(scope="module")
def selected(lake: LakeSandbox) -> dict[Isolation, Consumed]:
    """The same from the tables and their views."""
    consumed: dict[Isolation, Consumed] = {"read_committed": {}, "read_uncommitted": {}}
    for topic in TOPICS:
        name = TopicName("log", topic)
        for isolation, table in (
            ("read_committed", name.committed_view),
            ("read_uncommitted", name.records_table),
        ):
            consumed[isolation] |= select_all(lake.session.table(table), topic)  # type: ignore[index]
    return consumed


def select_all(table: DataFrame, topic: str) -> Consumed:
    consumed: Consumed = {(topic, p): [] for p in range(TOPICS[topic])}
    rows = table.selectExpr(
        "partition", "offset", "unix_millis(timestamp) AS at", "key", "value", "headers"
    ).orderBy("partition", "offset")
    for row in rows.toArrow().to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row["headers"])
        record = ConsumedRecord(row["offset"], row["at"], row["key"], row["value"], headers)
        consumed[topic, row["partition"]].append(record)
    return consumed


@pytest.mark.broker
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda partition: "{}-{}".format(*partition))
def test_a_select_gives_what_a_consumer_gets(
    selected: dict[Isolation, Consumed],
    consumed: dict[Isolation, Consumed],
    partition: tuple[str, int],
    isolation: Isolation,
) -> None:
    assert consumed[isolation][partition]
    assert selected[isolation][partition] == consumed[isolation][partition]


@pytest.mark.broker
def test_the_sample_has_aborted_records(consumed: dict[Isolation, Consumed]) -> None:
    counts = {isolation: sum(map(len, records.values())) for isolation, records in consumed.items()}
    assert counts["read_committed"] < counts["read_uncommitted"]


@pytest.mark.parametrize("topic", TOPICS)
def test_spark_and_pyiceberg_read_the_same(lake: LakeSandbox, topic: str) -> None:
    name = TopicName("log", topic)
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        theirs: dict[str, Any] = {
            "records": opened.records(str(name)),
            "batches": opened.batches(str(name)),
        }
        for kind, table in (("records", name.records_table), ("batches", name.batches_table)):
            spark_rows = lake.session.table(table).select(*NARROW[kind]).toArrow()
            iceberg_rows = theirs[kind].scan(selected_fields=tuple(NARROW[kind])).to_arrow()
            assert fingerprints(spark_rows, kind) == fingerprints(iceberg_rows, kind)
            assert len(fingerprints(spark_rows, kind)) == TOPICS[topic]
        rows = lake.session.table(name.records_table).groupBy("partition").count().collect()
        assert {row["partition"]: row["count"] for row in rows} == opened.live_rows(str(name))


def fingerprints(rows: pa.Table, kind: str) -> dict[int, tuple[int, str]]:
    """Row count and a hash of all the rows of each partition."""
    by = "offset" if kind == "records" else "base_offset"
    ordered = rows.select(NARROW[kind]).sort_by([("partition", "ascending"), (by, "ascending")])
    hashes: dict[int, Any] = {}
    counts: dict[int, int] = {}
    for row in ordered.to_pylist():
        partition = row["partition"]
        counts[partition] = counts.get(partition, 0) + 1
        hashes.setdefault(partition, hashlib.sha256()).update(repr(list(row.values())).encode())
    return {p: (counts[p], digest.hexdigest()) for p, digest in hashes.items()}
