"""All batch headers of whole partitions, which jobs themselves read only in tasks."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import SparkSession

from ebbtide.columns.headers import COLUMNS, BatchHeaders, slices_by_value
from ebbtide.iceberg.data_files import read_segment, together
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.numbers import MAX_OFFSET

_NONE = pa.table({name: pa.array([], pa.int64()) for name in COLUMNS})


def read_headers(
    spark: SparkSession, batches_table: str, partitions: Iterable[int]
) -> dict[int, BatchHeaders]:
    """Read the headers of these partitions as they are now, in offset order."""
    snapshot = current_snapshot(spark, batches_table)
    headers = {partition: BatchHeaders(_NONE) for partition in partitions}
    if snapshot is None:
        return headers
    units = plan_segments(spark, batches_table, snapshot, dict.fromkeys(headers, MAX_OFFSET))
    tables = [read_segment(unit, ("partition", *COLUMNS), "base_offset").table for unit in units]
    if tables:
        rows = together(tables, units[0].columns)
        rows = rows.sort_by([("partition", "ascending"), ("base_offset", "ascending")])
        headers |= {p: BatchHeaders(part) for p, part in slices_by_value(rows, "partition")}
    return headers
