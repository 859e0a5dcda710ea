"""What a cleaner round does to a topic, worked out from the snapshots that the round pins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ebbtide.errors import NotCoveredError
from ebbtide.frames.cleaning import (
    RULES,
    batch_bytes,
    batch_totals,
    judged,
    latest_offsets,
    narrow,
    within,
)
from ebbtide.log.batches import HEADER_BYTES, Batch
from ebbtide.log.cleaning import (
    Round,
    Survivors,
    Verdict,
    is_past_horizon,
    judge,
    needs_horizon,
    rewrite,
)
from ebbtide.log.producers import last_records
from ebbtide.log.state import NEVER
from ebbtide.records.varint import varint_size
from ebbtide.tables.batches import changes_table, read_batches
from ebbtide.tables.rounds import CleaningRound, PartitionRound
from ebbtide.tables.topics import Topic

Key = tuple[int, int]  # partition, base offset of a batch
_VERDICTS = pa.schema(
    [
        ("partition", pa.int32()),
        ("batch", pa.int64()),
        ("discards", pa.bool_()),
        ("is_past_horizon", pa.bool_()),
    ]
)
_BASES = pa.schema(
    [
        ("partition", pa.int32()),
        ("batch", pa.int64()),
        ("old_base_ms", pa.int64()),
        ("new_base_ms", pa.int64()),
    ]
)


@dataclass(slots=True)
class RoundEffect:
    """What a round removes and changes, before anything of it is committed."""

    judged: DataFrame  # persisted; `rule` says why a record goes
    changes: pa.Table
    victims: int = 0
    bytes_removed: int = 0
    numbers: dict[int, dict[str, Any]] = field(default_factory=dict)
    next_clean_ms: dict[int, int] = field(default_factory=dict)
    logs: dict[int, list[Batch]] = field(default_factory=dict)  # before the round


@dataclass(frozen=True, slots=True)
class _JudgedLog:
    """One partition's batches with what the round says of those below its bound."""

    log: list[Batch]
    verdicts: list[tuple[Batch, Verdict]]
    this_round: Round


def effect_of(topic: Topic, cleaning: CleaningRound) -> RoundEffect:
    """Work out the round; a pure function of it and of the snapshots it names."""
    spark, name = topic.spark, topic.name
    batches = _at(spark, name.batches_table, cleaning.batches_snapshot)
    headers = read_batches(batches, cleaning.partitions)
    logs = {
        partition: _judge_log(topic, partition, headers.get(partition, []), cleaning)
        for partition in cleaning.partitions
    }
    records = _at(spark, name.records_table, cleaning.records_snapshot)
    judged_records = _judge_records(topic, records, cleaning, logs)
    totals = _totals(judged_records)
    survivors = _survivors(spark, judged_records, logs, totals)
    effect = RoundEffect(judged_records, pa.table({}))
    changes = []
    for partition, judged_log in logs.items():
        after = _rewritten(judged_log, partition, cleaning.partitions[partition], survivors)
        changes += [
            (partition, before, batch, _event_time(totals, partition, before))
            for before, batch in after
            if batch != before
        ]
        _describe(effect, partition, judged_log, after, totals)
    effect.changes = changes_table(changes)
    return effect


def _at(spark: SparkSession, table: str, snapshot: int) -> DataFrame:
    return spark.read.option("versionAsOf", snapshot).table(table)


def _judge_log(
    topic: Topic, partition: int, log: list[Batch], cleaning: CleaningRound
) -> _JudgedLog:
    part = cleaning.partitions[partition]
    this_round = Round(
        cleaning.now_ms,
        cleaning.delete_retention_ms,
        part.first_uncleanable_offset,
        part.log_start_offset,
    )
    last = last_records(
        log, now_ms=cleaning.now_ms, expiration_ms=cleaning.producer_id_expiration_ms
    )
    retained = part.retained(log)
    verdicts = list(judge(retained, this_round, last))
    _refuse_uncovered(topic, partition, verdicts, part)
    return _JudgedLog(retained, verdicts, this_round)


def _refuse_uncovered(
    topic: Topic, partition: int, verdicts: list[tuple[Batch, Verdict]], part: PartitionRound
) -> None:
    start = part.log_start_offset
    for batch, _ in verdicts:
        if batch.magic < 2:
            raise NotCoveredError(
                f"expected record batches of magic 2 in {topic.name} partition {partition}, found "
                f"magic {batch.magic} at offset {batch.base_offset}; cleaning the old formats is "
                "not covered yet: take the topic out with ebbtide.enabled=false"
            )
        if batch.base_offset < start <= batch.last_offset:
            raise NotCoveredError(
                f"expected the log start offset of {topic.name} partition {partition} between two "
                f"record batches, found {start} inside [{batch.base_offset}, "
                f"{batch.last_offset}]; truncate to {batch.next_offset} and clean again"
            )


def _judge_records(
    topic: Topic, records: DataFrame, cleaning: CleaningRound, logs: Mapping[int, _JudgedLog]
) -> DataFrame:
    parts = cleaning.partitions
    columns = narrow(records, topic.config.message_timestamp_after_max_ms)
    verdicts = topic.spark.createDataFrame(_verdict_rows(logs, cleaning.now_ms))
    dirty = columns.where(within({p: part.dirty for p, part in parts.items()}))
    covered = columns.where(within({p: part.covered for p, part in parts.items()}))
    return judged(covered, verdicts, latest_offsets(dirty, verdicts)).persist()


def _verdict_rows(logs: Mapping[int, _JudgedLog], now_ms: int) -> pa.Table:
    rows = [
        {
            "partition": partition,
            "batch": batch.base_offset,
            "discards": verdict.discards_records,
            "is_past_horizon": is_past_horizon(batch, now_ms),
        }
        for partition, judged_log in logs.items()
        for batch, verdict in judged_log.verdicts
        if not batch.is_control and (verdict.discards_records or is_past_horizon(batch, now_ms))
    ]
    return pa.Table.from_pylist(rows, schema=_VERDICTS)


def _totals(judged_records: DataFrame) -> dict[Key, dict[str, Any]]:
    rows = batch_totals(judged_records).toArrow().to_pylist()
    return {(row["partition"], row["batch"]): row for row in rows}


def _survivors(
    spark: SparkSession,
    judged_records: DataFrame,
    logs: Mapping[int, _JudgedLog],
    totals: Mapping[Key, Mapping[str, Any]],
) -> dict[Key, Survivors]:
    """Survivors of every batch that may change; sizes where a batch is written anew."""
    found = {
        (partition, batch.base_offset): _counted(batch, totals.get((partition, batch.base_offset)))
        for partition, judged_log in logs.items()
        for batch, _ in judged_log.verdicts
    }
    bases = [
        {
            "partition": partition,
            "batch": batch.base_offset,
            "old_base_ms": batch.base_timestamp_ms,
            "new_base_ms": after.base_timestamp_ms,
        }
        for partition, judged_log in logs.items()
        for batch, verdict in judged_log.verdicts
        if (key := (partition, batch.base_offset)) in totals
        and (after := rewrite(batch, verdict, found[key], judged_log.this_round)) is not None
        and after is not batch
        and after.record_count > 0
    ]
    if bases:
        frame = spark.createDataFrame(pa.Table.from_pylist(bases, schema=_BASES))
        for row in batch_bytes(judged_records, frame).toArrow().to_pylist():
            key = row["partition"], row["batch"]
            found[key] = found[key]._replace(
                records_bytes=row["records_bytes"],
                records_bytes_before=row["records_bytes_before"],
            )
    return found


def _counted(batch: Batch, total: Mapping[str, Any] | None) -> Survivors:
    """Survivors of a batch without their sizes; a batch that is not in the totals keeps all."""
    if total is None:
        return Survivors(
            batch.record_count,
            first_timestamp_ms=batch.max_timestamp_ms,
            max_timestamp_ms=batch.max_timestamp_ms,
        )
    if total["survivors"] == 0:
        return Survivors(0)
    return Survivors(
        total["survivors"],
        total["tombstones"] > 0,
        total["first_timestamp_ms"],
        total["max_timestamp_ms"],
    )


def _rewritten(
    judged_log: _JudgedLog,
    partition: int,
    part: PartitionRound,
    survivors: Mapping[Key, Survivors],
) -> list[tuple[Batch, Batch | None]]:
    """Each batch below the bound and what becomes of it; those below the log start stay."""
    this_round = judged_log.this_round
    after: list[tuple[Batch, Batch | None]] = []
    for batch, verdict in judged_log.verdicts:
        if batch.next_offset <= part.log_start_offset:
            after.append((batch, batch))
            continue
        left = survivors[partition, batch.base_offset]
        if batch.is_control:
            left = _marker_left(batch, verdict, left, this_round)
        after.append((batch, rewrite(batch, verdict, left, this_round)))
    return after


def _marker_left(batch: Batch, verdict: Verdict, left: Survivors, this_round: Round) -> Survivors:
    """A control batch holds one record; its delta grows when its horizon is set."""
    if verdict.discards_records:
        return Survivors(0)
    if not needs_horizon(batch, verdict, left):
        return left
    horizon_ms = this_round.now_ms + this_round.delete_retention_ms
    # One byte tells a control record's length, which stays below 64.
    body_bytes = batch.size_bytes - HEADER_BYTES - 1
    body_bytes -= varint_size(batch.max_timestamp_ms - batch.base_timestamp_ms)
    body_bytes += varint_size(batch.max_timestamp_ms - horizon_ms)
    return left._replace(records_bytes=body_bytes + varint_size(body_bytes))


def _event_time(totals: Mapping[Key, Mapping[str, Any]], partition: int, batch: Batch) -> int:
    total = totals.get((partition, batch.base_offset))
    newest = None if total is None else total["max_event_time_ms"]
    return NEVER if newest is None else int(newest)


def _describe(
    effect: RoundEffect,
    partition: int,
    judged_log: _JudgedLog,
    after: list[tuple[Batch, Batch | None]],
    totals: Mapping[Key, Mapping[str, Any]],
) -> None:
    """Add the partition's numbers to the effect."""
    below = {before.base_offset for before, _ in after}
    above = [batch for batch in judged_log.log if batch.base_offset not in below]
    log_after = [batch for _, batch in after if batch is not None] + above
    by_rule = Counter[str]()
    holders = set()
    kept_tombstones = 0
    for (of, base), total in totals.items():
        if of == partition:
            by_rule.update({rule: total[rule] for rule in RULES})
            kept_tombstones += total["tombstones"]
            if total["tombstones"]:
                holders.add(base)
    waits = list(_waiting(log_after, judged_log.this_round, holders))
    before_bytes = sum(batch.size_bytes for batch in judged_log.log)
    after_bytes = sum(batch.size_bytes for batch in log_after)
    markers = [(b, a) for b, a in after if b.is_control and b.record_count]
    markers_removed = sum(1 for _, a in markers if a is None or a.record_count == 0)
    effect.victims += sum(by_rule.values())
    effect.bytes_removed += before_bytes - after_bytes
    effect.next_clean_ms[partition] = min(waits, default=NEVER)
    effect.logs[partition] = judged_log.log
    effect.numbers[partition] = {
        "records_before": _data_records(judged_log.log),
        "records_after": _data_records(log_after),
        "bytes_before": before_bytes,
        "bytes_after": after_bytes,
        "superseded": by_rule["superseded"],
        "aborted": by_rule["aborted"],
        "keyless": by_rule["keyless"],
        "tombstones_kept": kept_tombstones,
        "tombstones_removed": by_rule["tombstone"],
        "markers_removed": markers_removed,
        "markers_kept": len(markers) - markers_removed,
        "next_horizon_ms": min((wait for wait in waits if wait), default=None),
    }


def _data_records(log: list[Batch]) -> int:
    return sum(batch.record_count for batch in log if not batch.is_control)


def _waiting(log: list[Batch], this_round: Round, tombstone_holders: set[int]) -> Iterator[int]:
    """When each tombstone batch or marker left may go; 0 for a marker that has no horizon yet."""
    for batch, verdict in judge(log, this_round, {}):
        if batch.record_count == 0:
            continue
        horizon_ms = batch.delete_horizon_ms
        if batch.is_control and verdict.is_marker_of_empty_transaction and horizon_ms is None:
            yield 0
        elif horizon_ms is not None and (
            batch.is_control or batch.base_offset in tombstone_holders
        ):
            yield horizon_ms
