"""Create, write and read ebbtide's own tables without a Spark job."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import partial
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import Table, open_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import arrow_schema
from ebbtide.iceberg.file_commits import DescribedFiles, describe_small
from ebbtide.iceberg.schema import COMMON
from ebbtide.iceberg.segment_planning import RowsAsked, matching_files
from ebbtide.iceberg.state_table import check_commits, create_namespace, create_table
from ebbtide.ledger.own_tables import OwnTable, R
from ebbtide.settings.names import CATALOG, OWN_NAMESPACE, quoted
from ebbtide.spark.jvm import iceberg_class, items

_SPEC_ID = 0  # the first partition spec of each table: by the day of a time column


def prepare_append(
    spark: SparkSession, table: str, rows: pa.Table, time: str, *, not_before_last: bool = False
) -> Callable[[], None]:
    """Write the rows to one file per day, and return the function that commits them.

    `time` is the column whose days partition the table. `not_before_last`: if the machine's clock
    is behind the table's last commit, the new commit gets that commit's time. A conflict with
    another writer is then not retried.
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
    """Commit the append by one metadata commit, whose snapshot is not older than the last."""
    operations = table.java.operations()
    base = operations.refresh()
    parser = iceberg_class(table.spark, "SnapshotParser")
    made, last_ms = json.loads(parser.toJson(append.apply())), int(base.lastUpdatedMillis())
    builder = iceberg_class(table.spark, "TableMetadata").buildFrom(base)
    if made["timestamp-ms"] < last_ms:
        made["timestamp-ms"] = last_ms
        builder.withMetadataLocation(None)  # gives it the time of its base, not of the clock
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


_TYPES = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
    "MAP<INT, BINARY>": pa.map_(pa.int32(), pa.binary()),
}
# Topics are worked on in threads, and a catalog may check and create in two steps.
_ONE_AT_A_TIME = Lock()


def own_schema(table: OwnTable[R], unit: str = "us") -> pa.Schema:
    """Return the table's columns as an Arrow schema, with times in this unit."""
    types = {**_TYPES, "TIMESTAMP": pa.timestamp(unit, tz="UTC")}
    return pa.schema([(name, types[kind]) for name, kind in table.types.items()])


def create_own(spark: SparkSession, table: OwnTable[R], catalog: str = CATALOG) -> None:
    """Create the table if it does not exist; add the columns that an older version lacks.

    Raise an error if its catalog is not safe for commits.
    """
    name = table.in_catalog(catalog)
    with _ONE_AT_A_TIME:
        if not table_exists(spark, name):
            check_commits(spark, catalog)
            create_namespace(spark, quoted(catalog, OWN_NAMESPACE))
            properties = {**COMMON, **table.properties}
            create_table(spark, name, table.columns, properties, [("day", table.day)])
        elif lacking := _lacking(spark, table, name):
            types = iceberg_class(spark, "types.Types")
            added = {
                "STRING": types.StringType.get(),
                "BINARY": types.BinaryType.get(),
                "TIMESTAMP": types.TimestampType.withZone(),
            }
            update = open_table(spark, name).java.updateSchema()
            for column in lacking:
                update = update.addColumn(column, added[table.types[column]])
            try:
                update.commit()
            except Py4JJavaError:  # another job may be faster
                if _lacking(spark, table, name):
                    raise


def _lacking(spark: SparkSession, table: OwnTable[R], name: str) -> list[str]:
    known = {column.name for column in open_table(spark, name).metadata.columns}
    return [column for column in table.types if column not in known]


def append_own(
    spark: SparkSession,
    table: OwnTable[R],
    rows: Sequence[R],
    step: Step,
    catalog: str = CATALOG,
    *,
    not_before_last: bool = False,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Append the rows by one commit; create the table if it does not exist.

    `check` is called right before the commit. It raises if the rows must no longer be written.
    """
    create_own(spark, table, catalog)
    cells = pa.Table.from_pylist(list(map(table.to_cells, rows)), schema=own_schema(table))
    name = table.in_catalog(catalog)
    prepared = prepare_append(spark, name, cells, table.day, not_before_last=not_before_last)

    def append() -> object:
        check()
        return prepared()

    commit(step, append)


def read_own(
    spark: SparkSession,
    table: OwnTable[R],
    column: str,
    texts: Iterable[str],
    since: datetime | None = None,
) -> list[R]:
    """Return the rows with one of the texts in a column, optionally from a time on, in no order."""
    name, texts = table.in_catalog(), frozenset(texts)
    asked = RowsAsked(column, texts, None if since is None else (table.day, since))
    found = list(matching_files(spark, name, asked))
    parts = [file.rows for file in found]
    # Only other tools delete rows here. Spark applies their delete files.
    if any(file.has_deletes for file in found):
        rows = spark.table(name).where(F.col(column).isin(*texts))
        parts = [asked.among(rows.toArrow())]
    return [table.to_row(cells) for part in parts for cells in part.to_pylist()]
