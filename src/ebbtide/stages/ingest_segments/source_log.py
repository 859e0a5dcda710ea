"""Decide how much of one partition's source log is taken, and what its state is afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.columns.slices import slices_by_value, sorted_by
from ebbtide.errors import EbbtideError, SourceError, class_named
from ebbtide.log.batch_header import Batch
from ebbtide.log.continuation import (
    SourceBatch,
    TableEnd,
    check_boundary,
    check_continuation,
    check_no_gap,
    check_not_appended,
    check_not_lost,
    check_not_remote,
)
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.log.state.topic_state import NEVER, PartitionState
from ebbtide.log.transactions import OpenTransactions
from ebbtide.records.attributes import CONTROL, TRANSACTIONAL
from ebbtide.records.files.log_directory import PartitionDirectory, SegmentFile
from ebbtide.stages.ingest_segments.segment_source import WALK_SCHEMA
from ebbtide.stores.uris import file_name


class HeldLog(NamedTuple):
    """What the tables hold of one partition: its state, None if it is new, and its last batch."""

    state: PartitionState | None = None
    last_batch: Mapping[str, Any] | None = None

    @property
    def log_end_offset(self) -> int:
        """One past all that the state says is in the tables."""
        return 0 if self.state is None else self.state.log_end_offset


class GapRule(NamedTuple):
    """The rule for missing offsets: those that compaction explains are allowed, or all."""

    is_compacted: bool
    accepts_all: bool
    is_tiered: bool = False  # local files are a part of the log: remote.storage.enable


class Walked(NamedTuple):
    """One partition as read, up to the first bad file."""

    directory: PartitionDirectory
    first_read: int  # base offset of the first file that was read; those before it were not
    batches: pa.Table  # WALK_SCHEMA, in offset order
    first_bad: int | None
    error: EbbtideError | None
    torn: list[str]

    @property
    def where(self) -> str:
        """The partition, for a message."""
        return f"{self.directory.topic}-{self.directory.partition}"

    @property
    def start(self) -> int:
        """The source's log start offset."""
        first = next((s.base_offset for s in self.directory.segments), 0)
        return max(first, self.directory.log_start_offset or 0)

    @property
    def segments(self) -> list[SegmentFile]:
        """The segments up to the bad one: at its base offset, the good part ends."""
        return [s for s in self.directory.segments if not self._is_behind(s.base_offset)]

    @property
    def behind(self) -> int:
        """The number of segments behind the bad one."""
        return len(self.directory.segments) - len(self.segments)

    @property
    def end(self) -> int:
        """The end of the good part; where a segment begins if batches before it were cleaned."""
        lasts = [offset + 1 for offset in self.batches.column("last_offset")[-1:].to_pylist()]
        return int(max([self.start, *(s.base_offset for s in self.segments), *lasts]))

    def _is_behind(self, base_offset: int) -> bool:
        return self.first_bad is not None and base_offset > self.first_bad


@dataclass(slots=True)
class SourceLog:
    """The batches of one partition at and above its state's log end offset, all to be taken."""

    held: HeldLog
    log_start_offset: int
    visible_from: int  # of batches, records below are not taken
    first_offset: int  # what is taken begins here
    log_end_offset: int
    batches: pa.Table  # WALK_SCHEMA
    segments: tuple[SegmentStart, ...] = ()  # the source's
    skipped: list[str] = field(default_factory=list)
    errors: list[EbbtideError] = field(default_factory=list)
    accepted_gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def visible(self) -> pa.Table:
        """The batches with records for the records table."""
        is_data = pc.equal(pc.bit_wise_and(self.batches.column("attributes"), CONTROL), 0)
        is_visible = pc.greater_equal(self.batches.column("last_offset"), self.visible_from)
        has_records = pc.greater(self.batches.column("record_count"), 0)
        return self.batches.filter(pc.and_(pc.and_(is_data, is_visible), has_records))

    @property
    def records(self) -> int:
        """Records of the visible batches, as the headers count them."""
        return int(pc.sum(self.visible.column("record_count")).as_py() or 0)

    @property
    def bytes(self) -> int:
        """Bytes of the batches, as the log holds them."""
        return int(pc.sum(self.batches.column("size_bytes")).as_py() or 0)

    @property
    def is_transactional(self) -> npt.NDArray[np.bool_]:
        """Whether each batch belongs to a transaction."""
        attributes = self.batches.column("attributes").to_numpy()
        return np.asarray(attributes & TRANSACTIONAL != 0, dtype=np.bool_)

    @property
    def has_moved(self) -> bool:
        """Whether something is taken, and nothing was refused."""
        state = self.held.state
        return not self.errors and (state is None or self.log_end_offset > state.log_end_offset)

    def without_news(self) -> SourceLog:
        """Return the log of which nothing is taken."""
        held = self.held.log_end_offset
        return replace(self, batches=self.batches.slice(0, 0), segments=(), log_end_offset=held)

    def by_file(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the visible batches of each file."""
        yield from slices_by_value(self.visible, "path")

    def state_after(
        self, state: PartitionState | None, max_event_time_ms: int
    ) -> PartitionState | None:
        """Return the partition's state once this log is in the tables; None if there is none."""
        if not self.segments:
            return state
        if state is None:
            return PartitionState(
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
                first_dirty_offset=self.log_start_offset,
                first_unmarked_offset=self.log_start_offset,
                segments=self.segments_after(state),
                max_event_time_ms=max_event_time_ms,
            )
        return state.moved(
            log_end_offset=self.log_end_offset,
            segments=self.segments_after(state),
            max_event_time_ms=max(state.max_event_time_ms, max_event_time_ms),
        )

    def segments_after(self, state: PartitionState | None) -> tuple[SegmentStart, ...]:
        """Return the state's segments, with the active one as the source has it, and newer ones."""
        if state is None:
            return self.segments
        base, modified_ms = state.segments[-1]
        for found_base, found_ms in self.segments:
            # Retention may have rolled the active segment here; the source's then begins earlier.
            if found_base == base or (found_base < base and self.batches.num_rows):
                modified_ms = found_ms
        # Another replica rolls segments at other offsets: only those beyond the rows held are new.
        first = max(base + 1, self.first_offset)
        added = [segment for segment in self.segments if segment.base_offset >= first]
        return (*state.segments[:-1], SegmentStart(base, modified_ms), *added)


def by_partition(walked: pa.Table) -> dict[int, pa.Table]:
    """Split the walked rows by partition, in offset order."""
    in_order = sorted_by(walked, ("partition", "segment", "base_offset"))
    return dict(slices_by_value(in_order, "partition"))


def refused_whole(directory: PartitionDirectory) -> Walked:
    """Return a partition whose directory cannot be taken, of which nothing is read."""
    assert directory.error is not None
    return Walked(directory, 0, WALK_SCHEMA.empty_table(), -1, directory.error, [])


def read_back(
    directory: PartitionDirectory,
    first_read: int,
    rows: pa.Table,
    refused: Mapping[str, SourceError],
) -> Walked:
    """Return what was walked of one partition; `refused` maps more bad files to errors."""
    bad = {
        row["segment"]: _error_of(row)
        for row in rows.filter(pc.is_valid(rows.column("error"))).to_pylist()
    }
    bad |= {s.base_offset: refused[s.path] for s in directory.segments if s.path in refused}
    good = rows
    if rows.column("base_offset").null_count:
        good = rows.filter(pc.is_valid(rows.column("base_offset")))
    bad |= _overlapping(directory, good)
    first_bad = min(bad, default=None)
    if first_bad is not None:
        good = good.filter(pc.less(good.column("segment"), first_bad))
    return Walked(
        directory,
        first_read,
        good,
        first_bad,
        None if first_bad is None else bad[first_bad],
        rows.column("torn").drop_null().to_pylist(),
    )


def _overlapping(directory: PartitionDirectory, rows: pa.Table) -> dict[int, SourceError]:
    """Return the first file that begins at or below the last offset of the one before it.

    A copy that is brought up to date without deletion keeps such a file after the broker's
    cleaner has merged segments.
    """
    bases, lasts = (rows.column(n).to_numpy() for n in ("base_offset", "last_offset"))
    below = np.flatnonzero(bases[1:] <= lasts[:-1])
    if not len(below):
        return {}
    before, row = rows.slice(int(below[0]), 2).to_pylist()
    return {
        row["segment"]: SourceError(
            f"{row['path']}: expected offsets above {before['last_offset']}, where "
            f"{file_name(before['path'])} ends, found {row['base_offset']}: the directory of "
            f"{directory.topic}-{directory.partition} has files of two times; copy it again, and "
            "delete from the copy what is not there any more",
            row["path"],
        )
    }


def _error_of(row: Mapping[str, Any]) -> SourceError:
    """Rebuild the error of a file that could not be walked, from its row of WALK_SCHEMA."""
    kind = class_named(row["error_class"])
    assert kind is not None
    assert issubclass(kind, SourceError)
    return kind(row["error"], row["path"])


def take_log(walked: Walked, held: HeldLog, rule: GapRule) -> SourceLog:
    """Take one partition's log up to its high watermark, or to the first bad file."""
    log = _nothing(walked, held)
    try:
        _check_continues(walked, held, rule)
        new = _below_high_watermark(_after(walked, log), walked, log)
        reached = _reached(walked, new, log)
        log.accepted_gaps = _check_gaps(walked, new, log, reached=reached, rule=rule)
    except EbbtideError as error:
        log.errors.append(error)
        return log
    if held.state is not None or new.num_rows or walked.error is None:
        log.log_end_offset = max(log.log_end_offset, reached)
        log.segments = _begun(walked, held.state, log.log_end_offset)
    if new.num_rows:
        log.batches = new
        log.batches = _with_segments(new, log.segments_after(held.state))
    _report_skipped(walked, log)
    return log


def _nothing(walked: Walked, held: HeldLog) -> SourceLog:
    """Return the source's log before anything of it is taken."""
    state = held.state
    if state is None:
        start = walked.start
        first = next((s.base_offset for s in walked.directory.segments), start)
    else:
        start, first = state.log_start_offset, state.log_end_offset
    return SourceLog(
        held,
        log_start_offset=start,
        visible_from=max(start, walked.start),
        first_offset=first,
        log_end_offset=max(first, start),
        batches=walked.batches.slice(0, 0),
        errors=[walked.error] if walked.error else [],
    )


def _check_continues(walked: Walked, held: HeldLog, rule: GapRule) -> None:
    """Compare the last batch held with what the source has in its place."""
    state = held.state
    if state is not None and state.first_appended_offset != NEVER:
        check_not_appended(walked.where, state.first_appended_offset, walked.end)
        return
    is_unread = walked.first_bad is not None and not walked.batches.num_rows
    if is_unread or not held.log_end_offset:
        return
    rows, last = walked.batches, None
    if held.last_batch is not None:
        last = SourceBatch(**held.last_batch)
        begins_before = pc.less_equal(rows.column("base_offset"), last.last_offset)
        ends_after = pc.greater_equal(rows.column("last_offset"), last.base_offset)
        rows = rows.filter(pc.and_(begins_before, ends_after))
    check_continuation(
        walked.where,
        TableEnd(held.log_end_offset, last),
        [SourceBatch(**row) for row in rows.select(SourceBatch._fields).to_pylist()],
        source_start=max(walked.start, walked.first_read),
        source_end=walked.end,
        is_compacted=rule.is_compacted,
    )


def _after(walked: Walked, log: SourceLog) -> pa.Table:
    """Return the batches from the first offset on that the source still has."""
    first, rows = log.first_offset, walked.batches
    bases, lasts = rows.column("base_offset"), rows.column("last_offset")
    is_after = pc.greater_equal(bases, first)
    if log.held.state is not None:
        astride = rows.filter(pc.and_(pc.less(bases, first), pc.greater_equal(lasts, first)))
        check_boundary(walked.where, first, astride.to_pylist())
        is_after = pc.and_(is_after, pc.greater_equal(lasts, max(walked.start, first)))
    return rows.filter(is_after)


def _below_high_watermark(batches: pa.Table, walked: Walked, log: SourceLog) -> pa.Table:
    watermark = walked.directory.high_watermark
    if watermark is None:
        return batches
    below = batches.filter(pc.less(batches.column("last_offset"), watermark))
    left = batches.num_rows - below.num_rows
    if left:
        log.skipped.append(f"{left} batches at or above the high watermark {watermark}")
    return below


def _reached(walked: Walked, new: pa.Table, log: SourceLog) -> int:
    """Return where the log ends with `new`; a segment's base counts, as cleaning leaves gaps."""
    watermark = walked.directory.high_watermark
    bases = [s.base_offset for s in walked.segments]
    reached = [base for base in bases if watermark is None or base <= watermark]
    lasts = [offset + 1 for offset in new.column("last_offset")[-1:].to_pylist()]
    return int(max([log.first_offset, *reached, *lasts]))


def _check_gaps(
    walked: Walked, new: pa.Table, log: SourceLog, *, reached: int, rule: GapRule
) -> list[tuple[int, int]]:
    """Return the gaps up to where `new` reaches that only the user's word explains."""
    first, accepted = log.first_offset, []
    bases = new.column("base_offset").to_numpy()
    if log.held.state is None and rule.is_tiered and walked.directory.segments:
        start = walked.directory.log_start_offset or 0
        check_not_remote(walked.where, start, first, is_accepted=rule.accepts_all)
        accepted += [(start, first)] if start < first else []
    if log.held.state is not None and walked.start > first:
        check = check_not_remote if rule.is_tiered else check_not_lost
        check(walked.where, first, walked.start, is_accepted=rule.accepts_all)
        accepted.append((first, walked.start))
        first = min([walked.start, *bases[:1].tolist()])
    begins = np.concatenate([[first], new.column("last_offset").to_numpy() + 1])
    ends = np.concatenate([bases, [max(reached, int(begins[-1]))]])
    if not rule.is_compacted:
        for i in np.flatnonzero(ends > begins):
            gap = (int(begins[i]), int(ends[i]))
            check_no_gap(walked.where, *gap, is_allowed=rule.accepts_all)
            accepted.append(gap)
    return accepted


def _begun(
    walked: Walked, state: PartitionState | None, log_end_offset: int
) -> tuple[SegmentStart, ...]:
    """Return the source's segments up to the log end offset; a bad file's time is not believed."""
    held_until = -1 if state is None else state.active_segment
    return tuple(
        SegmentStart(segment.base_offset, segment.modified_ms)
        for segment in walked.segments
        if segment.base_offset <= log_end_offset
        and (segment.base_offset != walked.first_bad or segment.base_offset > held_until)
    )


def _with_segments(batches: pa.Table, segments: Sequence[SegmentStart]) -> pa.Table:
    """Put each batch in the state's segment; the source may have merged segments that it has."""
    bases = np.array([base for base, _ in segments])
    places = np.searchsorted(bases, batches.column("base_offset").to_numpy(), side="right") - 1
    column = pa.array(bases[np.maximum(places, 0)], pa.int64())
    return batches.set_column(batches.schema.get_field_index("segment"), "segment", column)


def first_offsets(log: SourceLog, undecided: Mapping[int, int]) -> pa.Array:
    """Return the first offset of the transaction each marker ends; null for all other batches.

    A marker that ends a transaction without data is null too. `undecided` holds the transactions
    that the batches table leaves open.
    """
    firsts: list[int | None] = [None] * log.batches.num_rows
    transactions = OpenTransactions(dict(undecided))
    rows = pa.array(np.flatnonzero(log.is_transactional), pa.int64())
    names = ["base_offset", "last_offset", "attributes", "producer_id"]
    names += ["record_count", "control_type"]  # a marker emptied at the source decides nothing
    taken = log.batches.select(names).take(rows).to_pylist()
    for i, row in zip(rows.to_pylist(), taken, strict=True):
        firsts[i] = transactions.append(Batch(**row))
    return pa.array(firsts, pa.int64())


def _report_skipped(walked: Walked, log: SourceLog) -> None:
    if walked.behind:
        log.skipped.append(f"{walked.behind} segments behind a file that cannot be read")
    log.skipped += [f"{text}; left for the next time" for text in walked.torn]
    log.skipped += walked.directory.passed_over
    bases = [segment.base_offset for segment in walked.directory.segments]
    start = walked.directory.log_start_offset
    if log.held.state is None and bases and start is not None and start < bases[0]:
        log.skipped.append(
            f"offsets {start} to {bases[0] - 1}, where the checkpoint says that the log starts and "
            "no file does: removed since, or in the remote tier, which ingest_topic reads"
        )
    if not log.batches.num_rows:
        if not log.errors:
            log.skipped.append(f"{len(bases)} segments hold nothing new")
    elif before := sum(base < walked.first_read for base in bases):
        log.skipped.append(f"{before} segments that the tables hold")
