"""Data files below a table's location, and those of them that no snapshot needs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.manifests import all_sizes


def data_files(spark: SparkSession, table: str) -> set[Path]:
    folder = open_table(spark, table).java.location()
    return set(Path(str(folder).removeprefix("file:")).rglob("*.parquet"))


def unneeded(spark: SparkSession, table: str) -> set[Path]:
    needed = all_sizes(open_table(spark, table))
    paths = {Path("/" + path.removeprefix("file:").lstrip("/")) for path in needed}
    return data_files(spark, table) - paths
