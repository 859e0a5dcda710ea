"""Rows of keys in an adopted table: found, live ones and those that files hold dead, and erased."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.file_scans import files_of
from ebbtide.iceberg.adopted.leaving_rows import PlacedRows, placed
from ebbtide.iceberg.adopted.rewritten_files import prepare_rewrite
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.topics import Topic, while_adopted
from ebbtide.log.requests.erase_request import PartitionKey
from ebbtide.runs.held.sources import key_bytes
from ebbtide.spark.conditions import any_column
from ebbtide.stages.table_layout import ObservedLog


@dataclass(slots=True)
class FoundRows:
    """How many live rows each key has by partition, where they lie, and files with dead ones."""

    log: ObservedLog
    counts: dict[PartitionKey, int] = field(default_factory=dict)
    live: PlacedRows = field(default_factory=PlacedRows)
    files_of_dead: list[str] = field(default_factory=list)


def find_rows(
    rows: AdoptedRows, log: ObservedLog, keys: Sequence[bytes], ends: Mapping[int, int]
) -> FoundRows:
    """Return the rows of these keys as of a snapshot, live ones below these offsets by partition.

    Rows that somebody has deleted are dead, and yet in their file until that is written anew.
    """
    of_key, snapshot = key_bytes(rows), log.snapshot
    assert of_key is not None
    assert snapshot is not None
    wanted = rows.spark.createDataFrame(pa.table({"bytes": pa.array(keys, pa.binary())}))
    records = rows.with_deleted(snapshot).withColumn("bytes", of_key)
    found = records.join(F.broadcast(wanted), "bytes", "left_semi").persist()
    try:
        is_below = any_column(
            (F.col("partition") == partition) & (F.col("offset") < end)
            for partition, end in ends.items()
        )
        live = found.where(~F.col("is_deleted") & is_below)
        counts = live.groupBy("partition", "bytes").count().collect()
        dead = found.where("is_deleted").select("file").distinct().collect()
        return FoundRows(
            log,
            {(row["partition"], bytes(row["bytes"])): row["count"] for row in counts},
            placed(live),
            sorted(row["file"] for row in dead),
        )
    finally:
        found.unpersist()


def erase_rows(topic: Topic, found: FoundRows) -> int:
    """Commit the table with its files written anew without the rows; return the snapshot."""
    loaded = java_table(topic.spark, topic.name.records_table)
    positions = {path: BitMap64() for path in found.files_of_dead} | found.live.positions
    snapshot = found.log.snapshot
    assert snapshot is not None
    files = files_of(topic.spark, loaded, snapshot, positions)
    properties = {ROWS: str(found.live.rows.total()), TOPIC: str(topic.name)}
    prepared = prepare_rewrite(topic.spark, loaded, snapshot, files, properties)
    return commit(Step.ERASE_RECORDS, while_adopted(topic, prepared))
