"""Read segment files in parallel with Spark: check every batch header, then read the records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heapreplace
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from ebbtide.columns.headers import slices_by_value, sorted_by
from ebbtide.columns.live_records import INGESTED_SCHEMA
from ebbtide.errors import (
    CorruptSegmentError,
    EbbtideError,
    SourceError,
    UnavailableError,
    class_named,
)
from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.continuation import (
    SourceBatch,
    TableEnd,
    check_boundary,
    check_continuation,
    check_no_gap,
    check_not_appended,
    check_not_lost,
    check_not_remote,
)
from ebbtide.kafka.transactions import OpenTransactions
from ebbtide.records.attributes import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from ebbtide.records.batch import BATCH_SCHEMA
from ebbtide.records.log_directory import PartitionDirectory, SegmentFile
from ebbtide.records.segment_reader import (
    EVERY_BATCH,
    BatchLimits,
    SegmentWalk,
    WantedBatches,
    read_records,
    require_whole,
    walk_segment,
)
from ebbtide.spark.tasks import map_segments, told_as_text
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import NEVER, PartitionState
from ebbtide.stores.store import Store, file_name

log = logging.getLogger(__name__)

MIB = 1024 * 1024
# A Spark task costs at least 0.1 s, so smaller ones do not pay; a retry of a larger one is costly.
LEAST_TASK_BYTES = 1 * MIB
MOST_TASK_BYTES = 256 * MIB
TASKS_PER_CORE = 2
# Before a file is read, only its size is known; its rows are estimated with this record size.
RECORD_BYTES = 100

_PATH = pa.dictionary(pa.int32(), pa.string())  # stored once for all batches of a file
_WALK_EXTRA = [("partition", pa.int32()), ("path", _PATH), ("segment", pa.int64())]
# One row per batch. A malformed file has one row with an error and its class instead. A torn end
# is one more row, with its position.
WALK_SCHEMA = pa.schema(
    [
        *_WALK_EXTRA,
        *BATCH_SCHEMA,
        *((name, pa.string()) for name in ("torn", "error", "error_class")),
    ]
)


class BatchAt(NamedTuple):
    """A batch in a segment file."""

    position: int
    base_offset: int


class FileToWalk(NamedTuple):
    """A segment file to read batches from; only the log's last file may end in a torn batch."""

    partition: int
    path: str
    base_offset: int
    size_bytes: int
    is_last: bool
    wanted: WantedBatches = EVERY_BATCH
    taken: BatchAt | None = None  # the last batch of the file that this run ingested

    @property
    def unread_bytes(self) -> int:
        """The file's bytes from the last ingested batch, or all of them."""
        return self.size_bytes - (self.taken.position if self.taken else 0)


class WalkedFile(NamedTuple):
    """The batches read from a file, as WALK_SCHEMA; an error counts as one batch."""

    rows: pa.Table
    counted: int
    is_cut: bool


class RecordsToRead(NamedTuple):
    """A byte range of a segment file to read records from, with offsets from `first_offset`."""

    partition: int
    path: str
    from_position: int
    to_position: int
    first_offset: int
    segment: int
    log_append_batches: list[int]  # base offsets of the batches that the broker's clock stamped


def walk_files(
    spark: SparkSession, limits: BatchLimits, store: Store, files: Sequence[FileToWalk]
) -> list[WalkedFile]:
    """Read and check the files' batches. Raise UnavailableError if a file is gone."""
    walk = partial(walk_file, limits, store)
    rows = sum(file.unread_bytes for file in files) // RECORD_BYTES
    return map_segments(spark, walk, files, rows, "reading")


def walk_file(limits: BatchLimits, store: Store, file: FileToWalk) -> WalkedFile:
    """Return the batches of one file, or one row with its error. Runs in a Spark task."""
    try:
        with _reading(file.path):
            walked = _walk(limits, store, file)
        if not file.is_last:
            require_whole(walked, file.path)
    except SourceError as error:
        bad = _walk_rows(file, [], 1, error=error)
        return WalkedFile(pa.Table.from_batches([bad]), 1, is_cut=False)
    rows = []
    if walked.batches.num_rows:
        rows.append(_walk_rows(file, [walked.batches], walked.batches.num_rows))
    if walked.torn is not None and not walked.is_cut:
        at, expected, present = walked.torn
        torn = f"{file.path}: a torn batch at position {at}, {present} of {expected} bytes"
        rows.append(_walk_rows(file, [], 1, torn=torn))
    return WalkedFile(pa.Table.from_batches(rows, WALK_SCHEMA), walked.counted, walked.is_cut)


def _walk(limits: BatchLimits, store: Store, file: FileToWalk) -> SegmentWalk:
    """Read the file from the last ingested batch, or all of it if that batch has changed."""
    walk = partial(
        walk_segment,
        file.path,
        max_batch_bytes=limits.file_bytes,
        max_decompressed_bytes=limits.decompressed_bytes,
        wanted=file.wanted,
        store=store,
    )
    if file.taken is not None:
        with suppress(CorruptSegmentError):
            walked = walk(from_position=file.taken.position)
            if walked.batches.column("base_offset")[:1].to_pylist() == [file.taken.base_offset]:
                return walked
    return walk()


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raise SourceError if the file may not be read, UnavailableError if disk or store fail."""
    try:
        yield
    except PermissionError as failure:
        raise SourceError(
            f"{path}: expected a file that this user may read, found: {failure}. Grant the user "
            "read access, or leave the file's topic out",
            path,
        ) from failure
    except OSError as failure:
        raise UnavailableError(
            f"{path}: expected a readable file, found: {failure}. Run again once it is readable"
        ) from failure


def _walk_rows(
    file: FileToWalk,
    batches: Sequence[pa.RecordBatch],
    rows: int,
    *,
    torn: str | None = None,
    error: SourceError | None = None,
) -> pa.RecordBatch:
    fixed = {
        "partition": file.partition,
        "path": file.path,
        "segment": file.base_offset,
        "torn": torn,
        "error": None if error is None else str(error),
        "error_class": None if error is None else type(error).__name__,
    }
    header = batches[0] if batches and batches[0].num_rows else None
    columns = [
        header.column(field.name)
        if header is not None and field.name in BATCH_SCHEMA.names
        else _repeated(fixed.get(field.name), rows, field.type)
        for field in WALK_SCHEMA
    ]
    return pa.record_batch(columns, schema=WALK_SCHEMA)


def _repeated(value: object, rows: int, of_type: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(rows, of_type)
    if of_type == _PATH:
        codes = pa.repeat(pa.scalar(0, of_type.index_type), rows)
        return pa.DictionaryArray.from_arrays(codes, pa.array([value], of_type.value_type))
    return pa.repeat(pa.scalar(value, of_type), rows)


def records_of(
    append_time: pa.Scalar, limits: BatchLimits, store: Store, wanted: RecordsToRead
) -> Iterator[pa.Table]:
    """Yield the records of a byte range as chunks of rows of the records table, in a Spark task."""
    with _reading(wanted.path):
        for chunk in read_records(
            wanted.path,
            wanted.from_position,
            wanted.to_position,
            max_decompressed_bytes=limits.decompressed_bytes,
            store=store,
        ):
            yield pa.Table.from_batches([_to_rows(wanted, chunk, append_time)])


def records_frame(
    spark: SparkSession,
    ranges: Sequence[RecordsToRead],
    read: Callable[[RecordsToRead], Iterator[pa.Table]],
) -> DataFrame:
    """Return the records of the byte ranges, as rows of a records table.

    A task reads several ranges, one segment after the other, so it has one data file open at a
    time.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    sizes = [wanted.to_position - wanted.from_position for wanted in ranges]
    groups = [
        [ranges[i] for i in group]
        for group in spread(sizes, task_count(sizes, spark.sparkContext.defaultParallelism))
    ]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_as_text():
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    for wanted in groups[number]:
                        for rows in read(wanted):
                            yield from rows.to_batches()

    numbers = spark.range(0, len(groups), 1, len(groups))
    return numbers.mapInArrow(run, from_arrow_schema(INGESTED_SCHEMA))  # type: ignore[arg-type]


def _to_rows(
    wanted: RecordsToRead, chunk: pa.RecordBatch, append_time: pa.Scalar
) -> pa.RecordBatch:
    chunk = chunk.filter(pc.greater_equal(chunk.column("offset"), wanted.first_offset))
    rows = chunk.num_rows
    timestamp = chunk.column("timestamp")
    appended = pa.repeat(append_time, rows)
    if wanted.log_append_batches:
        bases = pa.array(wanted.log_append_batches, pa.int64())
        is_stamped = pc.is_in(chunk.column("batch"), value_set=bases)
        appended = pc.if_else(is_stamped, pc.coalesce(timestamp, appended), appended)
    derived = {
        "partition": pa.repeat(pa.scalar(wanted.partition, pa.int32()), rows),
        "segment": pa.repeat(pa.scalar(wanted.segment, pa.int64()), rows),
        "event_time": pc.coalesce(chunk.column("producer_timestamp"), timestamp),
        "append_time": appended,
        "is_tombstone": pa.repeat(pa.scalar(False), rows),
        "tombstone_by": pa.nulls(rows, pa.string()),
    }
    columns = [
        derived[name] if name in derived else chunk.column(name) for name in INGESTED_SCHEMA.names
    ]
    return pa.record_batch(columns, schema=INGESTED_SCHEMA)


def log_append_batches(header: pa.Table) -> list[int]:
    """Return base offsets of the batches whose timestamps are log append times."""
    flags = pc.bit_wise_and(header.column("attributes"), LOG_APPEND_TIME)
    stamped: list[int] = header.filter(pc.not_equal(flags, 0)).column("base_offset").to_pylist()
    return stamped


def task_count(sizes: Sequence[int], cores: int) -> int:
    """Return the number of tasks that read files of these sizes, in bytes."""
    total = sum(sizes)
    worthwhile = total // LEAST_TASK_BYTES + 1
    at_most = max(cores * TASKS_PER_CORE, total // MOST_TASK_BYTES)
    return min(len(sizes), worthwhile, at_most)


def spread(sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Spread the indices of `sizes` over groups of about equal sums; none is empty.

    Indices ascend within a group.
    """
    loads = [(0, 0, group) for group in range(groups)]  # bytes, files, group
    heapify(loads)
    spread: list[list[int]] = [[] for _ in range(groups)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        load, count, group = loads[0]
        spread[group].append(index)
        heapreplace(loads, (load + sizes[index], count + 1, group))
    return [sorted(group) for group in spread]


class HeldLog(NamedTuple):
    """A partition's log in the tables: its state and last batch."""

    state: PartitionState | None = None  # None: the partition is new
    last_batch: Mapping[str, Any] | None = None

    @property
    def log_end_offset(self) -> int:
        """The state's log end offset, or 0 if the partition is new."""
        return 0 if self.state is None else self.state.log_end_offset


class GapRule(NamedTuple):
    """The rule for missing offsets."""

    is_compacted: bool  # gaps that compaction can explain are allowed
    accepts_all: bool
    is_tiered: bool = False  # remote.storage.enable: the local files are a part of the log


class Walked(NamedTuple):
    """One partition's batches in the source, up to the first bad file."""

    directory: PartitionDirectory
    first_read: int  # base offset of the first file that was read
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
        """The segments up to and including the bad one, at whose base offset the good part ends."""
        return [s for s in self.directory.segments if not self._is_behind(s.base_offset)]

    @property
    def behind(self) -> int:
        """The number of segments after the bad one."""
        return len(self.directory.segments) - len(self.segments)

    @property
    def end(self) -> int:
        """The end offset of the good part: after its last batch, or the last segment's base."""
        lasts = [offset + 1 for offset in self.batches.column("last_offset")[-1:].to_pylist()]
        return int(max([self.start, *(s.base_offset for s in self.segments), *lasts]))

    def _is_behind(self, base_offset: int) -> bool:
        return self.first_bad is not None and base_offset > self.first_bad


@dataclass(slots=True)
class SourceLog:
    """The batches of one partition to ingest, at or above its state's log end offset."""

    held: HeldLog
    log_start_offset: int
    visible_from: int  # records below are not ingested, but their batches may be
    first_offset: int  # first offset to ingest
    log_end_offset: int  # after the ingest
    batches: pa.Table  # WALK_SCHEMA
    segments: tuple[SegmentStart, ...] = ()  # of the source
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
        """The number of records in the visible batches, by their headers."""
        return int(pc.sum(self.visible.column("record_count")).as_py() or 0)

    @property
    def bytes(self) -> int:
        """The bytes of the batches in the segment files."""
        return int(pc.sum(self.batches.column("size_bytes")).as_py() or 0)

    @property
    def is_transactional(self) -> npt.NDArray[np.bool_]:
        """True for each transactional batch."""
        attributes = self.batches.column("attributes").to_numpy()
        return np.asarray(attributes & TRANSACTIONAL != 0, dtype=np.bool_)

    @property
    def has_moved(self) -> bool:
        """True if the log end offset moves, and nothing was refused."""
        state = self.held.state
        return not self.errors and (state is None or self.log_end_offset > state.log_end_offset)

    def without_news(self) -> SourceLog:
        """Return the log without any batch to ingest."""
        held = self.held.log_end_offset
        return replace(self, batches=self.batches.slice(0, 0), segments=(), log_end_offset=held)

    def by_file(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the path and visible batches of each file."""
        yield from slices_by_value(self.visible, "path")

    def state_after(
        self, state: PartitionState | None, max_event_time_ms: int
    ) -> PartitionState | None:
        """Return the partition's state after the ingest, or None if it still has none."""
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
        """Return the state's segments and the source's newer ones.

        The active segment's modification time is taken from the source.
        """
        if state is None:
            return self.segments
        base, modified_ms = state.segments[-1]
        for found_base, found_ms in self.segments:
            # If retention rolled the active segment here, the source's begins earlier.
            if found_base == base or (found_base < base and self.batches.num_rows):
                modified_ms = found_ms
        # Another replica rolls segments at other offsets: only segments beyond the end are new.
        first = max(base + 1, self.first_offset)
        added = [segment for segment in self.segments if segment.base_offset >= first]
        return (*state.segments[:-1], SegmentStart(base, modified_ms), *added)


def by_partition(walked: pa.Table) -> dict[int, pa.Table]:
    """Split the walked rows by partition, in offset order."""
    in_order = sorted_by(walked, ("partition", "segment", "base_offset"))
    return dict(slices_by_value(in_order, "partition"))


def refused_whole(directory: PartitionDirectory) -> Walked:
    """Return a partition whose directory is refused, without any batch."""
    assert directory.error is not None
    return Walked(directory, 0, WALK_SCHEMA.empty_table(), -1, directory.error, [])


def read_back(
    directory: PartitionDirectory,
    first_read: int,
    rows: pa.Table,
    refused: Mapping[str, SourceError],
) -> Walked:
    """Return one partition's batches up to its first bad file.

    `refused` has the errors of files whose records could not be decoded, by path.
    """
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
    """Return the first file that overlaps the file before it, as {base offset: error}.

    If a copy of the directory is updated without deleting files, it still has files that the
    broker's cleaner has merged.
    """
    bases, lasts = (rows.column(n).to_numpy() for n in ("base_offset", "last_offset"))
    below = np.flatnonzero(bases[1:] <= lasts[:-1])
    if not len(below):
        return {}
    before, row = rows.slice(int(below[0]), 2).to_pylist()
    return {
        row["segment"]: SourceError(
            f"{row['path']}: expected offsets above {before['last_offset']}, the last one of "
            f"{file_name(before['path'])}, found {row['base_offset']}: the directory of "
            f"{directory.topic}-{directory.partition} has files of two points in time. Copy it "
            "again, and delete files from the copy that the broker no longer has",
            row["path"],
        )
    }


def _error_of(row: Mapping[str, Any]) -> SourceError:
    """Rebuild the error of a file that could not be read, from its row of WALK_SCHEMA."""
    kind = class_named(row["error_class"])
    assert kind is not None
    assert issubclass(kind, SourceError)
    return kind(row["error"], row["path"])


def take_log(walked: Walked, held: HeldLog, rule: GapRule) -> SourceLog:
    """Select one partition's new batches, up to its high watermark or the first bad file."""
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
    """Return the source's log without any batch."""
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
    """Compare the tables' last batch with the source's batches at its offsets."""
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
    """Return the batches at or above the first offset to ingest."""
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
    """Return the log end offset after `new`, at least the last segment's base offset.

    Cleaning may have removed the last batches before a segment.
    """
    watermark = walked.directory.high_watermark
    bases = [s.base_offset for s in walked.segments]
    reached = [base for base in bases if watermark is None or base <= watermark]
    lasts = [offset + 1 for offset in new.column("last_offset")[-1:].to_pylist()]
    return int(max([log.first_offset, *reached, *lasts]))


def _check_gaps(
    walked: Walked, new: pa.Table, log: SourceLog, *, reached: int, rule: GapRule
) -> list[tuple[int, int]]:
    """Return the gaps up to offset `reached` that are allowed only by --accept-gap.

    Raise an error for a gap if the rule does not allow it.
    """
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
    """Return the source's segments up to the log end offset.

    The modification time of a bad file is not used for a segment that the state has.
    """
    held_until = -1 if state is None else state.active_segment
    return tuple(
        SegmentStart(segment.base_offset, segment.modified_ms)
        for segment in walked.segments
        if segment.base_offset <= log_end_offset
        and (segment.base_offset != walked.first_bad or segment.base_offset > held_until)
    )


def _with_segments(batches: pa.Table, segments: Sequence[SegmentStart]) -> pa.Table:
    """Assign each batch to a segment of the state; the source may have merged segments."""
    bases = np.array([base for base, _ in segments])
    places = np.searchsorted(bases, batches.column("base_offset").to_numpy(), side="right") - 1
    column = pa.array(bases[np.maximum(places, 0)], pa.int64())
    return batches.set_column(batches.schema.get_field_index("segment"), "segment", column)


def first_offsets(log: SourceLog, undecided: Mapping[int, int]) -> pa.Array:
    """Return, for each marker, the first offset of the transaction that it ends.

    The value is null for all other batches, and for a marker of a transaction without data.
    `undecided` has the transactions that are open in the batches table.
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
        log.skipped.append(f"{walked.behind} segments after an unreadable file")
    log.skipped += [f"{text}; the next run reads it again" for text in walked.torn]
    log.skipped += walked.directory.passed_over
    bases = [segment.base_offset for segment in walked.directory.segments]
    start = walked.directory.log_start_offset
    if log.held.state is None and bases and start is not None and start < bases[0]:
        log.skipped.append(
            f"offsets {start} to {bases[0] - 1}, from the checkpoint's log start offset to the "
            "first file: removed since, or in the remote tier, which ingest_topic reads"
        )
    if not log.batches.num_rows:
        if not log.errors:
            log.skipped.append(f"{len(bases)} segments without new batches")
    elif before := sum(base < walked.first_read for base in bases):
        log.skipped.append(f"{before} segments that were ingested before")


# Read the batch headers of one slice: of several files, or of a part of a file.
#
# The rows of a slice's batches pass through the driver, and so do the descriptions of the files
# written for its segments. So both numbers are bounded.


# New batches of a slice, some 150 bytes each on the driver. A file's size is known, but not its
# number of batches: it is estimated by the batches per byte of the files read first.
MAX_BATCHES = 500_000
FIRST_WALK_BYTES = 32 * 1024 * 1024  # at most MAX_BATCHES, because a batch header has 61 bytes
MAX_FILES = 16 * 1024  # of a slice, some 18 kB each on the driver until all are committed
FILES_AT_ONCE = 4096


class WalkedSlice(NamedTuple):
    """The batches of a slice, and the files that the next slice has to read."""

    rows: pa.Table  # WALK_SCHEMA
    cut: Sequence[FileToWalk]  # files read in part
    waiting: Sequence[FileToWalk]  # files not read

    @property
    def unfinished(self) -> set[int]:
        """The partitions with files for the next slice."""
        return {file.partition for file in (*self.cut, *self.waiting)}


def files_to_walk(
    partition: int, segments: Sequence[SegmentFile], held: HeldLog, taken: Mapping[str, BatchAt]
) -> list[FileToWalk]:
    """Return a partition's files, each with the batches to read from it.

    `taken` has the last batch that this run ingested from a file, by path.
    """
    last = held.last_batch
    wanted = WantedBatches(
        0 if held.state is None else held.state.log_end_offset,
        counted_from=held.log_end_offset,
        compared=None if last is None else (last["base_offset"], last["last_offset"]),
    )
    return [
        FileToWalk(
            partition,
            file.path,
            file.base_offset,
            file.size_bytes,
            file is segments[-1],
            wanted,
            taken.get(file.path),
        )
        for file in segments
    ]


def walk_slice(
    files: Sequence[FileToWalk], walk: Callable[[Sequence[FileToWalk]], Sequence[WalkedFile]]
) -> WalkedSlice:
    """Read files, sorted by partition and offset, until the slice is full.

    A slice has at most MAX_BATCHES new batches, plus all batches that a killed ingest appended.
    After MAX_FILES it ends as soon as it has a new batch.
    """
    tables, cut, waiting = [WALK_SCHEMA.empty_table()], list[FileToWalk](), list(files)
    counted, walked_files, walked_bytes, budget_bytes = 0, 0, 0, FIRST_WALK_BYTES
    while waiting and not cut:
        room = MAX_FILES - walked_files if counted else MAX_FILES
        if room <= 0 or (counted and waiting[0].unread_bytes > budget_bytes):
            break
        some, waiting = _split(waiting, budget_bytes, min(room, FILES_AT_ONCE))
        behind_cut, rows = [], []
        for file, walked in zip(some, walk(_with_shares(some, MAX_BATCHES - counted)), strict=True):
            if file.partition in {other.partition for other in cut}:
                behind_cut.append(file)
                continue
            rows.append(walked.rows)
            counted += walked.counted
            if walked.is_cut:
                cut.append(file)
        # Combined, because even a table of few rows takes kilobytes.
        tables.append(pa.concat_tables([WALK_SCHEMA.empty_table(), *rows]).combine_chunks())
        waiting = [*behind_cut, *waiting]
        walked_files += len(some)
        walked_bytes += sum(file.unread_bytes for file in some)
        # Three quarters of the estimate, because the next files may have more batches per byte.
        budget_bytes = max(0, MAX_BATCHES - counted) * walked_bytes * 3 // (4 * max(counted, 1))
    return WalkedSlice(pa.concat_tables(tables), cut, waiting)


def _split(
    files: Sequence[FileToWalk], budget_bytes: int, most: int
) -> tuple[list[FileToWalk], list[FileToWalk]]:
    """Return the files to read next, at least one and at most `most`, and the remaining files.

    A partition's files that begin below the tables' end are always read together.
    """
    ends = accumulate(file.unread_bytes for file in files)
    count = max(1, sum(end <= budget_bytes for end in islice(ends, most)))
    while count < len(files) and _is_held(files[count], files[count - 1].partition):
        count += 1
    return list(files[:count]), list(files[count:])


def _is_held(file: FileToWalk, partition: int) -> bool:
    return file.partition == partition and file.base_offset < file.wanted.counted_from


def _with_shares(files: Sequence[FileToWalk], room: int) -> list[FileToWalk]:
    """Limit the batches to read from each file to its share of `room` by bytes, at least one."""
    total = sum(file.unread_bytes for file in files)
    return [
        file._replace(
            wanted=file.wanted._replace(at_most=max(1, room * file.unread_bytes // max(total, 1)))
        )
        for file in files
    ]


def has_new(rows: pa.Table, held: HeldLog) -> bool:
    """Return whether a partition's rows have a batch beyond the log end offset, or an error."""
    first = 0 if held.state is None else held.state.log_end_offset
    is_new = pc.greater_equal(rows.column("last_offset"), first)
    is_new = pc.or_kleene(is_new, pc.is_valid(rows.column("error")))
    return bool(pc.any(is_new).as_py())
