"""Which records a later one supersedes, for each segment: Kafka's offset map, of any size.

Kafka bounds its map by memory and cleans less; here a round is never partial. A map that fits is
sent to every task. One that does not is joined: a Bloom filter leaves out what no dirty record
can supersede, the rest is shuffled, and memory holds one segment at a time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.frames.cleaning import Latest
from ebbtide.frames.keys import KeyFilter, OffsetMap, hash_keys
from ebbtide.records.arrays import Int64s
from ebbtide.tables.files import SegmentFiles, count_rows, read_segment
from ebbtide.tables.tasks import map_segments

# Records in the dirty part up to which the map is sent to every task: some 200 bytes each there.
MAX_SENT_RECORDS = 4_000_000
FILTER_BYTES = 64 * 1024 * 1024

R = TypeVar("R")
FindKeys = Callable[[SegmentFiles], pa.Table]
Clean = Callable[[int, Latest], R]


def map_with_latest(
    spark: SparkSession,
    segments: Sequence[SegmentFiles],
    dirty: Sequence[SegmentFiles],
    find_keys: FindKeys,
    clean: Clean[R],
) -> list[R]:
    """What `clean` makes of each segment, given its number and the offset map's word on its keys.

    `find_keys` gives a dirty segment's `key, offset`; both run in tasks.
    """
    if count_rows(dirty) > MAX_SENT_RECORDS:
        return _by_join(spark, segments, dirty, find_keys, clean)
    found = map_segments(spark, find_keys, dirty, count_rows(dirty))
    maps = {
        partition: OffsetMap.of(
            [keys for unit, keys in zip(dirty, found, strict=True) if unit.partition == partition]
        )
        for partition in {unit.partition for unit in segments}
    }
    shared = spark.sparkContext.broadcast((maps, segments))
    work = partial(_clean_with_map, shared, clean)
    done = map_segments(spark, work, range(len(segments)), count_rows(segments))
    shared.destroy()
    return done


def _clean_with_map(shared: Any, clean: Clean[R], number: int) -> R:
    maps, segments = shared.value
    offset_map: OffsetMap = maps[segments[number].partition]
    return clean(number, lambda keys, _: offset_map.latest(keys))


def _by_join(
    spark: SparkSession,
    segments: Sequence[SegmentFiles],
    dirty: Sequence[SegmentFiles],
    find_keys: FindKeys,
    clean: Clean[R],
) -> list[R]:
    latest = _latest(spark, dirty, find_keys).persist(StorageLevel.DISK_ONLY)
    shared = spark.sparkContext.broadcast((segments, _filter_of(latest)))
    candidates = _map_numbers(
        spark,
        len(segments),
        partial(_candidates, shared),
        "number int, `partition` int, key binary, offset bigint",
    )
    superseded = (
        candidates.join(latest.hint("shuffle_hash"), ["partition", "key"])
        .where("offset < latest_offset")
        .select("number", "offset", "latest_offset")
    )
    numbers = spark.range(len(segments)).select(F.col("id").cast("int").alias("number"))

    def cleaned(number: pa.Table, found: pa.Table) -> pa.Table:
        found = found.sort_by("offset")
        of = partial(_scattered, found["offset"].to_numpy(), found["latest_offset"].to_numpy())
        done = clean(number["number"][0].as_py(), of)
        return pa.table({"number": number["number"], "effect": [pickle.dumps(done)]})

    effects = (
        numbers.groupBy("number")
        .cogroup(superseded.groupBy("number"))
        .applyInArrow(cleaned, "number int, effect binary")
        .toArrow()
        .sort_by("number")
    )
    latest.unpersist()
    return [pickle.loads(effect) for effect in effects["effect"].to_pylist()]


def _latest(spark: SparkSession, dirty: Sequence[SegmentFiles], find_keys: FindKeys) -> DataFrame:
    """The offset map as rows: `partition, key, latest_offset`."""
    shared = spark.sparkContext.broadcast(dirty)

    def keys_of(number: int) -> pa.Table:
        unit = shared.value[number]
        keys = find_keys(unit)
        partitions = pa.array(np.full(keys.num_rows, unit.partition, np.int32))
        return keys.add_column(0, "partition", partitions)

    rows = _map_numbers(spark, len(dirty), keys_of, "`partition` int, key binary, offset bigint")
    return rows.groupBy("partition", "key").agg(F.max("offset").alias("latest_offset"))


def _filter_of(latest: DataFrame) -> KeyFilter:
    """The keys of all partitions; a yes from another partition's key is sorted out by the join."""

    def filled(chunks: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        keys = KeyFilter.of_size(FILTER_BYTES)
        for chunk in chunks:
            keys.add(hash_keys(chunk.column(0)))
        yield pa.RecordBatch.from_pydict({"bits": [keys.bits.tobytes()]})

    whole = KeyFilter.of_size(FILTER_BYTES)
    for row in latest.select("key").mapInArrow(filled, "bits binary").toLocalIterator():
        np.bitwise_or(whole.bits, np.frombuffer(row["bits"], np.uint8), out=whole.bits)
    return whole


def _candidates(shared: Any, number: int) -> pa.Table:
    """In a task: the records of a segment that a dirty one may supersede."""
    segments, keys = shared.value
    unit = segments[number]
    rows = read_segment(unit, ("offset", "key")).table
    rows = rows.filter(pc.field("key").is_valid()).combine_chunks()
    found = rows.filter(pa.array(keys.may_hold(hash_keys(rows["key"].combine_chunks()))))
    count = found.num_rows
    return pa.table(
        {
            "number": pa.array(np.full(count, number, np.int32)),
            "partition": pa.array(np.full(count, unit.partition, np.int32)),
            "key": found["key"],
            "offset": found["offset"],
        }
    )


def _map_numbers(
    spark: SparkSession, count: int, work: Callable[[int], pa.Table], schema: str
) -> DataFrame:
    """The rows of `work(0)`, ..., `work(count - 1)`."""

    def mapped(chunks: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for chunk in chunks:
            for number in chunk.column(0).to_pylist():
                yield from work(number).to_batches()

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(mapped, schema)


def _scattered(superseded: Int64s, latest: Int64s, _: pa.ChunkedArray, offsets: Int64s) -> Int64s:
    """`latest` at the offsets that are `superseded`, both in offset order; -1 elsewhere."""
    found = np.full(len(offsets), -1, np.int64)
    is_there = np.isin(superseded, offsets)
    found[np.searchsorted(offsets, superseded[is_there])] = latest[is_there]
    return found
