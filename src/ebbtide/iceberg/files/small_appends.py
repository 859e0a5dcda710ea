"""Append a few rows to a table of ebbtide's without a Spark job, which takes a second to start."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.files.table_store import store_of
from ebbtide.spark.jvm import iceberg_class

_FIELD_ID = "PARQUET:field_id"


def prepare_append(
    spark: SparkSession, table: str, rows: pa.Table, partition: str
) -> Callable[[], None]:
    """Write rows of one partition to a file, under the table's field ids; what commits it.

    `partition` is its path by the spec that the table was created with, such as `day=2026-01-01`.
    """
    loaded = java_table(spark, table)
    schema = json.loads(iceberg_class(spark, "SchemaParser").toJson(loaded.schema()))
    fields = {field["name"]: field for field in schema["fields"]}
    ids = [_with_id(of, fields[of.name]["id"], fields[of.name]["type"]) for of in rows.schema]
    data = io.BytesIO()
    pq.write_table(rows.cast(pa.schema(ids)), data, compression="zstd")
    name = f"{partition}/{uuid.uuid4().hex}.parquet"
    path = str(loaded.locationProvider().newDataLocation(name))
    with store_of(spark, loaded).writing(path) as stream:
        stream.write(data.getbuffer())
    metrics = iceberg_class(spark, "parquet.ParquetUtil").fileMetrics(
        loaded.io().newInputFile(path), iceberg_class(spark, "MetricsConfig").forTable(loaded)
    )
    file = (
        iceberg_class(spark, "DataFiles")
        .builder(loaded.specs().get(0))
        .withPath(path)
        .withFormat("parquet")
        .withFileSizeInBytes(data.getbuffer().nbytes)
        .withPartitionPath(partition)
        .withMetrics(metrics)
        .build()
    )
    commit: Callable[[], None] = loaded.newAppend().appendFile(file).commit
    return commit


def _with_id(field: pa.Field, field_id: int, of: str | Mapping[str, Any]) -> pa.Field:
    """Return the field with Iceberg's id, the element of a list and both sides of a map too."""
    kind = field.type
    if not isinstance(of, str) and of["type"] == "list":
        element = pa.field("element", kind.value_type)
        kind = pa.list_(_with_id(element, of["element-id"], of["element"]))
    elif not isinstance(of, str) and of["type"] == "map":
        key = pa.field("key", kind.key_type, nullable=False)
        value = pa.field("value", kind.item_type)
        kind = pa.map_(
            _with_id(key, of["key-id"], of["key"]), _with_id(value, of["value-id"], of["value"])
        )
    return field.with_type(kind).with_metadata({_FIELD_ID: str(field_id)})
