"""Cleaner rounds and retention in plain Python: `ebbtide.log` decides, a log in memory changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ebbtide.kafka.batch_header import HEADER_BYTES, Batch
from ebbtide.kafka.compaction import (
    Round,
    Survivors,
    Verdict,
    drops_tombstones,
    idle_reason,
    is_retained,
    judge,
    rewrite,
)
from ebbtide.kafka.retention import LogOffsets, expire
from ebbtide.kafka.transactions import (
    LastRecord,
    OpenTransactions,
    aborted_transactions,
    carried,
    last_records,
    remembered,
    visible_stable_offset,
)
from ebbtide.records.attributes import TRANSACTIONAL
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.settings.config import TopicConfig
from ebbtide.state.logical_segments import Bounds, Cleanable, Segment, cleanable, merged, segment_of
from ebbtide.state.topic_state import PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One partition: headers in offset order, and each batch's records by its base offset.

    A control batch's record is among them; what lies below the log start offset is not. Below the
    first segment are the batches of which only the producer is remembered. `measured` replaces the
    headers where segments are added up, since sizes of compressed batches are estimates here.
    """

    batches: tuple[Batch, ...]
    records: Mapping[int, Sequence[Record]]
    state: PartitionState
    measured: tuple[Batch, ...] | None = None


def in_segments(log: Log) -> list[Batch]:
    """The batches that are still there."""
    first_segment = log.state.first_segment
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
    for batch in in_segments(log) if log.measured is None else log.measured:
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


def truncate(log: Log, offset: int) -> Log:
    """The log after DeleteRecords; the rows of hidden batches stay, their records do not."""
    end = log.state.log_end_offset
    start = max(log.state.log_start_offset, end if offset == -1 else offset)
    records = {
        base: [record for record in records if record.offset >= start]
        for base, records in log.records.items()
    }
    return replace(log, records=records, state=log.state.moved(log_start_offset=start))


def offer(log: Log, config: TopicConfig, now_ms: int) -> Cleanable:
    """What the log offers to the cleaner at `now_ms`."""
    state = log.state
    bounds = Bounds(
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty_offset=state.first_dirty_offset,
        last_stable_offset=stable_offset(log),
        first_unmarked_offset=state.first_unmarked_offset,
    )
    return cleanable(segments_of(log), bounds, config, now_ms)


def stable_offset(log: Log) -> int:
    """The last stable offset."""
    start, end = log.state.log_start_offset, log.state.log_end_offset
    visible = (batch for batch in log.batches if batch.next_offset > start)
    return visible_stable_offset(
        open_transactions(log).last_stable_offset(end),
        log_start_offset=start,
        log_end_offset=end,
        first_batch_offset=next((batch.written_base_offset for batch in visible), None),
    )


def round_of(log: Log, offered: Cleanable, config: TopicConfig, now_ms: int) -> Round:
    """The round over what the log offers."""
    return Round(
        now_ms,
        config.delete_retention_ms,
        offered.first_uncleanable_offset,
        log.state.log_start_offset,
        offered.first_dirty_offset,
        log.state.segments,
    )


def is_idle_round_due(log: Log, offered: Cleanable, config: TopicConfig, now_ms: int) -> bool:
    """Whether a log that Kafka does not pick has something to do all the same."""
    this_round = round_of(log, offered, config, now_ms)
    this_round = this_round._replace(first_uncleanable_offset=offered.clean_end_offset)
    with_tombstone = {
        base
        for base, records in log.records.items()
        if any(record.value is None for record in records)
    }
    verdicts = judge(in_segments(log), this_round, {})
    return idle_reason(verdicts, this_round, with_tombstone) is not None


def clean(log: Log, config: TopicConfig, now_ms: int, *, is_idle: bool = False) -> Log:
    """The log after one round at `now_ms`, whether or not Kafka would pick it.

    An idle round supersedes nothing, ends where the dirty part begins, and leaves the first dirty
    offset where it is.
    """
    offered = offer(log, config, now_ms)
    bound, first_dirty = offered.first_uncleanable_offset, offered.first_dirty_offset
    if is_idle:
        bound = offered.clean_end_offset
    this_round = round_of(log, offered, config, now_ms)
    this_round = this_round._replace(is_idle=is_idle, first_uncleanable_offset=bound)
    producers = producers_of(log, config, now_ms)
    verdicts = list(judge(in_segments(log), this_round, producers))
    latest = {} if is_idle else latest_offsets(log, verdicts, first_dirty)
    segments = merged(segments_of(log), bound, config.segment_bytes)
    state = replace(
        log.state,
        first_dirty_offset=first_dirty if is_idle else bound,
        segments=tuple(segment.start for segment in segments),
        cleaned_at_ms=now_ms,
    )
    after = swept(replace(log, state=state), verdicts, latest, this_round)
    # A rule that Kafka's classes are driven by as well cannot differ from them, but be wrong.
    assert latest_values(after) == latest_values(log), "a round changed a key's value"
    return carry(log, after, producers)


def latest_values(log: Log) -> dict[bytes, bytes]:
    """The value that a reader gets of each key: that of its last record, unless it was deleted."""
    aborted = aborted_transactions(log.batches)
    values: dict[bytes, bytes | None] = {}
    for batch in log.batches:
        is_aborted = any(
            transaction.producer_id == batch.producer_id
            and transaction.first_offset <= batch.base_offset < transaction.last_offset
            for transaction in aborted
        )
        if not (batch.is_control or (batch.attributes & TRANSACTIONAL and is_aborted)):
            records = log.records.get(batch.base_offset, ())
            values |= {record.key: record.value for record in records if record.key is not None}
    return {key: value for key, value in values.items() if value is not None}


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
        survivors = list(surviving(batch, verdict, before, latest, this_round=this_round))
        after = rewritten(batch, verdict, before, survivors, this_round=this_round)
        if after is None:
            del batches[batch.base_offset]
        else:
            batches[batch.base_offset] = after
            records[batch.base_offset] = survivors
    return replace(log, batches=tuple(batches.values()), records=records)


def carry(before: Log, after: Log, producers: Mapping[int, LastRecord]) -> Log:
    """The log after a round, with what its removed markers said where it is still needed."""
    kept = {batch.base_offset: batch for batch in after.batches}
    removed = {batch.base_offset for batch in before.batches} - kept.keys()
    first_segment = after.state.first_segment
    # Of a producer's data, a round may have changed the header too.
    log = [kept.get(batch.base_offset, batch) for batch in before.batches]
    for batch, changed in carried(log, removed, producers, first_segment):
        kept[batch.base_offset] = changed
    return replace(after, batches=tuple(kept.values()))


def retain(log: Log, config: TopicConfig, now_ms: int, high_watermark: int | None = None) -> Log:
    """The log after retention at `now_ms`; without one given, all is below the high watermark."""
    state = log.state
    end = state.log_end_offset
    expiry = expire(
        segments_of(log),
        LogOffsets(state.log_start_offset, end, end if high_watermark is None else high_watermark),
        config,
        now_ms=now_ms,
        max_event_time_ms=-1,
    )
    segments = tuple(segment.start for segment in expiry.kept)
    producers = producers_of(log, config, now_ms)
    kept = remembered(log.batches, producers) | {
        batch.base_offset for batch in log.batches if batch.base_offset >= segments[0].base_offset
    }
    state = state.moved(log_start_offset=expiry.log_start_offset, segments=segments)
    batches = tuple(batch for batch in log.batches if batch.base_offset in kept)
    return truncate(replace(log, batches=batches, state=state), state.log_start_offset)


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
    this_round: Round,
) -> Iterator[Record]:
    """The records of a batch that the round keeps."""
    may_drop = drops_tombstones(batch, this_round)
    for record in records:
        is_kept = batch.is_control or is_retained(
            has_key=record.key is not None,
            is_latest=record.offset >= latest.get(record.key, -1),
            is_tombstone=record.value is None,
            is_past_batch_horizon=may_drop,
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
        hidden=batch.record_count - len(before) if this_round.is_astride(batch) else 0,
        first_offset=survivors[0].offset if survivors else None,
        last_offset=survivors[-1].offset if survivors else None,
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
    fields = BatchFields(
        base_offset=batch.written_base_offset, base_timestamp_ms=batch.base_timestamp_ms
    )
    return len(write_batch(fields, records)) - HEADER_BYTES
