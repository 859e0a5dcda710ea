"""Cleaner rounds and retention in plain Python: `ebbtide.log` decides, a log in memory changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ebbtide.log.batches import HEADER_BYTES, Batch
from ebbtide.log.cleaning import (
    Round,
    Survivors,
    Verdict,
    is_past_horizon,
    is_retained,
    judge,
    rewrite,
)
from ebbtide.log.config import TopicConfig
from ebbtide.log.producers import LastRecord, last_records
from ebbtide.log.retention import Offsets, expire
from ebbtide.log.segments import Bounds, Cleanable, Segment, cleanable, merged, segment_of
from ebbtide.log.state import PartitionState
from ebbtide.log.transactions import OpenTransactions
from ebbtide.records.v2_writer import BatchFields, Record, write_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One partition: headers in offset order, and each batch's records by its base offset.

    A control batch's record is among them. Below the first segment are the batches of which only
    the producer is remembered.
    """

    batches: tuple[Batch, ...]
    records: Mapping[int, Sequence[Record]]
    state: PartitionState


def in_segments(log: Log) -> list[Batch]:
    """The batches that are still there."""
    first_segment = log.state.segments[0][0]
    return [batch for batch in log.batches if batch.base_offset >= first_segment]


def producers_of(log: Log, config: TopicConfig, now_ms: int) -> dict[int, LastRecord]:
    """What the log remembers of its producers at `now_ms`."""
    expiration_ms = config.producer_id_expiration_ms
    return last_records(log.batches, now_ms=now_ms, expiration_ms=expiration_ms)


def open_transactions(log: Log) -> OpenTransactions:
    """The transactions that are undecided at the log's end."""
    transactions = OpenTransactions()
    for batch in log.batches:
        transactions.append(batch)
    return transactions


def segments_of(log: Log) -> list[Segment]:
    """The logical segments with what their batches add up to."""
    bases = [base for base, _ in log.state.segments]
    contents: dict[int, list[Batch]] = {base: [] for base in bases}
    for batch in in_segments(log):
        contents[segment_of(bases, batch.base_offset)].append(batch)
    return [
        Segment(
            base,
            modified_ms,
            size_bytes=sum(batch.size_bytes for batch in contents[base]),
            max_timestamp_ms=max((b.max_timestamp_ms for b in contents[base]), default=-1),
            first_batch_timestamp_ms=next((b.max_timestamp_ms for b in contents[base]), None),
        )
        for base, modified_ms in log.state.segments
    ]


def offer(log: Log, config: TopicConfig, now_ms: int) -> Cleanable:
    """What the log offers to the cleaner at `now_ms`."""
    state = log.state
    bounds = Bounds(
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty_offset=state.first_dirty_offset,
        last_stable_offset=open_transactions(log).last_stable_offset(state.log_end_offset),
        first_unmarked_offset=state.first_unmarked_offset,
    )
    return cleanable(segments_of(log), bounds, config, now_ms)


def clean(log: Log, config: TopicConfig, now_ms: int, *, is_idle: bool = False) -> Log:
    """The log after one round at `now_ms`, whether or not Kafka would pick it.

    An idle round supersedes nothing and leaves the first dirty offset where it is.
    """
    offered = offer(log, config, now_ms)
    bound, first_dirty = offered.first_uncleanable_offset, offered.first_dirty_offset
    this_round = Round(now_ms, config.delete_retention_ms, bound, log.state.log_start_offset)
    producers = producers_of(log, config, now_ms)
    verdicts = list(judge(in_segments(log), this_round, producers))
    latest = {} if is_idle else latest_offsets(log, verdicts, first_dirty)
    segments = merged(segments_of(log), bound, config.segment_bytes)
    state = replace(
        log.state,
        first_dirty_offset=first_dirty if is_idle else bound,
        segments=tuple((segment.base_offset, segment.modified_ms) for segment in segments),
        cleaned_at_ms=now_ms,
    )
    return swept(replace(log, state=state), verdicts, latest, this_round)


def swept(
    log: Log,
    verdicts: Iterable[tuple[Batch, Verdict]],
    latest: Mapping[bytes | None, int],
    this_round: Round,
) -> Log:
    """The log with the judged batches written anew or gone."""
    batches = {batch.base_offset: batch for batch in log.batches}
    records = dict(log.records)
    for batch, verdict in verdicts:
        before = records.pop(batch.base_offset)
        survivors = list(surviving(batch, verdict, before, latest, now_ms=this_round.now_ms))
        after = rewritten(batch, verdict, before, survivors, this_round=this_round)
        if after is None:
            del batches[batch.base_offset]
        else:
            batches[batch.base_offset] = after
            records[batch.base_offset] = survivors
    return replace(log, batches=tuple(batches.values()), records=records)


def retain(log: Log, config: TopicConfig, now_ms: int) -> Log:
    """The log after retention at `now_ms`; all of it is below the high watermark."""
    state = log.state
    expiry = expire(
        segments_of(log),
        Offsets(state.log_start_offset, state.log_end_offset, state.log_end_offset),
        config,
        now_ms=now_ms,
        max_event_time_ms=state.max_event_time_ms,
    )
    kept = tuple((segment.base_offset, segment.modified_ms) for segment in expiry.kept)
    remembered = remembered_offsets(log, producers_of(log, config, now_ms))
    return replace(
        log,
        batches=tuple(
            batch
            for batch in log.batches
            if batch.base_offset >= kept[0][0] or batch.base_offset in remembered
        ),
        state=state.moved(log_start_offset=expiry.log_start_offset, segments=kept),
    )


def remembered_offsets(log: Log, producers: Mapping[int, LastRecord]) -> set[int]:
    """Base offsets of what Kafka remembers without its segment.

    The newest data of a producer that has not expired, and where an open transaction begins.
    """
    newest = {
        batch.base_offset
        for batch in log.batches
        if not batch.is_control
        and (last := producers.get(batch.producer_id)) is not None
        and last.is_in(batch)
    }
    return newest | set(open_transactions(log).first_offsets.values())


def latest_offsets(
    log: Log, verdicts: Sequence[tuple[Batch, Verdict]], first_dirty_offset: int
) -> dict[bytes | None, int]:
    """The offset map: where each key was written last in the dirty part, aborted data left out."""
    return {
        record.key: record.offset
        for batch, verdict in verdicts
        if not batch.is_control and not verdict.discards_records
        for record in log.records[batch.base_offset]
        if record.key is not None and record.offset >= first_dirty_offset
    }


def surviving(
    batch: Batch,
    verdict: Verdict,
    records: Sequence[Record],
    latest: Mapping[bytes | None, int],
    *,
    now_ms: int,
) -> Iterator[Record]:
    """The records of a batch that the round keeps."""
    for record in records:
        is_kept = batch.is_control or is_retained(
            has_key=record.key is not None,
            is_latest=record.offset >= latest.get(record.key, -1),
            is_tombstone=record.value is None,
            is_past_batch_horizon=is_past_horizon(batch, now_ms),
        )
        if is_kept and not verdict.discards_records:
            yield record


def rewritten(
    batch: Batch,
    verdict: Verdict,
    before: Sequence[Record],
    survivors: Sequence[Record],
    *,
    this_round: Round,
) -> Batch | None:
    """The header after the round; None where the batch goes."""
    times_ms = [record.timestamp_ms for record in survivors] or [-1]
    left = Survivors(
        len(survivors),
        has_tombstone=any(record.value is None for record in survivors),
        first_timestamp_ms=times_ms[0],
        max_timestamp_ms=max(times_ms),
        records_bytes_before=encoded_bytes(before, batch),
    )
    after = rewrite(batch, verdict, left, this_round)
    if after is None or not survivors:
        return after
    # Where the records end depends on the base timestamp that they are written against.
    sized = left._replace(records_bytes=encoded_bytes(survivors, after))
    return rewrite(batch, verdict, sized, this_round)


def encoded_bytes(records: Sequence[Record], batch: Batch) -> int:
    """Bytes of the records in a v2 batch with this header, uncompressed."""
    if not records:
        return 0
    fields = BatchFields(base_offset=batch.base_offset, base_timestamp_ms=batch.base_timestamp_ms)
    return len(write_batch(fields, records)) - HEADER_BYTES
