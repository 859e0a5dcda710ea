"""Remove rows of an adopted table as its own properties ask for it."""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.iceberg.adopted.file_scans import files_of
from ebbtide.iceberg.adopted.rewritten_files import prepare_rewrite
from ebbtide.iceberg.adopted.row_deletes import prepare_row_deletes
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.files.file_commits import Commit

# Iceberg's property of a table. Where nobody has set it, rows are deleted merge-on-read.
DELETE_MODE, COPY_ON_WRITE = "write.delete.mode", "copy-on-write"


def prepare_removal(
    spark: SparkSession,
    table: str,
    snapshot: int,
    positions: Mapping[str, BitMap64],
    properties: Mapping[str, str],
) -> Commit:
    """Prepare to remove rows that live in a snapshot, given by file; what is returned commits it.

    CommitConflictError where another writer has replaced one of the files meanwhile.
    """
    opened = open_table(spark, table)
    opened.metadata.existing(snapshot, str(opened))
    files = files_of(spark, opened.java, snapshot, positions)
    is_rewritten = opened.metadata.properties.get(DELETE_MODE) == COPY_ON_WRITE
    prepare = prepare_rewrite if is_rewritten else prepare_row_deletes
    return prepare(spark, opened.java, snapshot, files, properties)
