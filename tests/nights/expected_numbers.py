"""Each number that a job reports, counted anew from the tables before and after it.

A job's numbers of a partition must equal these as a whole: a new one needs a meaning here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ebbtide.columns.erased_keys import ERASED_KEY
from ebbtide.iceberg.in_flight import PartitionRound
from ebbtide.kafka.retention import Rule
from ebbtide.records.arrays import TIMESTAMP_HEADER
from ebbtide.records.attributes import DELETE_HORIZON
from ebbtide.settings.config import TopicConfig
from tests.tables.truth import (
    Change,
    Row,
    Truth,
    is_control,
    record_count,
    size_bytes,
)

Numbers = dict[str, Any]


class Totals(NamedTuple):
    """The columns of a row in `runs` that count.

    `rows_removed`: records that left the records table. `files_removed`: its data files that
    Iceberg lists no more. `snapshot_ids`: each snapshot that the topic's tables got, sorted.
    """

    rows_removed: int
    files_removed: int
    bytes_removed: int
    snapshot_ids: list[int]


def totals(change: Change, bytes_removed: int) -> Totals:
    """The totals of a job; what its bytes are differs by job."""
    return Totals(
        len(change.gone()), len(change.files_gone), bytes_removed, sorted(change.new_snapshots)
    )


def of_ingest(change: Change, partition: int, is_missing: Callable[[Row], bool]) -> Numbers:
    """Rows that came, the bytes of their batches, and the segments these lie in.

    `is_missing` tells records of which the event time is not said.
    """
    batches, records = change.added_batches(partition), change.added(partition)
    in_headers = [
        r
        for r in records
        if r["timestamp"] is None and any(h["key"] == TIMESTAMP_HEADER for h in r["headers"])
    ]
    return change.after.offsets_of(partition) | {
        "records": len(records),
        "batches": len(batches),
        "bytes": size_bytes(batches),
        "segments": len({batch["segment"] for batch in batches}),
        "timestamps_in_headers": len(in_headers),
        "event_times_missing": sum(map(is_missing, records)),
        "accepted_gaps": [],
    }


def of_mark(change: Change, partition: int) -> Numbers:
    """Records whose mark is another one now, by the reason that they have, and those that left."""
    reasons = [
        row["tombstone_by"]
        for at, row in change.after.records.items()
        if at[0] == partition and change.before.records[at]["tombstone_by"] != row["tombstone_by"]
    ]
    by = Counter(reason for reason in reasons if reason is not None)
    gone = change.gone(partition)
    return change.after.offsets_of(partition) | {
        "marked": by.total(),
        "by_rule": dict(by),
        "unmarked": reasons.count(None),
        "quarantined": len(gone),
        "refused": sum(row["tombstone_by"] == ERASED_KEY for row in gone),
    }


def of_delete_records(change: Change, partition: int, requested: int) -> Numbers:
    """Records that left, all of them below the log start offset."""
    gone = change.gone(partition)
    start = change.after.states[partition].log_start_offset
    assert all(row["offset"] < start for row in gone)
    return change.after.offsets_of(partition) | {
        "requested_offset": requested,
        "records_removed": len(gone),
        "error_code": 0,
        "error_name": "NONE",
    }


def of_clean(change: Change, partition: int, part: PartitionRound | None) -> Numbers:
    """What headers from the first segment on tell of, and why records and markers left."""
    numbers = change.after.offsets_of(partition) | {"picked": part is not None}
    if part is None:
        assert not change.gone(partition)
        assert _of(change.before.batches, partition) == _of(change.after.batches, partition)
        return numbers
    rules = Counter(_rules(change, partition, part))
    removed, kept = _markers(change, partition, part)
    return numbers | {
        **_headers(change, partition, _visible_after_round(change, partition)),
        "dirty_ratio": _dirty_ratio(change.before, partition, part),
        "superseded": rules["superseded"],
        "aborted": rules["aborted"],
        "keyless": rules["keyless"],
        "tombstones_removed": rules["tombstone"],
        "tombstones_kept": len(_tombstones(change.after, partition, part)),
        "markers_removed": removed,
        "markers_kept": kept,
        "next_horizon_ms": min(_horizons(change.after, partition, part), default=None),
        "cleaned_to": change.after.states[partition].first_dirty_offset,
    }


def _dirty_ratio(before: Truth, partition: int, part: PartitionRound) -> float:
    """Kafka's cleanable ratio by the bytes of whole segments, to four digits."""
    bases = [segment.base_offset for segment in before.states[partition].segments]
    bounds = pairwise([*bases, before.states[partition].log_end_offset])
    sizes = {base: size_bytes(before.headers(partition, base, end)) for base, end in bounds}
    first_dirty, bound = part.first_dirty_offset, part.first_uncleanable_offset
    holding = max((base for base in bases if base <= first_dirty), default=bases[0])
    clean = sum(sizes[base] for base in bases if base < first_dirty)
    dirty = sum(sizes[base] for base in bases if holding <= base < bound)
    if bound <= first_dirty:
        dirty = 0
    return round(dirty / (clean + dirty), 4) if clean + dirty else 0.0


def of_expire(change: Change, partition: int, config: TopicConfig, now_ms: int) -> Numbers:
    """Whole segments as their headers count them, and single records as the table holds them."""
    before, after = change.before, change.after
    gone, segments = change.gone(partition), change.segments_gone(partition)
    batches = [b for base, end, _ in segments for b in before.headers(partition, base, end)]
    log_start = before.states[partition].log_start_offset
    start = after.states[partition].log_start_offset
    single = [row for row in gone if row["offset"] >= start]
    return after.offsets_of(partition) | {
        "segments_expired": len(segments),
        "records_in_segments": _visible(batches, log_start),
        "newest_record_ms": max((_newest_ms(before, partition, s) for s in segments), default=None),
        "bytes_removed": size_bytes(batches),
        **_headers(change, partition, _visible(after.retained(partition), log_start)),
        "by_rule": _by_rule(change, partition, config, now_ms),
        "records_expired": len(single),
        "record_bytes_expired": size_bytes(single),
        "records_removed": len(gone),
    }


def of_replicate(primary: Truth, replica: Truth, partition: int, name: str) -> Numbers:
    """Where the log of both ends once the replica has all of it."""
    starts = [truth.states[partition].log_start_offset for truth in (primary, replica)]
    return primary.offsets_of(partition) | {
        "low_watermark": min(starts),
        "replica_end_offsets": {name: replica.states[partition].log_end_offset},
    }


def of_copies(primary: Truth, copied: Change) -> Numbers:
    """Rows that a replica got and lost; emptied: its log ended before the primary begins."""
    ends = {p: state.log_end_offset for p, state in copied.before.states.items()}
    starts = {p: state.log_start_offset for p, state in primary.states.items()}
    return {
        "emptied": sorted(p for p, end in ends.items() if end < starts[p]),
        "records": sum(len(copied.added(p)) for p in starts),
        "batches": sum(len(copied.added_batches(p)) for p in starts),
        "records_removed": len(copied.gone()),
    }


def delete_ratio(change: Change, reported: Mapping[int, Mapping[str, Any]]) -> float:
    """Bytes that limits and single records take of what the headers told of before."""
    below_start = sum(
        size_bytes(change.before.headers(p, base, end))
        for p, numbers in reported.items()
        for base, end, _ in change.segments_gone(p)[: numbers["by_rule"][Rule.LOG_START_OFFSET]]
    )
    held = sum(size_bytes(change.before.retained(p)) for p in reported) - below_start
    went = sum(n["bytes_removed"] + n["record_bytes_expired"] for n in reported.values())
    return round(min(1.0, (went - below_start) / held), 4) if held else 0.0


def _headers(change: Change, partition: int, records_after: int) -> Numbers:
    before, after = change.before.retained(partition), change.after.retained(partition)
    return {
        "records_before": _visible(before, change.before.states[partition].log_start_offset),
        "records_after": records_after,
        "bytes_before": size_bytes(before),
        "bytes_after": size_bytes(after),
    }


def _visible_after_round(change: Change, partition: int) -> int:
    """What the headers told of before, less the records that left the table."""
    before, start = change.before, change.before.states[partition].log_start_offset
    return _visible(before.retained(partition), start) - len(change.gone(partition))


def _visible(batches: Sequence[Row], log_start_offset: int) -> int:
    """The records of data at or above the log start, as far as headers tell."""
    left = (max(0, batch["last_offset"] + 1 - log_start_offset) for batch in batches)
    return sum(min(record_count([batch]), most) for batch, most in zip(batches, left, strict=True))


def _of(rows: Mapping[tuple[int, int], Row], partition: int) -> dict[int, Row]:
    return {offset: row for (p, offset), row in rows.items() if p == partition}


def _rules(change: Change, partition: int, part: PartitionRound) -> Iterator[str]:
    """Why each record had to leave, in the order in which Kafka asks."""
    aborted = change.before.aborted()
    first, end = part.dirty
    latest: dict[bytes, int] = {}  # of each key in the dirty part
    for offset, row in _of(change.before.records, partition).items():
        if first <= offset < end and (partition, row["batch"]) not in aborted:
            latest[row["key"]] = max(offset, latest.get(row["key"], -1))
    for row in change.gone(partition):
        if (partition, row["batch"]) in aborted:
            yield "aborted"
        elif row["key"] is None:
            yield "keyless"
        elif row["offset"] < latest.get(row["key"], -1):
            yield "superseded"
        else:
            assert row["is_tombstone"], row
            yield "tombstone"


def _markers(change: Change, partition: int, part: PartitionRound) -> tuple[int, int]:
    """How many markers of the round left and stayed; a header alone is a marker no more."""
    first, end = part.first_segment_offset, part.first_uncleanable_offset
    held = [
        b
        for b in change.before.headers(partition, first, end)
        if is_control(b) and b["record_count"]
    ]
    rows = (change.after.batches.get((partition, marker["base_offset"])) for marker in held)
    kept = sum(1 for row in rows if row is not None and row["record_count"])
    return len(held) - kept, kept


def _tombstones(truth: Truth, partition: int, part: PartitionRound) -> list[Row]:
    """The tombstones in what the round covers."""
    return [
        row
        for offset, row in _of(truth.records, partition).items()
        if row["is_tombstone"] and part.log_start_offset <= offset < part.first_uncleanable_offset
    ]


def _horizons(truth: Truth, partition: int, part: PartitionRound) -> Iterator[int]:
    """The horizons of batches that a tombstone or a marker is left in."""
    waiting = {row["batch"] for row in _tombstones(truth, partition, part)}
    first, end = part.first_segment_offset, part.first_uncleanable_offset
    for batch in truth.headers(partition, first, end):
        is_hidden = batch["last_offset"] < part.log_start_offset
        is_marker = is_control(batch) and batch["record_count"] and not is_hidden
        has_horizon = batch["attributes"] & DELETE_HORIZON
        if has_horizon and (is_marker or batch["base_offset"] in waiting):
            yield batch["base_timestamp_ms"]


def _newest_ms(before: Truth, partition: int, segment: tuple[int, int, int]) -> int:
    """The largest timestamp of the segment's batches, else when its file was last written."""
    base, end, modified_ms = segment
    times = (b["max_timestamp_ms"] for b in before.headers(partition, base, end))
    newest_ms = max(times, default=-1)
    return modified_ms if newest_ms < 0 else newest_ms


def _by_rule(change: Change, partition: int, config: TopicConfig, now_ms: int) -> dict[str, int]:
    """How many segments went by each rule: each by the first that holds, once one is through."""
    by = {str(rule): 0 for rule in Rule}
    left = size_bytes(change.before.retained(partition))
    rules = list(Rule)
    for segment in change.segments_gone(partition):
        left -= size_bytes(change.before.headers(partition, *segment[:2]))
        while not _holds(rules[0], change, partition, segment, (config, now_ms, left)):
            rules.pop(0)
        by[str(rules[0])] += 1
    return by


def _holds(
    rule: Rule,
    change: Change,
    partition: int,
    segment: tuple[int, int, int],
    by: tuple[TopicConfig, int, int],
) -> bool:
    """Whether a rule takes the segment, `left` bytes after which stay."""
    config, now_ms, left = by
    base, end, _ = segment
    state, batches = change.before.states[partition], change.before.headers(partition, base, end)
    event_limit_ms, limit_ms = config.retention_max_eventtime_ms, config.retention_ms
    has_event_limit = event_limit_ms is not None and event_limit_ms >= 0
    if rule is Rule.LOG_START_OFFSET:
        return end <= state.log_start_offset and base != state.active_segment
    if rule is Rule.SIZE:
        return config.retention_bytes is not None and 0 <= config.retention_bytes <= left
    if rule is Rule.TIME:
        appended_ms = max((b["append_time_ms"] for b in batches), default=-1)
        written_ms = _newest_ms(change.before, partition, segment)
        newest_ms = appended_ms if has_event_limit else written_ms
        return limit_ms is not None and 0 <= limit_ms < now_ms - newest_ms
    assert rule is Rule.EVENT_TIME, f"no rule removes the segment {segment}"
    newest_ms = max((b["max_event_time_ms"] for b in batches), default=-1)
    assert state.max_event_time_ms is not None
    assert event_limit_ms is not None
    is_behind = newest_ms >= 0 and state.max_event_time_ms - newest_ms > event_limit_ms
    return is_behind or not record_count(batches)


class DiskDates(NamedTuple):
    """When the records table last changed, and from when on what it deleted is off the disk."""

    changed_ms: int
    off_from_ms: int | None


def of_erased_keys(
    change: Change, partition: int, tombstones: Mapping[bytes, int], dates: DiskDates
) -> Numbers:
    """Records below the keys' `tombstones`, their offsets by key."""
    before, after = change.before, change.after
    held = _below(before, partition, tombstones)
    left = _below(after, partition, tombstones)
    per_key = Counter(row["key"] for row in left)
    horizons = [
        batch["base_timestamp_ms"]
        for offset in tombstones.values()
        if (row := after.records.get((partition, offset))) is not None
        and (batch := after.batches[partition, row["batch"]])["attributes"] & DELETE_HORIZON
    ]
    is_out = bool(tombstones) and not per_key
    return after.offsets_of(partition) | {
        "keys": len(tombstones),
        "found": len(held),
        "tombstones": sum((partition, at) not in before.records for at in tombstones.values()),
        "superseded": len(held) - len(left),
        "remaining": len(left),
        "last_horizon_ms": max(horizons, default=None),
        "out_of_table_ms": dates.changed_ms if is_out else None,
        "off_disk_from_ms": dates.off_from_ms if is_out else None,
    }


def _below(truth: Truth, partition: int, tombstones: Mapping[bytes, int]) -> list[Row]:
    return [
        row
        for offset, row in _of(truth.records, partition).items()
        if row["key"] in tombstones and offset < tombstones[row["key"]]
    ]
