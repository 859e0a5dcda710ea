"""Moving the log start offset, and removing what then lies below it.

The order makes it safe: log start offset first, then records, then batches. Every run removes
whatever still lies below, so a killed one is finished by the next.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from ebbtide.columns.header_columns import BatchHeaders, open_transactions
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.batch_rows import read_headers
from ebbtide.iceberg.files.deletes import delete_rows, delete_segments
from ebbtide.iceberg.foreign_changes import announce_removal
from ebbtide.iceberg.history import live_rows
from ebbtide.iceberg.topics import Topic, current_snapshot, load
from ebbtide.log.producers import last_records, remembered
from ebbtide.text import number

log = logging.getLogger(__name__)

Ids = list[int]


@dataclass(slots=True)
class Truncation:
    """What lies below the log start offsets, by how it leaves; {partition: segments}."""

    whole: dict[int, Ids] = field(default_factory=dict)
    astride: dict[int, Ids] = field(default_factory=dict)
    batches_whole: dict[int, Ids] = field(default_factory=dict)
    batches_single: dict[int, Ids] = field(default_factory=dict)  # base offsets
    rows: Counter[int] = field(default_factory=Counter)  # live rows, by partition
    files: int = 0  # data files of records
    file_bytes: int = 0  # of these files


def truncate_below_start(topic: Topic, now_ms: int) -> tuple[Truncation, list[int]]:
    """Remove what lies below each log start offset; what went and the snapshots that did it."""
    current, found = load(topic.spark, topic.name), Truncation()
    snapshots = _truncate_records(current, found) + _truncate_batches(current, found, now_ms)
    return found, [snapshot for snapshot in snapshots if snapshot is not None]


def _truncate_records(topic: Topic, found: Truncation) -> list[int | None]:
    spark, table, committed = topic.spark, topic.name.records_table, []
    snapshot = current_snapshot(spark, table)
    if snapshot is None:
        return []
    _find_records(topic, found, snapshot)
    if found.whole or found.astride:
        rows, segments = found.rows.total(), sum(map(len, found.whole.values()))
        log.info("removes %s records, among them %d whole segments", number(rows), segments)
        announce_removal(topic)
    if found.whole:
        step = Step.TRUNCATE_RECORD_SEGMENTS
        committed.append(delete_segments(spark, table, snapshot, found.whole, step, {}))
    if found.astride:
        below = _below_start(topic, found.astride)
        deleted = delete_rows(spark, table, below, Step.TRUNCATE_RECORDS)
        committed.append(deleted.snapshot)
        found.files += len(deleted.files)
        found.file_bytes += sum(file.size_bytes for file in deleted.files)
    return committed


def _truncate_batches(topic: Topic, found: Truncation, now_ms: int) -> list[int | None]:
    spark, table, committed = topic.spark, topic.name.batches_table, []
    snapshot = current_snapshot(spark, table)
    if snapshot is None:
        return []
    _find_batches(topic, found, now_ms, snapshot)
    if found.batches_whole or found.batches_single:
        announce_removal(topic)
    if found.batches_whole:
        step = Step.TRUNCATE_BATCHES
        committed.append(delete_segments(spark, table, snapshot, found.batches_whole, step, {}))
    if found.batches_single:
        condition = " OR ".join(
            f"(`partition` = {p} AND base_offset IN ({', '.join(map(str, offsets))}))"
            for p, offsets in found.batches_single.items()
        )
        committed.append(delete_rows(spark, table, condition, Step.TRUNCATE_BATCHES).snapshot)
    return committed


def _find_records(topic: Topic, found: Truncation, snapshot: int) -> None:
    """Physical segments that lie below the log start offset, or astride it."""
    states = topic.partitions
    for row in _files(topic, snapshot).collect():
        state = states.get(row["partition"])
        if state is None or row["first_offset"] >= state.log_start_offset:
            continue
        if row["last_offset"] < state.log_start_offset:
            found.whole.setdefault(row["partition"], []).append(row["segment"])
            found.files += row["files"]
            found.rows[row["partition"]] += row["rows"]
            found.file_bytes += row["bytes"]
        else:
            found.astride.setdefault(row["partition"], []).append(row["segment"])
    if found.astride:
        _count_astride(topic, found)


def _files(topic: Topic, snapshot: int) -> DataFrame:
    """One row a physical segment of the records table, from its manifests alone."""
    more = """
        min(readable_metrics.offset.lower_bound) AS first_offset,
        max(readable_metrics.offset.upper_bound) AS last_offset,
        count(*) AS files, sum(file_size_in_bytes) AS bytes
    """
    return live_rows(topic.spark, topic.name.records_table, snapshot, more)


def _count_astride(topic: Topic, found: Truncation) -> None:
    """Count the rows to be removed one by one; a partition without any is left out.

    The condition also holds for rows of whole segments, which are counted already.
    """
    rows = (
        topic.spark.table(topic.name.records_table)
        .where(_below_start(topic, found.astride))
        .groupBy("partition")
        .count()
        .collect()
    )
    counts = {row["partition"]: row["count"] - found.rows[row["partition"]] for row in rows}
    found.astride = {p: segments for p, segments in found.astride.items() if counts.get(p)}
    found.rows.update(counts)


def _below_start(topic: Topic, segments: dict[int, Ids]) -> str:
    states = topic.partitions
    return " OR ".join(
        # A merge may move rows to an earlier segment meanwhile.
        f"(`partition` = {p} AND segment <= {max(bases)} AND offset < {states[p].log_start_offset})"
        for p, bases in segments.items()
    )


def _find_batches(topic: Topic, found: Truncation, now_ms: int, snapshot: int) -> None:
    """Batch rows before the first logical segment, but for those that must stay."""
    headers = read_headers(topic.spark, topic.name.batches_table, topic.partitions, snapshot)
    for partition, state in topic.partitions.items():
        of_partition = headers[partition]
        is_before = of_partition.column("segment") < state.first_segment
        if not is_before.any():
            continue
        kept = _kept_batches(topic, of_partition, state.log_start_offset, now_ms)
        leaving: dict[int, Ids] = defaultdict(list)
        holding = set()
        before = of_partition.where(is_before)
        pairs = zip(before.column("segment"), before.column("base_offset"), strict=True)
        for segment, base_offset in pairs:
            if int(base_offset) in kept:
                holding.add(int(segment))
            else:
                leaving[int(segment)].append(int(base_offset))
        for segment, offsets in leaving.items():
            if segment in holding:
                found.batches_single.setdefault(partition, []).extend(offsets)
            else:
                found.batches_whole.setdefault(partition, []).append(segment)


def _kept_batches(
    topic: Topic, headers: BatchHeaders, log_start_offset: int, now_ms: int
) -> set[int]:
    """Base offsets of what stays although its segment went.

    Kafka remembers, without their segments, producers that have not expired and where an open
    transaction begins. And an ingest that appends meanwhile may still write at or
    above the log start offset into a segment that retention has rolled away.
    """
    is_above = headers.column("last_offset") >= log_start_offset
    kept = {int(base) for base in headers.where(is_above).column("base_offset")}
    kept |= set(open_transactions(headers).first_offsets.values())
    log = headers.of_last_records.batches()
    expiration_ms = topic.config.producer_id_expiration_ms
    last = last_records(log, now_ms=now_ms, expiration_ms=expiration_ms)
    return kept | remembered(log, last)
