"""The views `__null_tombstones` and `__latest`: as a fold in plain Python over what was written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from ebbtide.iceberg.schema import create_views
from ebbtide.lake.key_records import Fate, find_key
from ebbtide.lake.reader import open_lake
from ebbtide.records.attributes import TRANSACTIONAL
from ebbtide.records.consumer_record import read_topic
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.records.producer_record import ProducerRecord, build_batch, write_segment
from ebbtide.settings.names import (
    COMMITTED_SUFFIX,
    LATEST_SUFFIX,
    NULL_TOMBSTONES_SUFFIX,
    TopicName,
    quoted,
)
from tests.fresh_seed import seeds
from tests.iceberg.other_engines import DuckDB, PyIceberg, statements
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import marker
from tests.tables.nights import DAY_MS, HOUR_MS, clean, ingest, mark
from tests.tables.partition_log import T0, write_segments

VIEWS = (COMMITTED_SUFFIX, NULL_TOMBSTONES_SUFFIX, LATEST_SUFFIX)
FLAG = 0x20
PARTITIONS = 8
KEYS = (None, b"", b"a", b"b", b"c", b"d")
VALUES = (None, b"", b"x", b"yy")

Values = dict[tuple[int, bytes], tuple[int, bytes]]


class Sent(NamedTuple):
    """A record as it was written; `transaction` is None outside of one."""

    offset: int
    key: bytes | None
    value: bytes | None
    is_flagged: bool
    transaction: int | None

    @property
    def is_tombstone(self) -> bool:
        return self.is_flagged or self.value is None


@dataclass
class Partition:
    """A log that grows by random batches and markers, and remembers what it meant."""

    rng: random.Random
    sent: list[Sent] = field(default_factory=list)
    outcomes: dict[int | None, str] = field(default_factory=dict)  # by transaction
    segments: dict[int, list[bytes]] = field(default_factory=dict)
    next_offset: int = 0
    _open: dict[int, int] = field(default_factory=dict)  # producer: transaction
    _sequences: dict[int, int] = field(default_factory=dict)

    def grow(self, at_ms: int) -> None:
        """Add segments, the last of them empty: the active one."""
        for _ in range(self.rng.randint(1, 3)):
            batches = self.segments.setdefault(self.next_offset, [])
            batches += [self._write(at_ms + i) for i in range(self.rng.randint(1, 4))]
            batches += [self._end(p, at_ms) for p in [*self._open] if self.rng.random() < 0.5]
        self.segments[self.next_offset] = []

    def _write(self, at_ms: int) -> bytes:
        producer = self.rng.choice([None, 1, 2])
        if producer is None:
            return self._write_data(None, None, at_ms)
        transaction = self._open.setdefault(producer, self.next_offset)
        return self._write_data(producer, transaction, at_ms)

    def _end(self, producer: int, at_ms: int) -> bytes:
        kind = self.rng.choice(["ABORT", "COMMIT"])
        self.outcomes[self._open.pop(producer)] = kind
        self.next_offset += 1
        return marker(self.next_offset - 1, kind, producer=producer, at_ms=at_ms)

    def _write_data(self, producer: int | None, transaction: int | None, at_ms: int) -> bytes:
        rng, base = self.rng, self.next_offset
        count = rng.randint(1, 4)
        sent = [
            Sent(base + i, rng.choice(KEYS), rng.choice(VALUES), rng.random() < 0.2, transaction)
            for i in range(count)
        ]
        self.sent += sent
        self.next_offset += count
        fields = BatchFields()
        if producer is not None:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + count
            fields = BatchFields(
                attributes=TRANSACTIONAL,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
            )
        records = [
            Record(s.offset, at_ms, s.key, s.value, attributes=FLAG if s.is_flagged else 0)
            for s in sent
        ]
        return write_batch(fields, records)

    def committed(self) -> Iterator[Sent]:
        """What a read_committed consumer gets."""
        first_undecided = min(self._open.values(), default=self.next_offset)
        for sent in self.sent:
            is_aborted = self.outcomes.get(sent.transaction) == "ABORT"
            if sent.offset < first_undecided and not is_aborted:
                yield sent


def folded(partitions: Iterable[Partition]) -> Values:
    """Partition and key: offset and value of the latest record, unless it is a tombstone."""
    newest: Values = {}
    for number, partition in enumerate(partitions):
        for sent in partition.committed():
            if sent.key is None:
                continue
            newest.pop((number, sent.key), None)
            if not sent.is_tombstone:
                assert sent.value is not None
                newest[number, sent.key] = sent.offset, sent.value
    return newest


def table_of(spark: SparkSession, name: TopicName) -> Values:
    rows = spark.table(name.latest_view).collect()
    values = {
        (row["partition"], bytes(row["key"])): (row["offset"], bytes(row["value"])) for row in rows
    }
    assert len(values) == len(rows)
    return values


def rows_of(spark: SparkSession, view: str) -> dict[tuple[int, int], dict[str, Any]]:
    rows = [row.asDict(recursive=True) for row in spark.table(view).collect()]
    return {(row["partition"], row["offset"]): row for row in rows}


def view_of(name: TopicName, suffix: str) -> str:
    """The SQL identifier of one of the topic's views."""
    return quoted(name.catalog, name.cluster, name.topic + suffix)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        rows, key=lambda row: (row["partition"], row.get("offset", row.get("base_offset")))
    )


def by_spark(frame: DataFrame) -> list[dict[str, Any]]:
    return in_order(frame.toArrow().to_pylist())


def read_by(engine: DuckDB, table: str) -> list[dict[str, Any]]:
    """Another engine's rows of a table or view, named as Spark names it."""
    return in_order(engine.rows(f"SELECT * FROM {table.replace('`', chr(34))}").to_pylist())


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


Grow = Callable[[int], list[Partition]]


@pytest.fixture
def grow(
    spark: SparkSession, name: TopicName, tmp_path: Path, request: pytest.FixtureRequest
) -> Grow:
    """Lets all partitions grow and be ingested at a time."""
    seed = getattr(request, "param", 1)
    partitions = [Partition(random.Random(f"{seed} {p}")) for p in range(PARTITIONS)]

    def grown(now_ms: int) -> list[Partition]:
        for number, partition in enumerate(partitions):
            partition.grow(now_ms)
            write_segments(tmp_path, partition.segments, partition=number)
        ingest(spark, str(name), tmp_path, now_ms + HOUR_MS)
        spark.sql(
            f"ALTER TABLE {name.records_table} SET TBLPROPERTIES ('kafka.cleanup.policy' = "
            "'compact', 'kafka.min.cleanable.dirty.ratio' = '0', "
            f"'kafka.delete.retention.ms' = '{DAY_MS}', 'kafka.producer.id.expiration.ms' = '1')"
        )
        return partitions

    return grown


@pytest.mark.long
@pytest.mark.parametrize("grow", seeds(__file__, 1), indirect=True)
def test_the_table_is_the_fold_of_the_log_whatever_was_cleaned(
    spark: SparkSession, name: TopicName, grow: Grow
) -> None:
    removed = 0
    for night in range(4):
        now_ms = T0 + night * 2 * DAY_MS
        expected = folded(grow(now_ms)) if night < 3 else table_of(spark, name)
        assert table_of(spark, name) == expected
        mark(spark, str(name))
        assert table_of(spark, name) == expected
        before = spark.table(name.records_table).where("is_tombstone").count()
        clean(spark, str(name), now_ms + 2 * HOUR_MS)
        assert table_of(spark, name) == expected
        removed += before - spark.table(name.records_table).where("is_tombstone").count()
    assert removed > 0
    assert expected


@pytest.mark.long
def test_the_current_record_of_a_key_is_the_tables(
    sandbox: LakeSandbox, spark: SparkSession, name: TopicName, grow: Grow
) -> None:
    """`ebbtide key` tells the same of transactions as the views."""
    grow(T0)
    grow(T0 + DAY_MS)
    mark(spark, str(name))
    with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
        records = {key: find_key(lake, str(name), key) for key in KEYS if key is not None}
    current = {
        (record.partition, key): record.offset
        for key, of_key in records.items()
        for record in of_key
        if record.fate is Fate.CURRENT
    }
    assert current == {at: offset for at, (offset, _) in table_of(spark, name).items()}
    assert {record.fate for of_key in records.values() for record in of_key} >= {
        Fate.CURRENT,
        Fate.SUPERSEDED,
        Fate.ABORTED,
        Fate.UNDECIDED,
        Fate.UNSTAMPED,
    }


@pytest.mark.long
def test_v1_is_the_committed_view_with_null_for_each_tombstone(
    spark: SparkSession, name: TopicName, grow: Grow
) -> None:
    partitions = grow(T0)
    expected = {
        (number, sent.offset): None if sent.is_tombstone else sent.value
        for number, partition in enumerate(partitions)
        for sent in partition.committed()
    }
    for _ in range(2):
        v1, committed = (
            rows_of(spark, name.null_tombstones_view),
            rows_of(spark, name.committed_view),
        )
        assert {at: row["value"] for at, row in v1.items()} == expected
        assert {at: {**row, "value": None} for at, row in v1.items()} == {
            at: {**row, "value": None} for at, row in committed.items()
        }
        mark(spark, str(name))
    valued = [row for row in committed.values() if row["is_tombstone"] and row["value"]]
    assert valued


def test_a_mark_is_enough_to_be_a_tombstone(
    spark: SparkSession, sandbox: LakeSandbox, cluster: str
) -> None:
    """A header or a predicate may have marked a record that has a value and no flag."""
    sandbox.topic(f"{cluster}.t")
    name = TopicName(cluster, "t")
    create_views(spark, name)
    spark.sql(
        f"INSERT INTO {name.records_table} (`partition`, offset, segment, batch, key, value, "
        "attributes, is_tombstone) VALUES (0, 0, 0, 0, X'61', X'01', 0, false), "
        "(0, 1, 0, 1, X'61', X'02', 0, true), (0, 2, 0, 2, X'62', X'03', 0, false), "
        "(1, 3, 0, 3, X'61', X'04', null, false)"
    )
    values = {at: row["value"] for at, row in rows_of(spark, name.null_tombstones_view).items()}
    assert values == {(0, 0): b"\1", (0, 1): None, (0, 2): b"\3", (1, 3): b"\4"}
    assert table_of(spark, name) == {(0, b"b"): (2, b"\3"), (1, b"a"): (3, b"\4")}


@pytest.mark.long
def test_the_documented_sql_gives_what_the_views_do(
    spark: SparkSession, name: TopicName, grow: Grow
) -> None:
    grow(T0)
    grow(T0 + DAY_MS)
    documented = statements(name)
    assert len(documented) == len(VIEWS)
    for suffix, sql in documented.items():
        selected = spark.sql(sql.replace('"', "`"))
        expected = spark.table(view_of(name, suffix)).select(selected.columns)
        by = ("partition", "offset")
        assert selected.orderBy(*by).collect() == expected.orderBy(*by).collect()
        assert 0 < selected.count() < spark.table(name.records_table).count()


@pytest.mark.long
def test_other_engines_read_what_spark_reads(
    sandbox: LakeSandbox, spark: SparkSession, name: TopicName, grow: Grow
) -> None:
    """Both tables, with deletion vectors, and each view by its documented statement."""
    grow(T0)
    grow(T0 + DAY_MS)
    mark(spark, str(name))
    clean(spark, str(name), T0 + DAY_MS + 2 * HOUR_MS)
    assert spark.table(f"{name.records_table}.delete_files").count() > 0
    with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
        for engine in (DuckDB(), PyIceberg()):
            engine.add(lake, name)
            for table in (name.records_table, name.batches_table):
                assert read_by(engine, table) == by_spark(spark.table(table))
            for suffix, sql in statements(name).items():
                view = view_of(name, suffix)
                engine.add_view(view.replace("`", '"'), sql)
                columns = engine.rows(sql).column_names
                assert read_by(engine, view) == by_spark(spark.table(view).select(columns))


@pytest.mark.long
def test_other_engines_know_no_view(
    sandbox: LakeSandbox, spark: SparkSession, name: TopicName, grow: Grow
) -> None:
    """As docs/reading.md says of them: their own views take the statements."""
    grow(T0)
    with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
        assert lake.catalog is not None
        with pytest.raises(NotImplementedError):
            lake.catalog.load_view((name.cluster, f"{name.topic}__committed"))
        location = Path(lake.records(str(name)).metadata_location.removeprefix("file:"))
    folder = location.parents[1].with_name(f"{name.topic}__committed") / "metadata"
    (view,) = folder.glob("*.metadata.json")
    with pytest.raises(duckdb.Error):
        DuckDB().rows(f"SELECT * FROM iceberg_scan('{view}')")


def test_built_records_are_read_ingested_and_marked(
    sandbox: LakeSandbox, spark: SparkSession, name: TopicName, tmp_path: Path
) -> None:
    records = [
        ProducerRecord(topic="t", key=b"a", value=b"1"),
        ProducerRecord(topic="t", key=b"b", value=b"2", headers=[("h", None), ("h", b"")]),
        ProducerRecord(topic="t", key=b"a", value=b"why", tombstone=True, timestamp_ms=T0 + 5),
        ProducerRecord(topic="t", key=b"c"),
    ]
    batches = [build_batch(records[:3], 7, now_ms=T0), build_batch(records[3:], 10, now_ms=T0)]
    write_segment(str(tmp_path / "t-0"), 7, batches)
    write_segment(str(tmp_path / "t-0"), 11, [])
    ingest(spark, str(name), tmp_path, T0 + HOUR_MS)
    mark(spark, str(name))
    rows = spark.sql(
        "SELECT *, unix_millis(timestamp) AS timestamp_ms "
        f"FROM {name.records_table} ORDER BY offset"
    ).collect()
    assert [row["tombstone_by"] for row in rows] == [None, None, "flag", "null_value"]
    assert [
        (r.offset, r.key, r.value, r.timestamp_ms, r.headers, r.is_tombstone)
        for r in read_topic(str(tmp_path), "t")
    ] == [
        (
            row["offset"],
            bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            row["timestamp_ms"],
            tuple(
                (h["key"], None if h["value"] is None else bytes(h["value"]))
                for h in row["headers"]
            ),
            row["is_tombstone"],
        )
        for row in rows
    ]
    assert table_of(spark, name) == {(0, b"b"): (8, b"2")}
    with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
        read = lake.records(str(name)).scan().to_arrow().sort_by("offset")
    assert read["value"].to_pylist() == [b"1", b"2", b"why", None]
    assert read["is_tombstone"].to_pylist() == [False, False, True, True]
