"""Check whether a source continues the log that a table holds, and how far it may be taken.

All checks are on batch headers. Offsets must always ascend, and a gap needs a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ebbtide.errors import ForeignLogError, OffsetGapError
from ebbtide.records.attributes import DELETE_HORIZON, NO_LEADER_EPOCH


class SourceBatch(NamedTuple):
    """The header fields that tell one record batch from another."""

    base_offset: int
    last_offset: int
    leader_epoch: int | None  # None where it came live: no header is known, so none compares
    attributes: int
    record_count: int
    crc: int | None  # None once a round has rewritten the batch


class TableEnd(NamedTuple):
    """The end of the table's copy of a partition; without a batch where none is left."""

    log_end_offset: int
    last_batch: SourceBatch | None


def check_continuation(
    where: str,
    held: TableEnd,
    source: Sequence[SourceBatch],
    *,
    source_start: int,
    is_compacted: bool,
    source_end: int | None = None,
) -> None:
    """Raise ForeignLogError unless `source` is the log whose first part the table holds.

    `source` needs to hold only the batches that overlap the last one held, if `source_end` is
    given; a log may end after its last batch, where cleaning removed those that followed.
    """
    if source_end is None:
        source_end = source[-1].last_offset + 1 if source else source_start
    if source_end < held.log_end_offset:
        raise ForeignLogError(
            f"expected {where} to reach offset {held.log_end_offset}, which the table holds, found "
            f"its end at {source_end}: the source was truncated, or is another log; ingest it "
            "under another cluster name, or drop the table to begin anew"
        )
    last = held.last_batch
    if last is None or last.leader_epoch is None or last.last_offset < source_start:
        return
    same = next((batch for batch in source if batch.base_offset == last.base_offset), None)
    other = same or next((batch for batch in source if _is_astride(last, batch)), None)
    if other is None and is_compacted:
        return  # the source's own cleaner may have removed it
    if other is None or not _is_same(last, other, is_compacted=is_compacted):
        source_batch = "none there" if other is None else _described(other)
        raise ForeignLogError(
            f"expected {where} to hold the batch {_described(last)}, the last that the table "
            f"holds, found {source_batch}: the source was truncated and written anew, or is "
            "another log; ingest it under another cluster name, or drop the table to begin anew"
        )


def check_boundary(where: str, log_end_offset: int, astride: Sequence[Mapping[str, Any]]) -> None:
    """Raise ForeignLogError where a batch of the source lies on both sides of the held end."""
    for batch in astride:
        raise ForeignLogError(
            f"expected a batch of {where} to begin at offset {log_end_offset}, where the table "
            f"ends, found [{batch['base_offset']}, {batch['last_offset']}] across it: the source "
            "is another log; ingest it under another cluster name, or drop the table to begin anew"
        )


def check_not_appended(where: str, first_appended_offset: int, source_end: int) -> None:
    """Raise ForeignLogError where a source has offsets that records were given to directly."""
    if source_end > first_appended_offset:
        raise ForeignLogError(
            f"expected {where} to end at or before offset {first_appended_offset}, from which on "
            f"records were appended to the table directly, found that it ends at {source_end}: "
            "both would hold these offsets; ingest it under another cluster name"
        )


def check_not_remote(where: str, expected_offset: int, start: int, *, is_accepted: bool) -> None:
    """Raise OffsetGapError if the local files of a tiered topic begin after `expected_offset`."""
    if start > expected_offset and not is_accepted:
        raise OffsetGapError(
            f"expected {where} to hold offset {expected_offset}, found that its files begin at "
            f"{start}: its topic has remote.storage.enable, so offsets {expected_offset} to "
            f"{start - 1} are in the remote tier, if they are not removed; take the topic by "
            "ingest_topic, which reads them from the brokers, or, to go on without them, run once "
            "with --accept-gap"
        )


def check_not_lost(where: str, log_end_offset: int, start: int, *, is_accepted: bool) -> None:
    """Raise OffsetGapError where the source removed offsets that were not ingested yet."""
    if start > log_end_offset and not is_accepted:
        raise OffsetGapError(
            f"expected {where} to hold offset {log_end_offset}, where the table ends, found that "
            f"it starts at {start}: {start - log_end_offset} offsets were removed there before "
            "they were ingested, and are lost; to go on without them, run once with --accept-gap"
        )


def _is_astride(held: SourceBatch, source: SourceBatch) -> bool:
    """Return whether both share offsets. Cleaning cannot cause it: it keeps a v2 batch's bounds."""
    is_v2 = source.leader_epoch != NO_LEADER_EPOCH
    is_apart = source.last_offset < held.base_offset or held.last_offset < source.base_offset
    return is_v2 and not is_apart


def _is_same(held: SourceBatch, source: SourceBatch, *, is_compacted: bool) -> bool:
    if held.crc is None and source.leader_epoch == held.leader_epoch == NO_LEADER_EPOCH:
        # A round that converts magic 0 or 1 ends the batch with its last record.
        source = source._replace(last_offset=held.last_offset)
    bounds = (held.base_offset, held.last_offset, held.leader_epoch)
    if bounds != (source.base_offset, source.last_offset, source.leader_epoch):
        return False
    has_changed = (
        source.record_count != held.record_count
        or (source.attributes ^ held.attributes) & DELETE_HORIZON
    )
    is_rewritten = held.crc is None or (is_compacted and has_changed)
    return bool(is_rewritten) or held.crc == source.crc


def _described(batch: SourceBatch) -> str:
    crc = "rewritten" if batch.crc is None else f"CRC {batch.crc:#010x}"
    return f"[{batch.base_offset}, {batch.last_offset}] of leader epoch {batch.leader_epoch}, {crc}"


def check_no_gap(where: str, expected_offset: int, found_offset: int, *, is_allowed: bool) -> None:
    """Raise OffsetGapError for missing offsets that neither the policy nor the user explains."""
    if found_offset > expected_offset and not is_allowed:
        raise OffsetGapError(
            f"expected offset {expected_offset} in {where}, found {found_offset}: "
            f"{found_offset - expected_offset} offsets are missing, and cleanup.policy does not "
            "hold compact; if the topic is compacted, set kafka.cleanup.policy, for a new topic by "
            "--set of this job and else with configure_topic; or run once with --accept-gap"
        )
