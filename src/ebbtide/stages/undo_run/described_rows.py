"""Describe the records that return for a plan, and count those of keys that were erased."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.files.data_files import numbers_in, read_segment
from ebbtide.iceberg.schema import ERASURES_TABLE
from ebbtide.iceberg.topics import Topic
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.planned_rows import PlannedRows, by_partition
from ebbtide.stages.undo_run.returning_rows import Returned, Returning

# The offset of an erased key's tombstone, by partition and SHA-256.
_Erased = Mapping[tuple[int, str], int]


class DescribedRows(NamedTuple):
    """Records that return, the bytes of their contents, and how many are of erased keys."""

    rows: PlannedRows = PlannedRows()
    size_bytes: int = 0
    erased: int = 0


def describe(topic: Topic, records: Returned, *, keeps_offsets: bool) -> dict[int, DescribedRows]:
    """Return what returns by partition; only what was erased, unless a plan is to be kept."""
    erased = _erased(topic)
    if not (erased or keeps_offsets):
        return {}
    count = sum(len(of.offsets) for of in records.rows)
    describe_one = partial(_describe, erased)
    parts = map_segments(topic.spark, describe_one, records.rows, count, "describes records of")
    described = list(zip((of.unit.partition for of in records.rows), parts, strict=True))
    rows = by_partition((p, of.rows) for p, of in described)
    return {
        partition: DescribedRows(
            of,
            sum(part.size_bytes for p, part in described if p == partition),
            sum(part.erased for p, part in described if p == partition),
        )
        for partition, of in rows.items()
    }


def _erased(topic: Topic) -> _Erased:
    spark = topic.spark
    if not table_exists(spark, ERASURES_TABLE):
        return {}
    is_of_topic = (F.col("topic") == str(topic.name)) & F.col("tombstone_offset").isNotNull()
    rows = (
        spark.table(ERASURES_TABLE)
        .where(is_of_topic)
        .groupBy("partition", "key_sha256")
        .agg(F.max("tombstone_offset").alias("offset"))
        .collect()
    )
    return {(row["partition"], row["key_sha256"]): row["offset"] for row in rows}


def _describe(erased: _Erased, of: Returning) -> DescribedRows:
    """Describe the records of one segment, in a task."""
    rows = read_segment(of.unit, ("offset", "event_time", "key", "size_bytes")).table
    returns = np.isin(rows["offset"].to_numpy(), numbers_in(of.offsets))
    size_bytes = rows["size_bytes"].fill_null(0).to_numpy()[returns].sum()
    planned = PlannedRows.of(rows, np.asarray(returns, np.bool_))
    gone = 0
    if erased:
        returning = rows.filter(pa.array(returns)).select(["offset", "key"]).to_pylist()
        gone = sum(
            row["offset"] < erased.get((of.unit.partition, _hash(row["key"])), -1)
            for row in returning
            if row["key"] is not None
        )
    return DescribedRows(planned, int(size_bytes), gone)


def _hash(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
