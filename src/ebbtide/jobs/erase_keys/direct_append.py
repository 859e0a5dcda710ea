"""Append tombstones directly to the tables of a topic without a source.

Order: plan written to the state, records, batches, state. Batches and state are derived from the
records in the table. A run that finds records beyond the log end finishes their append. If an
append was killed before its records, the next run only resets the state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from ebbtide.columns.headers import slices_by_value
from ebbtide.errors import CommitConflictError, RequestError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import OWN, Step, commit
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    own_spec_id,
    read_again,
    snapshot_after,
)
from ebbtide.jobs.ingest_segments.append import ends_passed, find_ends
from ebbtide.moments import to_datetime
from ebbtide.numbers import whole
from ebbtide.records.arrays import payload_size, record_size
from ebbtide.records.attributes import NO_LEADER_EPOCH, TOMBSTONE
from ebbtide.records.batch import BATCH_SCHEMA, HEADERS_TYPE, Control, read_header, v2_row
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.specs.erase_request import RUN_ID, Erasure, sliced
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import APPEND, NEVER, PartitionState, parse_property, to_properties

log = logging.getLogger(__name__)

Ends = Mapping[int, int]
Keys = Mapping[int, Sequence[bytes]]  # by partition
TIME = pa.timestamp("us", tz="UTC")


class AppendedTombstones(NamedTuple):
    """The topic after an append, and the snapshots that the append committed."""

    topic: Topic
    snapshot_ids: list[int]


def append_tombstones(topic: Topic, keys: Keys, erasure: Erasure) -> AppendedTombstones:
    """Append a tombstone for each key of each partition.

    Raise CommitConflictError if another job appends to the topic.
    """
    pinned = current_snapshot(topic.spark, topic.name.records_table)
    ends = {partition: topic.partitions[partition].log_end_offset for partition in keys}
    if ends_passed(topic):
        raise CommitConflictError(
            f"expected no rows beyond the log end offsets of {topic.name}, found rows that another "
            "job appended. Run erase_keys again"
        )
    compare_and_set(topic, Step.APPEND_STARTED, partial(_started, ends))
    rows = pa.concat_tables(
        _rows(topic, p, partition_keys, erasure) for p, partition_keys in sorted(keys.items())
    )
    records = _append_alone(topic, topic.name.records_table, rows, Step.APPEND_RECORDS, pinned)
    after, batches = _finish(read_again(topic), ends)
    return AppendedTombstones(after, records + batches)


def finish_append(topic: Topic) -> AppendedTombstones:
    """Finish the append of a killed run, if there is one.

    Raise CommitConflictError if rows beyond the log end offset are not an erasure's.
    """
    beyond = ends_passed(topic)
    if lacks_tombstones(topic, beyond):
        raise CommitConflictError(
            f"expected no ingest into {topic.name} while erase_keys runs, found rows beyond the "
            f"log end offsets {beyond} (by partition) that no erasure appended. Run erase_keys "
            "again once the ingest has ended"
        )
    begun = sorted(begun_append(topic) | set(beyond))
    if not begun:
        return AppendedTombstones(topic, [])
    return _finish(topic, {p: topic.partitions[p].log_end_offset for p in begun})


def lacks_tombstones(topic: Topic, beyond: Ends) -> bool:
    """Return whether a partition has rows beyond its end that no erasure appended."""
    is_ours = F.exists("headers", lambda header: header["key"] == RUN_ID)
    for partition, end in beyond.items():
        is_beyond = (F.col("partition") == partition) & (F.col("offset") >= end)
        rows = topic.spark.table(topic.name.records_table).where(is_beyond)
        counts = rows.agg(F.count("*"), F.count_if(~F.coalesce(is_ours, F.lit(False)))).first()
        assert counts is not None
        count, others = counts
        if others or not count:
            return True
    return False


def begun_append(topic: Topic) -> set[int]:
    """Return the partitions that the append in flight writes to."""
    text = topic.properties.get(APPEND, "[]")
    return parse_property(APPEND, text, "partitions", lambda values: set(map(whole, values)))


def _append_alone(
    topic: Topic, table: str, rows: pa.Table, step: Step, pinned: int | None
) -> list[int]:
    """Append the rows. Return a list with the new snapshot's id, if there is one.

    Raise CommitConflictError if another writer added rows after the snapshot `pinned`.
    """
    spark = topic.spark
    writer = spark.createDataFrame(rows).writeTo(table)
    writer = writer.option(f"snapshot-property.{OWN}", "true")
    writer = writer.option("use-table-distribution-and-ordering", "false")
    writer = writer.option("output-spec-id", str(own_spec_id(open_table(spark, table))))
    writer = writer.option("isolation-level", "serializable")
    if pinned is not None:
        writer = writer.option("validate-from-snapshot-id", str(pinned))
    # An overwrite of no rows is an append that also checks for other writers' appends.
    append = partial(writer.overwrite, F.lit(False))
    snapshot = commit(step, partial(snapshot_after, spark, table, append))
    return [] if snapshot is None else [snapshot]


def _started(ends: Ends, current: Topic) -> PropertyChanges:
    if current.config.upstream is not None:
        raise RequestError(
            f"expected {current.name} without a source, found {current.config.upstream}, which was "
            "set meanwhile. Nothing was erased. Request the erasure again"
        )
    changes: dict[str, str | None] = {}
    for partition, end in ends.items():
        state = _with_first_appended(_unmoved(current, partition, end), end)
        changes |= to_properties(partition, state)
    return changes | {APPEND: json.dumps(sorted(ends))}


def _with_first_appended(state: PartitionState, offset: int) -> PartitionState:
    is_first = state.first_appended_offset == NEVER
    return state.moved(first_appended_offset=offset) if is_first else state


def _unmoved(current: Topic, partition: int, end: int) -> PartitionState:
    state = current.partitions[partition]
    if state.log_end_offset != end:
        raise CommitConflictError(
            f"expected log end offset {end} in partition {partition} of {current.name}, found "
            f"{state.log_end_offset}: another job appended records. Run erase_keys again"
        )
    return state


def _rows(topic: Topic, partition: int, keys: Sequence[bytes], erasure: Erasure) -> pa.Table:
    """Return the tombstones as rows of the records table, sorted by key.

    A batch is at most max.message.bytes large.
    """
    state = topic.partitions[partition]
    keys = sorted(keys)
    headers = [(name.encode(), value) for name, value in erasure.headers]
    payloads = [payload_size(key, None, headers) for key in keys]
    sizes = [record_size(0, i, payload) for i, payload in enumerate(payloads)]
    first = state.log_end_offset
    batches = [
        first + start
        for start, end in sliced(sizes, topic.config.max_message_bytes)
        for _ in range(start, end)
    ]
    count = len(keys)
    now = to_datetime(erasure.now_ms)
    record_headers = [{"key": name, "value": value} for name, value in erasure.headers]
    columns: dict[str, pa.Array] = {
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "segment": pa.repeat(pa.scalar(first, pa.int64()), count),
        "batch": pa.array(batches, pa.int64()),
        "timestamp": pa.repeat(pa.scalar(now, TIME), count),
        "event_time": pa.repeat(pa.scalar(_event_time(state, now), TIME), count),
        "append_time": pa.repeat(pa.scalar(now, TIME), count),
        "key": pa.array(keys, pa.binary()),
        "value": pa.nulls(count, pa.binary()),
        "headers": pa.array([record_headers] * count, HEADERS_TYPE),
        "attributes": pa.repeat(pa.scalar(TOMBSTONE, pa.int32()), count),
        "is_tombstone": pa.repeat(pa.scalar(False), count),
        "tombstone_by": pa.nulls(count, pa.string()),
        "size_bytes": pa.array(payloads, pa.int32()),
    }
    return pa.table(columns)


def _event_time(state: PartitionState, now: datetime) -> datetime:
    """Return the partition's newest event time, or `now` if it has none.

    An erasure is not an event: its time must not let other records expire.
    """
    newest_ms = state.max_event_time_ms
    if newest_ms == NEVER:
        return now
    return min(now, to_datetime(newest_ms))


def _finish(topic: Topic, ends: Ends) -> AppendedTombstones:
    """Append the batches of the records beyond `ends`, and move the log end offsets past them."""
    written, snapshots = _read_back(topic, ends), []
    if written.num_rows:
        pinned = current_snapshot(topic.spark, topic.name.batches_table)
        found = find_ends(topic, ends)
        lacking = [p for p in ends if p not in found.left_batches]
        is_lacking = pc.is_in(written["partition"], pa.array(lacking, pa.int32()))
        batches = _batches(topic, written.filter(is_lacking))
        if batches.num_rows:
            table, step = topic.name.batches_table, Step.APPEND_BATCHES
            snapshots = _append_alone(topic, table, batches, step, pinned)
    columns = [written[name].to_pylist() for name in ("partition", "offset", "append_time_ms")]
    lasts = {p: _Last(offset, ms) for p, offset, ms in zip(*columns, strict=True)}
    after = set_counted(topic, Step.APPEND_STATE, partial(_finished, ends, lasts))
    return AppendedTombstones(after, snapshots)


class _Last(NamedTuple):
    """A partition's last appended record."""

    offset: int
    append_time_ms: int


def _read_back(topic: Topic, ends: Ends) -> pa.Table:
    is_beyond = " OR ".join(f"(`partition` = {p} AND offset >= {end})" for p, end in ends.items())
    return (
        topic.spark.table(topic.name.records_table)
        .where(is_beyond)
        .select(
            *("partition", "offset", "segment", "batch", "key", "headers", "attributes"),
            F.unix_millis("timestamp").alias("timestamp_ms"),
            F.unix_millis("event_time").alias("event_time_ms"),
            F.unix_millis("append_time").alias("append_time_ms"),
        )
        .orderBy("partition", "offset")
        .toArrow()
    )


def _batches(topic: Topic, rows: pa.Table) -> pa.Table:
    """Return the batches of these records, as rows of the batches table."""
    epochs = _leader_epochs(topic)
    batches = [
        _batch(partition, of_batch.to_pylist(), epochs.get(partition, 0))
        for partition, of_partition in slices_by_value(rows, "partition")
        for _, of_batch in slices_by_value(of_partition, "batch")
    ]
    return pa.Table.from_pylist(batches, schema=_BATCH_ROWS)


def _batch(partition: int, rows: Sequence[Mapping[str, Any]], leader_epoch: int) -> dict[str, Any]:
    records = [
        Record(
            row["offset"],
            row["timestamp_ms"],
            row["key"],
            None,
            [(header["key"].encode(), header["value"]) for header in row["headers"]],
            row["attributes"],
        )
        for row in rows
    ]
    data = write_batch(BatchFields(leader_epoch=leader_epoch), records)
    header = v2_row(0, read_header(memoryview(data)), Control())._asdict()
    return {
        **header,
        "partition": partition,
        "segment": rows[0]["segment"],
        "max_event_time_ms": max(row["event_time_ms"] for row in rows),
        "append_time_ms": max(row["append_time_ms"] for row in rows),
    }


_BATCH_ROWS = pa.schema(
    [
        ("partition", pa.int32()),
        *(field for field in BATCH_SCHEMA if field.name != "position"),
        ("segment", pa.int64()),
        ("max_event_time_ms", pa.int64()),
        ("append_time_ms", pa.int64()),
        ("txn_first_offset", pa.int64()),
        ("header_base_offset", pa.int64()),
        ("producer_timestamp_ms", pa.int64()),
    ]
)


def _leader_epochs(topic: Topic) -> dict[int, int]:
    """Return the last leader epoch of each partition; no broker has led it since."""
    rows = (
        topic.spark.table(topic.name.batches_table)
        .where(F.col("leader_epoch") != NO_LEADER_EPOCH)
        .groupBy("partition")
        .agg(F.max("leader_epoch").alias("epoch"))
        .collect()
    )
    return {row["partition"]: row["epoch"] for row in rows}


def _finished(ends: Ends, lasts: Mapping[int, _Last], current: Topic) -> PropertyChanges:
    """Return the states after the last appended records, or as before if none was appended."""
    changes: dict[str, str | None] = {APPEND: None}
    for partition, end in ends.items():
        state = current.partitions[partition]
        if partition in lasts and state.log_end_offset == end:
            changes |= to_properties(partition, _state_after(state, lasts[partition]))
        elif not lasts and state.log_end_offset == state.first_appended_offset == end:
            changes |= to_properties(partition, state.moved(first_appended_offset=NEVER))
    return changes


def _state_after(state: PartitionState, last: _Last) -> PartitionState:
    """Return the state after the append.

    The tombstones get a segment of their own. An empty segment after it closes it, so that the
    cleaner can clean it.
    """
    first, end, now_ms = state.log_end_offset, last.offset + 1, last.append_time_ms
    before = [segment for segment in state.segments if segment.base_offset < first]
    known_ms = state.max_event_time_ms
    return _with_first_appended(state, first).moved(
        log_end_offset=end,
        segments=(*before, SegmentStart(first, now_ms), SegmentStart(end, now_ms)),
        max_event_time_ms=now_ms if known_ms == NEVER else known_ms,
    )
