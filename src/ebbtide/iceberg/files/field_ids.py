"""Find a table's columns in its Parquet files by Iceberg's field ids, whatever their names.

Format: Iceberg table spec, column projection. A file lacks the columns that were added after it was
written: these take their default, or null. A number's type may be narrower in the file than in the
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import ParquetFileFragment, ParquetFragmentScanOptions

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.metadata import TableColumn

_FIELD_ID = b"PARQUET:field_id"
_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
WHOLE = 2**31 - 1  # rows of a batch, so that a row group is one
_BATCH_ROWS = 64 * 1024  # where a row group in memory would be too much
# A store sends so many bytes in the time that one more request takes.
_HOLE_BYTES = 4 * 1024 * 1024
READING = ParquetFragmentScanOptions(
    pre_buffer=True, cache_options=pa.CacheOptions(hole_size_limit=_HOLE_BYTES, lazy=False)
)


def read_file(file: ParquetFileFragment, columns: Iterable[TableColumn]) -> pa.Table:
    """Read the columns that the file, or a row group of it, has, under the table's names.

    Columns may be null whatever the writer knew, so that files of all writers go together.
    """
    present = _present(file, columns)
    table = file.to_table(
        columns=list(present), use_threads=False, batch_size=WHOLE, fragment_scan_options=READING
    )
    return _renamed(table, present)


def read_in_batches(
    file: ParquetFileFragment, columns: Iterable[TableColumn], group: int
) -> Iterator[pa.Table]:
    """Yield a row group as `read_file` reads it, decoding only so much of it at a time."""
    present = _present(file, columns)
    with pq.ParquetFile(file.open(), metadata=file.metadata) as opened:
        batches = opened.iter_batches(
            _BATCH_ROWS, row_groups=[group], columns=list(present), use_threads=False
        )
        for batch in batches:
            yield _renamed(pa.table(batch), present)


def _present(file: ParquetFileFragment, columns: Iterable[TableColumn]) -> dict[str, TableColumn]:
    """Return the columns that the file has, by its name for each."""
    names = {_id_of(field): field.name for field in file.physical_schema}
    return {names[column.field_id]: column for column in columns if column.field_id in names}


def _renamed(table: pa.Table, present: Mapping[str, TableColumn]) -> pa.Table:
    if not present:  # a table without columns would have no rows
        return table
    fields = [
        table.schema.field(inner).with_name(column.name).with_nullable(True)
        for inner, column in present.items()
    ]
    return pa.table([table[name] for name in present], schema=pa.schema(fields))


def bytes_of_column(file: ParquetFileFragment, column: TableColumn) -> int:
    """Return the uncompressed bytes of a column of plain values; 0 if the file lacks it."""
    names = {_id_of(field): field.name for field in file.physical_schema}
    if column.field_id not in names:
        return 0
    footer, name = file.metadata, names[column.field_id]
    groups = map(footer.row_group, range(footer.num_row_groups))
    return sum(_bytes_in_group(group, name) for group in groups)


def _bytes_in_group(group: pq.RowGroupMetaData, name: str) -> int:
    # By the chunks' paths: a footer and its `schema` would keep each other in memory.
    (chunk,) = (
        of for of in map(group.column, range(group.num_columns)) if of.path_in_schema == name
    )
    return int(chunk.total_uncompressed_size)


def together(tables: Sequence[pa.Table], columns: Iterable[TableColumn]) -> pa.Table:
    """Return the rows of several files as one table; what some lack has its default there."""
    names = {name for table in tables for name in table.column_names}
    filled = [column for column in columns if column.name in names and column.default is not None]
    tables = [with_missing(table, filled) for table in tables]
    return pa.concat_tables(tables, promote_options="permissive")


def with_missing(table: pa.Table, columns: Iterable[TableColumn]) -> pa.Table:
    """Return the table with all of the columns; one that it lacks has its default, or is null."""
    for column in columns:
        if column.name not in table.column_names:
            values = pa.repeat(pa.scalar(column.default), table.num_rows)
            table = table.append_column(column.name, values)
    return table


def arrow_schema(table: Table, names: Sequence[str]) -> pa.Schema:
    """Return these columns of a table as a file that is to be written has them.

    ConfigurationError where the table lacks one.
    """
    fields = {field["name"]: field for field in table.metadata.schema["fields"]}
    if missing := [name for name in names if name not in fields]:
        raise ConfigurationError(
            f"expected the columns {', '.join(names)} in {table}, found it without "
            f"{', '.join(missing)}; rename or add them again"
        )
    return pa.schema([_field(fields[name]) for name in names])


def field_of(column: TableColumn, kind: pa.DataType, *, is_required: bool = False) -> pa.Field:
    """Return the column as a file that is to be written has it."""
    metadata = {_FIELD_ID: str(column.field_id)}
    return pa.field(column.name, kind, nullable=not is_required, metadata=metadata)


def _field(of: Mapping[str, Any]) -> pa.Field:
    column = TableColumn(of["name"], of["id"])
    return field_of(column, _arrow_type(of["type"]), is_required=of["required"])


def _arrow_type(of: Any) -> pa.DataType:
    """Return Arrow's type for an Iceberg type in its schema's JSON."""
    if isinstance(of, str):
        return _TYPES[of]
    if of["type"] == "list":
        return pa.list_(_inner(of, "element"))
    if of["type"] == "map":
        return pa.map_(_inner(of | {"key-required": True}, "key"), _inner(of, "value"))
    return pa.struct([_field(field) for field in of["fields"]])


def _inner(of: Mapping[str, Any], name: str) -> pa.Field:
    """Return what a list or a map holds, such as its `element`."""
    column = TableColumn(name, of[f"{name}-id"])
    return field_of(column, _arrow_type(of[name]), is_required=of[f"{name}-required"])


def _id_of(field: pa.Field) -> int | None:
    field_id = (field.metadata or {}).get(_FIELD_ID)
    return None if field_id is None else int(field_id)
