"""Find the rows of keys in an adopted table: live ones, and files that hold dead ones still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.leaving_rows import PlacedRows, placed
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.log.requests.erase_request import PartitionKey
from ebbtide.runs.held.sources import key_bytes
from ebbtide.spark.conditions import any_column


@dataclass(slots=True)
class FoundKeys:
    """How many live rows each key has by partition, where they lie, and files with dead ones."""

    counts: dict[PartitionKey, int] = field(default_factory=dict)
    live: PlacedRows = field(default_factory=PlacedRows)
    files_of_dead: list[str] = field(default_factory=list)


def find_keys(
    rows: AdoptedRows, snapshot: int, keys: Sequence[bytes], ends: Mapping[int, int]
) -> FoundKeys:
    """Return the rows of these keys in a snapshot, live ones below these offsets by partition.

    Rows that somebody has deleted are dead, and yet in their file until that is written anew.
    """
    of_key = key_bytes(rows)
    assert of_key is not None
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
        return FoundKeys(
            {(row["partition"], bytes(row["bytes"])): row["count"] for row in counts},
            placed(live),
            sorted(row["file"] for row in dead),
        )
    finally:
        found.unpersist()
