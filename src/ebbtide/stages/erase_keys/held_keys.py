"""The keys that are to be erased: read, found in the tables, and counted again afterwards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import RequestError, SourceError
from ebbtide.iceberg.topics import Topic
from ebbtide.log.requests.erase_request import KEYS, MAX_KEYS, Encoding, PartitionKey, decode_keys
from ebbtide.records.attributes import DELETE_HORIZON
from ebbtide.stages.planned_rows import PlannedRows


class HeldKey(NamedTuple):
    """A key in a partition: how many records there are before its tombstone, and where that is.

    The tombstone is the key's latest committed record; None where that is none.
    """

    found: int
    tombstone_offset: int | None


class LeftOfKey(NamedTuple):
    """The records left below a key's tombstone, and the tombstone's horizon once it has one."""

    records: int = 0
    horizon_ms: int | None = None


def typed_keys(encoding: Encoding) -> tuple[bytes, ...]:
    """Return the keys that were typed in, from the environment."""
    return decode_keys(os.environ.get(KEYS, "").split("\n"), encoding)


def keys_of_file(spark: SparkSession, uri: str, encoding: Encoding) -> tuple[bytes, ...]:
    """Return the keys of a text file, one a line, on any file system that Spark reads."""
    try:
        lines = spark.read.text(uri).limit(MAX_KEYS + 1).toArrow()["value"].to_pylist()
    except Exception as failure:
        raise SourceError(
            f"expected a text file of keys that Spark can read at {uri}, found "
            f"{type(failure).__name__}; check the path and who may read it"
        ) from None
    if len(lines) > MAX_KEYS:
        raise RequestError(
            f"expected at most {MAX_KEYS:,} keys in {uri}, found more; split the file"
        )
    return decode_keys(lines, encoding)


def find_keys(topic: Topic, keys: tuple[bytes, ...]) -> dict[PartitionKey, HeldKey]:
    """Find each key in each partition that holds records of it, also aborted or undecided ones."""
    spark, name = topic.spark, topic.name
    asked = spark.createDataFrame(pa.table({"key": pa.array(keys, pa.binary())}))
    committed = spark.table(name.committed_view).join(asked, "key").groupBy("partition", "key")
    is_last_tombstone = F.max_by("is_tombstone", "offset")
    latest = committed.agg(F.when(is_last_tombstone, F.max("offset")).alias("tombstone"))
    records = spark.table(name.records_table).join(asked, "key")
    is_before = F.col("tombstone").isNull() | (F.col("offset") < F.col("tombstone"))
    held = (
        records.join(latest, ["partition", "key"], "left")
        .groupBy("partition", "key", "tombstone")
        .agg(F.count_if(is_before).alias("found"))
    )
    return {
        (row["partition"], row["key"]): HeldKey(row["found"], row["tombstone"])
        for row in held.toArrow().to_pylist()
    }


def find_offsets(topic: Topic, held: Mapping[PartitionKey, HeldKey]) -> dict[int, PlannedRows]:
    """Return the records before each key's tombstone, or all of a key that has none."""
    if not held:
        return {}
    spark = topic.spark
    ends = {p: state.log_end_offset for p, state in topic.partitions.items()}
    tombstones = {
        place: ends[place[0]] if of.tombstone_offset is None else of.tombstone_offset
        for place, of in held.items()
    }
    asked = _asked(spark, tombstones)
    records = spark.table(topic.name.records_table).join(asked, ["partition", "key"])
    rows = (
        records.where(F.col("offset") < F.col("tombstone"))
        .select("partition", "offset", "event_time", "key")
        .toArrow()
    )
    partitions = rows["partition"].to_numpy()
    return {
        int(partition): PlannedRows.of(rows, partitions == partition)
        for partition in np.unique(partitions)
    }


def find_left(
    topic: Topic, tombstones: Mapping[PartitionKey, int]
) -> dict[PartitionKey, LeftOfKey]:
    """Find what is left below each tombstone, and its horizon; leave out keys with neither."""
    spark, name = topic.spark, topic.name
    asked = _asked(spark, tombstones)
    is_tombstone = F.col("offset") == F.col("tombstone")
    records = spark.table(name.records_table).join(asked, ["partition", "key"])
    left = records.groupBy("partition", "key").agg(
        F.count_if(F.col("offset") < F.col("tombstone")).alias("records"),
        F.max(F.when(is_tombstone, F.col("batch"))).alias("base_offset"),
    )
    has_horizon = F.col("attributes").bitwiseAND(F.lit(DELETE_HORIZON)) != 0
    horizons = (
        spark.table(name.batches_table)
        .where(has_horizon)
        .select("partition", "base_offset", "base_timestamp_ms")
    )
    rows = left.join(horizons, ["partition", "base_offset"], "left").toArrow().to_pylist()
    return {
        (row["partition"], row["key"]): LeftOfKey(row["records"], row["base_timestamp_ms"])
        for row in rows
    }


def _asked(spark: SparkSession, tombstones: Mapping[PartitionKey, int]) -> DataFrame:
    partitions, keys = zip(*tombstones, strict=True) if tombstones else ((), ())
    return spark.createDataFrame(
        pa.table(
            {
                "partition": pa.array(partitions, pa.int32()),
                "key": pa.array(keys, pa.binary()),
                "tombstone": pa.array(tombstones.values(), pa.int64()),
            }
        )
    )
