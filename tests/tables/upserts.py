"""Write and delete rows as upserting sinks do, by Iceberg's own Java writers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import iceberg_class, java_class, java_list
from tests.tables.adopted import Record


def delete_equal(spark: SparkSession, name: str, column: str, value: int) -> None:
    """Delete the rows with a long value of a column by an equality delete."""
    table = java_table(spark, TopicName.parse(name).records_table)
    schema = table.schema().select(java_list(spark, [column]))
    record = iceberg_class(spark, "data.GenericRecord").create(schema)
    deletes = _deletes(spark, table, [column], [record.copy(_longs(spark, {column: value}))])
    table.newRowDelta().addDeletes(deletes).commit()


def upsert(spark: SparkSession, name: str, records: Iterable[Record], topic: str = "t") -> None:
    """In one commit delete what has these keys, and add the records with a value; Spark's layout.

    Of a key that comes twice, only the last record is written.
    """
    newest = {record.key: record for record in records}
    table = java_table(spark, TopicName.parse(name).records_table)
    keys = [_key(spark, table, key) for key in newest if key is not None]
    delta = table.newRowDelta().addDeletes(_deletes(spark, table, ["key"], keys))
    rows = [
        _row(spark, table, latest, topic) for latest in newest.values() if latest.value is not None
    ]
    if rows:
        delta = delta.addRows(_data_file(spark, table, rows))
    delta.commit()


def _deletes(spark: SparkSession, table: Any, columns: Sequence[str], records: list[Any]) -> Any:
    """Write a file of equality deletes."""
    schema = table.schema().select(java_list(spark, columns))
    field_ids = java_list(spark, [int(schema.findField(column).fieldId()) for column in columns])
    builder = _models(spark).equalityDeleteWriteBuilder(*_target(spark, table))
    writer = builder.schema(schema).spec(table.spec()).equalityFieldIds(field_ids).build()
    return _written(writer, records).toDeleteFile()


def _data_file(spark: SparkSession, table: Any, records: list[Any]) -> Any:
    builder = _models(spark).dataWriteBuilder(*_target(spark, table))
    writer = builder.schema(table.schema()).spec(table.spec()).build()
    return _written(writer, records).toDataFile()


def _written(writer: Any, records: list[Any]) -> Any:
    for record in records:
        writer.write(record)
    writer.close()
    return writer


def _target(spark: SparkSession, table: Any) -> tuple[Any, Any, Any]:
    """The format of a new file, the class of its rows, and the file."""
    parquet = iceberg_class(spark, "FileFormat").PARQUET
    loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
    kind = java_class(spark, "java.lang.Class").forName(
        "org.apache.iceberg.data.Record", True, loader
    )
    files = iceberg_class(spark, "io.OutputFileFactory").builderFor(table, 0, 0)
    return parquet, kind, files.format(parquet).build().newOutputFile()


def _models(spark: SparkSession) -> Any:
    return iceberg_class(spark, "formats.FormatModelRegistry")


def _key(spark: SparkSession, table: Any, key: str) -> Any:
    schema = table.schema().select(java_list(spark, ["key"]))
    record = iceberg_class(spark, "data.GenericRecord").create(schema)
    record.setField("key", _bytes(spark, key))
    return record


def _row(spark: SparkSession, table: Any, record: Record, topic: str) -> Any:
    empty = iceberg_class(spark, "data.GenericRecord").create(table.schema())
    row = empty.copy(_longs(spark, {"offset": record.offset}))
    instant = java_class(spark, "java.time.Instant").ofEpochMilli(record.timestamp_ms)
    values = {
        "key": None if record.key is None else _bytes(spark, record.key),
        "value": None if record.value is None else _bytes(spark, record.value),
        "topic": topic,
        "partition": record.partition,
        "timestamp": instant.atOffset(java_class(spark, "java.time.ZoneOffset").UTC),
        "timestampType": 0,
    }
    for name, value in values.items():
        row.setField(name, value)
    return row


def _bytes(spark: SparkSession, text: str) -> Any:
    return java_class(spark, "java.nio.ByteBuffer").wrap(text.encode())


def _longs(spark: SparkSession, values: dict[str, int]) -> Any:
    """A Java map of Long; numbers of Python would come as Integer."""
    jackson = "com.fasterxml.jackson.databind."
    feature = java_class(spark, jackson + "DeserializationFeature").USE_LONG_FOR_INTS
    mapper = java_class(spark, jackson + "ObjectMapper")().enable(feature)
    maps = java_class(spark, "java.lang.Class").forName("java.util.HashMap")
    return mapper.readValue(json.dumps(values), maps)
