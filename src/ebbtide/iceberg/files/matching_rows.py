"""Read the few rows of one of ebbtide's own tables that a job asks for.

A first query of Spark would cost a job a second of CPU time, and Iceberg's scan some messages to
the JVM for each file. Files never change, so what was read of one is kept with the open table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import Table, find_table
from ebbtide.iceberg.files.data_files import opened_file
from ebbtide.iceberg.files.field_ids import read_file, with_missing
from ebbtide.iceberg.files.manifests import FileBounds, files_with_bounds


class Asked(NamedTuple):
    """Rows that have one of these texts in a column, None for null, from a time on."""

    column: str
    texts: frozenset[str | None]
    since: tuple[str, datetime] | None = None  # a column of times, and the first of them

    def may_be_in(self, file: FileBounds, ids: Mapping[str, int]) -> bool:
        """Return whether a file may hold such a row, by its bounds."""
        if not any(file.may_hold(ids[self.column], text) for text in self.texts):
            return False
        if self.since is None:
            return True
        column, first = self.since
        return file.reaches(ids[column], int(first.timestamp() * 1_000_000))

    def among(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are asked for."""
        column = rows[self.column]
        known = pa.array([text for text in self.texts if text is not None], pa.string())
        is_asked = pc.is_in(column, value_set=known)
        if None in self.texts:
            is_asked = pc.or_(is_asked, pc.is_null(column))
        if self.since is not None:
            name, first = self.since
            at_or_after = pc.greater_equal(rows[name], pa.scalar(first, rows[name].type))
            is_asked = pc.and_(is_asked, pc.fill_null(at_or_after, False))
        return rows.filter(is_asked)


class FileRows(NamedTuple):
    """The rows of a file that were asked for, and whether delete files may name some of them."""

    rows: pa.Table
    has_deletes: bool


def matching_files(
    spark: SparkSession, table: str, asked: Asked, columns: Collection[str] | None = None
) -> Iterator[FileRows]:
    """Yield the rows of each file that holds some; none without a table. All columns by default."""
    opened = find_table(spark, table)
    if opened is None or opened.current is None:
        return
    ids = {column.name: column.field_id for column in opened.metadata.columns}
    files = files_with_bounds(opened, opened.current)
    deletes = [file.referenced for file in files if not file.is_data]
    for file in files:
        if file.is_data and asked.may_be_in(file, ids):
            rows = asked.among(_rows(opened, file, columns))
            if rows.num_rows:
                yield FileRows(rows, None in deletes or file.path in deletes)


def _rows(table: Table, file: FileBounds, columns: Collection[str] | None) -> pa.Table:
    wanted = [of for of in table.metadata.columns if columns is None or of.name in columns]
    key = (file.path, tuple(wanted))
    if key not in table.kept:
        with opened_file(table.store, file.path, file.size_bytes) as fragment:
            table.kept[key] = with_missing(read_file(fragment, wanted), wanted)
    rows: pa.Table = table.kept[key]
    return rows
