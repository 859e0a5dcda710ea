"""Append a few rows to a table of ebbtide's without a Spark job, which takes a second to start."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.files.described_files import DescribedFiles, describe_small
from ebbtide.iceberg.files.field_ids import arrow_schema
from ebbtide.spark.jvm import iceberg_class, items

_SPEC_ID = 0  # of the partition spec that the tables were created with: by the day of a time


def prepare_append(
    spark: SparkSession, table: str, rows: pa.Table, time: str, *, not_before_last: bool = False
) -> Callable[[], None]:
    """Write the rows to a file a day, under the table's field ids; return what commits them.

    `time` is the column of times that the table is partitioned by the days of. With
    `not_before_last` a commit that the machine's clock puts before the table's last one gets the
    time of that one; another writer's commit at the same moment is not tried again then.
    """
    opened = open_table(spark, table)
    described = DescribedFiles(spark, opened.store, opened.java.specs(), _SPEC_ID)
    written = [_write(opened, some, time, day) for day, some in _by_day(rows, time)]
    append = opened.java.newAppend()
    for file in items(described.data(written)):
        append = append.appendFile(file)
    if not_before_last:
        return partial(_commit_not_before_last, opened, append)
    commit: Callable[[], None] = append.commit
    return commit


def _commit_not_before_last(table: Table, append: Any) -> None:
    """Commit the append as one metadata commit, whose snapshot has a time that Iceberg takes."""
    operations = table.java.operations()
    base = operations.refresh()
    parser = iceberg_class(table.spark, "SnapshotParser")
    made = json.loads(parser.toJson(append.apply()))
    made["timestamp-ms"] = max(made["timestamp-ms"], int(base.lastUpdatedMillis()))
    builder = iceberg_class(table.spark, "TableMetadata").buildFrom(base)
    builder.withMetadataLocation(None)  # gives it the time of its base, not that of this machine
    builder.setPreviousFileLocation(base.metadataFileLocation())
    builder.setBranchSnapshot(parser.fromJson(json.dumps(made)), "main")
    operations.commit(base, builder.build())


def _by_day(rows: pa.Table, time: str) -> Iterator[tuple[date, pa.Table]]:
    days = pc.cast(rows[time], pa.date32())
    for day in pc.unique(days).to_pylist():
        yield day, rows.filter(pc.equal(days, day))


def _write(table: Table, rows: pa.Table, time: str, day: date) -> dict[str, Any]:
    """Write the rows of a day; return the file as JSON."""
    schema = arrow_schema(table, rows.column_names)
    data, footers = io.BytesIO(), list[pq.FileMetaData]()
    with pq.ParquetWriter(data, schema, compression="zstd", metadata_collector=footers) as writer:
        writer.write_table(rows.cast(schema))
    name = f"{time}_day={day.isoformat()}/{uuid.uuid4().hex}.parquet"
    path = str(table.java.locationProvider().newDataLocation(name))
    with table.store.writing(path) as stream:
        stream.write(data.getbuffer())
    file = describe_small(path, schema, footers[0], data.getbuffer().nbytes)
    return {**file, "spec-id": _SPEC_ID, "partition": [day.isoformat()]}
