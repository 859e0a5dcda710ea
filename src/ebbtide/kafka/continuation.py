"""Check whether a source continues the log in the table.

All checks use batch headers only. Offsets must always ascend, and a gap needs a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ebbtide.errors import ForeignLogError, OffsetGapError
from ebbtide.records.attributes import DELETE_HORIZON, NO_LEADER_EPOCH


class SourceBatch(NamedTuple):
    """The header fields that identify a record batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int | None  # None: read live, so the header is not known and not compared
    attributes: int
    record_count: int
    crc: int | None  # None once a round has rewritten the batch


class TableEnd(NamedTuple):
    """The end of a partition in the table; `last_batch` is None if it has no batch."""

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
    """Raise ForeignLogError unless `source` is the log whose beginning the table has.

    If `source_end` is given, `source` needs only the batches that overlap the table's last one. A
    log may end after its last batch, if cleaning removed the batches that followed.
    """
    if source_end is None:
        source_end = source[-1].last_offset + 1 if source else source_start
    if source_end < held.log_end_offset:
        raise ForeignLogError(
            f"expected {where} to reach offset {held.log_end_offset}, the table's log end offset, "
            f"found its end at {source_end}: the source was truncated, or is another log. Ingest "
            "it under another cluster name, or drop the topic's tables and ingest it again"
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
            f"expected batch {_described(last)}, the table's last, in {where}, found "
            f"{source_batch}: the source was truncated and written again, or is another log. "
            "Ingest it under another cluster name, or drop the topic's tables and ingest it again"
        )


def check_boundary(where: str, log_end_offset: int, astride: Sequence[Mapping[str, Any]]) -> None:
    """Raise ForeignLogError if a batch of the source straddles the table's log end offset."""
    for batch in astride:
        raise ForeignLogError(
            f"expected a batch of {where} to begin at offset {log_end_offset}, the table's log end "
            f"offset, found batch [{batch['base_offset']}, {batch['last_offset']}]: the source is "
            "another log. Ingest it under another cluster name, or drop the topic's tables and "
            "ingest it again"
        )


def check_not_appended(where: str, first_appended_offset: int, source_end: int) -> None:
    """Raise ForeignLogError if a source has offsets that were appended to the table directly."""
    if source_end > first_appended_offset:
        raise ForeignLogError(
            f"expected {where} to end at or before offset {first_appended_offset}, where direct "
            f"appends to the table begin, found its end at {source_end}: these offsets would have "
            "two records each. Ingest it under another cluster name"
        )


def check_not_remote(where: str, expected_offset: int, start: int, *, is_accepted: bool) -> None:
    """Raise OffsetGapError if the local files of a tiered topic begin after `expected_offset`."""
    if start > expected_offset and not is_accepted:
        raise OffsetGapError(
            f"expected offset {expected_offset} in {where}, found that its files begin at {start}: "
            f"the topic has remote.storage.enable, so offsets {expected_offset} to {start - 1} are "
            "in the remote tier, unless they were removed. Run ingest_topic, which reads them from "
            "the brokers. To continue without them, run once with --accept-gap"
        )


def check_not_lost(where: str, log_end_offset: int, start: int, *, is_accepted: bool) -> None:
    """Raise OffsetGapError if the source removed offsets before they were ingested."""
    if start > log_end_offset and not is_accepted:
        raise OffsetGapError(
            f"expected offset {log_end_offset}, the table's log end offset, in {where}, found its "
            f"start at {start}: {start - log_end_offset} offsets were removed there before they "
            "were ingested, and are lost. To continue without them, run once with --accept-gap"
        )


def _is_astride(held: SourceBatch, source: SourceBatch) -> bool:
    """Return whether two batches overlap.

    Cleaning cannot cause that: it retains a v2 batch's bounds.
    """
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
    """Raise OffsetGapError if offsets are missing, unless the policy or the user allows a gap."""
    if found_offset > expected_offset and not is_allowed:
        raise OffsetGapError(
            f"expected offset {expected_offset} in {where}, found {found_offset}: "
            f"{found_offset - expected_offset} offsets are missing, and cleanup.policy has no "
            "compact. If the topic is compacted, set kafka.cleanup.policy: with --set of this job "
            "for a new topic, else with configure_topic. To accept the gap, run once with "
            "--accept-gap"
        )
