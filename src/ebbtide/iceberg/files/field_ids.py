"""A table's columns in its Parquet files: found by Iceberg's field ids, whatever they are named.

Format: Iceberg table spec, column projection. A file lacks the columns that were added after it was
written: there they have their default, or null; and a number may be narrower in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow.dataset import ParquetFileFragment, ParquetFragmentScanOptions
from pyspark.sql import SparkSession

from ebbtide.spark.jvm import iceberg_class

_FIELD_ID = b"PARQUET:field_id"
_WHOLE = 2**31 - 1  # rows of a batch, so that a row group is one
# A store sends so many bytes in the time that one more request takes.
_HOLE_BYTES = 4 * 1024 * 1024
_READING = ParquetFragmentScanOptions(
    pre_buffer=True, cache_options=pa.CacheOptions(hole_size_limit=_HOLE_BYTES, lazy=False)
)


class TableColumn(NamedTuple):
    """A column as the table's schema has it now."""

    name: str
    field_id: int
    default: Any = None  # in files that lack the column


def columns_of(spark: SparkSession, table: Any) -> tuple[TableColumn, ...]:
    """The columns of Iceberg's table object, in its order."""
    schema = json.loads(iceberg_class(spark, "SchemaParser").toJson(table.schema()))
    return tuple(
        TableColumn(field["name"], field["id"], field.get("initial-default"))
        for field in schema["fields"]
    )


def read_file(file: ParquetFileFragment, columns: Iterable[TableColumn]) -> pa.Table:
    """Those of the columns that the file or a row group of it has, under the table's names.

    Columns may be null whatever the writer knew, so that files of all writers go together.
    """
    names = {_id_of(field): field.name for field in file.physical_schema}
    found = [column for column in columns if column.field_id in names]
    in_file = [names[column.field_id] for column in found]
    table = file.to_table(
        columns=in_file, use_threads=False, batch_size=_WHOLE, fragment_scan_options=_READING
    )
    if not found:  # a table without columns would have no rows
        return table
    arrays = [table[name] for name in in_file]
    fields = [
        table.schema.field(inner).with_name(column.name).with_nullable(True)
        for inner, column in zip(in_file, found, strict=True)
    ]
    return pa.table(arrays, schema=pa.schema(fields))


def together(tables: Sequence[pa.Table], columns: Iterable[TableColumn]) -> pa.Table:
    """The rows of several files as one table; what some lack has its default there."""
    names = {name for table in tables for name in table.column_names}
    filled = [column for column in columns if column.name in names and column.default is not None]
    tables = [_with_defaults(table, filled) for table in tables]
    return pa.concat_tables(tables, promote_options="permissive")


def _with_defaults(table: pa.Table, columns: Iterable[TableColumn]) -> pa.Table:
    for column in columns:
        if column.name not in table.column_names:
            table = table.append_column(
                column.name, pa.repeat(pa.scalar(column.default), table.num_rows)
            )
    return table


def field_of(column: TableColumn, kind: pa.DataType) -> pa.Field:
    """The column as a file that is to be written has it."""
    return pa.field(column.name, kind, metadata={_FIELD_ID: str(column.field_id)})


def _id_of(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(_FIELD_ID)
    return None if found is None else int(found)
