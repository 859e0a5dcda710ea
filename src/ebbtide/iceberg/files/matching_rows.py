"""Read the few small files of one of ebbtide's own tables that an expression matches.

A first query of Spark would cost a job a second of CPU time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import find_table
from ebbtide.iceberg.files.data_files import opened_file
from ebbtide.iceberg.files.field_ids import columns_of, read_file
from ebbtide.iceberg.files.segment_planning import planned_tasks
from ebbtide.iceberg.files.table_store import store_of


class FileRows(NamedTuple):
    """All rows of a file, matching or not, and whether delete files name some of them."""

    rows: pa.Table
    has_deletes: bool


def matching_files(
    spark: SparkSession, table: str, matches: Any, columns: Collection[str] | None = None
) -> Iterator[FileRows]:
    """Yield the files that may hold a row that Iceberg's expression matches; none without a table.

    `columns` None reads all columns.
    """
    loaded = find_table(spark, table)
    current = None if loaded is None else loaded.currentSnapshot()
    if loaded is None or current is None:
        return
    store = store_of(spark, loaded)
    wanted = [of for of in columns_of(spark, loaded) if columns is None or of.name in columns]
    for task in planned_tasks(loaded, int(current.snapshotId()), matches):
        file = task.file()
        with opened_file(store, str(file.location()), int(file.fileSizeInBytes())) as opened:
            rows = read_file(opened, wanted)
        yield FileRows(rows, task.deletes().size() > 0)
