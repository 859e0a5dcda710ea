"""What becomes of keys, values and headers of each layout when its rows are copied."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError
from ebbtide.layouts.layout import Choices
from ebbtide.settings.names import TopicName
from tests.jobs.ingest_table.copying import copy, held, source_of
from tests.tables.contents import contents

KAFKA = "named_struct('topic', 't', 'partition', 0, 'offset', {offset}L, 'timestamp', 1000L)"


def table(spark: SparkSession, name: TopicName, columns: str, *rows: str) -> str:
    """Create the source with rows of values; its SQL identifier."""
    source = TopicName.parse(source_of(name))
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{source.cluster}`")
    spark.sql(f"CREATE TABLE {source.records_table} ({columns}) USING iceberg")
    spark.sql(f"INSERT INTO {source.records_table} VALUES {', '.join(rows)}")
    return source.records_table


def values(spark: SparkSession, name: TopicName) -> list[Any]:
    """The values in order of offsets, those that are JSON read."""
    found = [record.value for record in held(spark, name)]
    return [None if value is None else json.loads(value) for value in found]


def headers(spark: SparkSession, name: TopicName) -> list[list[tuple[str, bytes | None]]]:
    rows = spark.table(name.records_table).orderBy("offset").select("headers").collect()
    return [
        [
            (header["key"], None if header["value"] is None else bytes(header["value"]))
            for header in row["headers"]
        ]
        for row in rows
    ]


@pytest.mark.long
def test_tableflow(spark: SparkSession, name: TopicName) -> None:
    """Bytes are taken as they are; without them, the columns of the schema stand for them."""
    columns = (
        "side string, n int, `$$topic` string, `$$partition` int, "
        "`$$headers` map<string, binary>, `$$leader-epoch` int, `$$offset` bigint, "
        "`$$timestamp` timestamp, `$$timestamp-type` string, `$$raw-key` binary, "
        "`$$raw-value` binary"
    )
    row = "({}, 't', 0, {}, 0, {}, timestamp_millis(7), 'x', cast('k' as binary), {})"
    source = table(
        spark,
        name,
        columns,
        row.format("'s', 1", "map('h', cast('w' as binary))", 0, "cast('[1]' as binary)"),
        row.format("'s', 2", "null", 1, "null"),
        row.format("null, null", "null", 2, "null"),
    )
    copy(spark, name)
    assert values(spark, name) == [[1], {"side": "s", "n": 2}, None]
    assert headers(spark, name) == [[("h", b"w")], [], []]
    assert {record.key for record in held(spark, name)} == {b"k"}
    spark.sql(f"ALTER TABLE {source} ADD COLUMN more string FIRST")
    spark.sql(f"ALTER TABLE {source} RENAME COLUMN n TO m")
    spark.sql(f"INSERT INTO {source} VALUES " + row.format("'new', null, 3", "null", 3, "null"))
    copy(spark, name)
    assert values(spark, name)[3] == {"m": 3, "more": "new"}


@pytest.mark.long
def test_aiven(spark: SparkSession, name: TopicName) -> None:
    columns = (
        "kafka struct<`partition`: int, offset: bigint, timestamp: bigint, "
        "batch_base_offset: bigint>, headers array<struct<key: string, value: binary>>, "
        "key binary, key_raw binary, value struct<n: int>, value_raw binary"
    )
    row = (
        "(named_struct('partition', 0, 'offset', {}L, 'timestamp', 1000L, "
        "'batch_base_offset', 0L), "
        "array(named_struct('key', 'h', 'value', cast(null as binary))), cast('k' as binary), "
        "null, {}, {})"
    )
    table(
        spark,
        name,
        columns,
        row.format(0, "named_struct('n', 1)", "null"),
        row.format(1, "null", "cast('[2]' as binary)"),
        row.format(2, "null", "null"),
    )
    copy(spark, name)
    assert values(spark, name) == [{"n": 1}, [2], None]
    assert headers(spark, name) == [[("h", None)]] * 3
    assert held(spark, name)[0].timestamp_ms == 1000


@pytest.mark.long
def test_debezium_marks_tombstones_and_has_keys_of_columns(
    spark: SparkSession, name: TopicName
) -> None:
    columns = (
        "id bigint, note string, _cdc struct<op: string, key: struct<id: bigint>>, "
        "_kafka_metadata struct<topic: string, `partition`: int, offset: bigint, timestamp: bigint>"
    )
    row = "({0}L, 'x', named_struct('op', '{1}', 'key', named_struct('id', {0}L)), {2})"
    table(
        spark,
        name,
        columns,
        row.format(1, "I", KAFKA.format(offset=0)),
        row.format(1, "D", KAFKA.format(offset=1)),
        f"(9, 'nowhere', null, {KAFKA.format(offset=2)})",
    )
    copy(spark, name)
    assert values(spark, name) == [{"id": 1, "note": "x"}, None, {"id": 9, "note": "nowhere"}]
    assert [record.key for record in held(spark, name)] == [b'{"id":1}', b'{"id":1}', None]


def test_any_other_columns_by_a_mapping(spark: SparkSession, name: TopicName) -> None:
    columns = "p bigint, o int, at timestamp, k string, v int, h string"
    rows = [
        "(0, 0, timestamp_millis(7), 'a', 1, 'x')",
        "(0, 1, null, null, null, 'x')",
        "(null, 2, null, null, null, 'x')",
    ]
    table(spark, name, columns, *rows)
    with pytest.raises(NotCoveredError, match="Name the columns"):
        copy(spark, name)
    chosen = Choices(partition="p", offset="o", timestamp="at", key="k", value="v")
    with pytest.raises(
        NotCoveredError, match="expected a list of key and value or a map of headers"
    ):
        copy(spark, name, choices=chosen._replace(headers="h"))
    outcome = copy(spark, name, choices=chosen)
    assert "1 rows have no partition or no offset and are not copied" in outcome.topic["note"]
    assert [tuple(record)[2:] for record in held(spark, name)] == [
        (b"a", b"1", 7),
        (None, None, None),
    ]


def test_times_that_no_column_holds_are_those_of_their_batch(
    spark: SparkSession, name: TopicName
) -> None:
    rows = ["(0, 0, 7, 'a')", f"(0, 1, {2**63 - 1}, 'b')", f"(0, 2, {2**62}, 'c')"]
    table(spark, name, "p bigint, o bigint, at bigint, k string", *rows)
    copy(spark, name, choices=Choices(partition="p", offset="o", timestamp="at", key="k"))
    batches = contents(spark, name).batches
    found = [(batch["base_timestamp_ms"], batch["max_timestamp_ms"]) for batch in batches]
    assert found == [(7, 7), (2**63 - 1, 2**63 - 1)]
