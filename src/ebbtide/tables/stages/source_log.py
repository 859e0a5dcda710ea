"""How much of one partition's source log is taken, and what its state is afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import CorruptSegmentError, EbbtideError
from ebbtide.log.batches import Batch
from ebbtide.log.continuation import Held, SourceBatch, check_continuation, check_no_gap
from ebbtide.log.state import PartitionState
from ebbtide.log.transactions import OpenTransactions
from ebbtide.records.attributes import CONTROL, TRANSACTIONAL
from ebbtide.records.log_directory import PartitionDirectory
from ebbtide.tables.sources import WALK_SCHEMA


class HeldLog(NamedTuple):
    """Where the tables' copies of one partition end; no state for a new partition."""

    state: PartitionState | None
    records_end: int
    batches_end: int
    last_batch: Mapping[str, Any] | None


class RecordFile(NamedTuple):
    """A byte range of a segment file and the headers of its batches."""

    path: str
    segment: int
    from_position: int
    to_position: int
    header: pa.Table


@dataclass(slots=True)
class SourceLog:
    """The batches of one partition that the table does not hold yet, all to be taken."""

    directory: PartitionDirectory
    log_start_offset: int
    log_end_offset: int
    records_from: int
    batches_from: int
    batches: pa.Table  # WALK_SCHEMA, and `txn_first_offset`
    skipped: list[str] = field(default_factory=list)
    errors: list[EbbtideError] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """The segment files that something is taken from."""
        return list(dict.fromkeys(self.batches.column("path").to_pylist()))

    @property
    def data(self) -> pa.Table:
        """The batches that hold records to be taken."""
        is_data = pc.equal(pc.bit_wise_and(self.batches.column("attributes"), CONTROL), 0)
        is_new = pc.greater_equal(self.batches.column("last_offset"), self.records_from)
        is_visible = pc.greater_equal(self.batches.column("last_offset"), self.log_start_offset)
        has_records = pc.greater(self.batches.column("record_count"), 0)
        return self.batches.filter(
            pc.and_(pc.and_(is_data, is_new), pc.and_(is_visible, has_records))
        )

    @property
    def records(self) -> int:
        """Records to be taken, as the headers count them."""
        return int(pc.sum(self.data.column("record_count")).as_py() or 0)

    @property
    def bytes(self) -> int:
        """Bytes of the batches to be taken, as the log holds them."""
        return int(pc.sum(self.batches.column("size_bytes")).as_py() or 0)

    def record_files(self) -> Iterator[RecordFile]:
        """Byte ranges to read records from, one a file."""
        data = self.data
        for path in dict.fromkeys(data.column("path").to_pylist()):
            header = data.filter(pc.equal(data.column("path"), path))
            ends = pc.add(header.column("position"), header.column("size_bytes"))
            yield RecordFile(
                path,
                header.column("segment")[0].as_py(),
                pc.min(header.column("position")).as_py(),
                pc.max(ends).as_py(),
                header,
            )

    def batches_to_write(self, partition: int) -> pa.Table:
        """Header rows for the batch table."""
        new = self.batches.filter(
            pc.greater_equal(self.batches.column("base_offset"), self.batches_from)
        ).drop_columns(["path", "position", "torn", "error"])
        column = pa.array([partition] * new.num_rows, pa.int32())
        return new.set_column(new.schema.get_field_index("partition"), "partition", column)

    def state_after(
        self, state: PartitionState | None, max_event_time_ms: int
    ) -> PartitionState | None:
        """The partition's state once all of this is in the tables; None where nothing is known."""
        found = [(f.base_offset, f.modified_ms) for f in self.directory.segments]
        taken = [s for s in found if s[0] <= self.log_end_offset]
        if state is None:
            if not taken:
                return None
            return PartitionState(
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
                first_dirty_offset=self.log_start_offset,
                first_unmarked_offset=self.log_start_offset,
                segments=tuple(taken),
                max_event_time_ms=max_event_time_ms,
            )
        last_base, last_modified = state.segments[-1]
        modified = dict(taken).get(last_base, last_modified)
        added = tuple(segment for segment in taken if segment[0] > last_base)
        return state.moved(
            log_end_offset=max(state.log_end_offset, self.log_end_offset),
            segments=(*state.segments[:-1], (last_base, modified), *added),
            max_event_time_ms=max(state.max_event_time_ms, max_event_time_ms),
        )


def take_log(
    directory: PartitionDirectory,
    walked: pa.Table | None,
    held: HeldLog,
    undecided: Mapping[int, int],
    refused: Mapping[str, str],
    *,
    is_gap_allowed: bool,
    is_compacted: bool,
) -> SourceLog:
    """What is taken of one partition: up to its high watermark, or to the first bad file."""
    header = _of(walked, directory.partition)
    start = _source_start(directory)
    state = held.state
    log_end = start if state is None else state.log_end_offset
    log = SourceLog(
        directory,
        log_start_offset=start if state is None else state.log_start_offset,
        log_end_offset=log_end,
        records_from=max(held.records_end, log_end),
        batches_from=max(held.batches_end, 0 if state is None else log_end),
        batches=header.slice(0, 0),
    )
    header = _good_part(header, log, refused)
    try:
        _check(directory, header, held, log_end, start, is_compacted=is_compacted)
        first = (
            directory.segments[0].base_offset if state is None and directory.segments else log_end
        )
        new = header.filter(pc.greater_equal(header.column("base_offset"), first))
        new = _below_high_watermark(new, log, directory)
        where = f"{directory.topic}-{directory.partition}"
        if new.num_rows:
            _check_gaps(where, new, first, is_allowed=is_gap_allowed)
    except EbbtideError as error:
        log.errors.append(error)
        new = header.slice(0, 0)
    if new.num_rows == 0 and not log.errors:
        log.skipped.append(f"{len(directory.segments)} segments hold nothing new")
    log.batches = _with_segments(_with_transactions(new, undecided), state)
    if new.num_rows:
        log.log_end_offset = new.column("last_offset")[-1].as_py() + 1
    return log


def _of(walked: pa.Table | None, partition: int) -> pa.Table:
    if walked is None:
        return WALK_SCHEMA.empty_table()
    mine = walked.filter(pc.equal(walked.column("partition"), partition))
    return mine.sort_by([("segment", "ascending"), ("base_offset", "ascending")])


def _source_start(directory: PartitionDirectory) -> int:
    first = directory.segments[0].base_offset if directory.segments else 0
    return max(first, directory.log_start_offset or 0)


def _good_part(header: pa.Table, log: SourceLog, refused: Mapping[str, str]) -> pa.Table:
    """The batches before the first file that cannot be read; what is torn is left for later."""
    bad = {
        row["segment"]: row["error"]
        for row in header.filter(pc.is_valid(header.column("error"))).to_pylist()
    }
    bad |= {
        row["segment"]: refused[row["path"]]
        for row in header.select(["segment", "path"]).to_pylist()
        if row["path"] in refused
    }
    torn = header.filter(pc.is_valid(header.column("torn"))).column("torn").to_pylist()
    log.skipped += [f"{text}; left for the next time" for text in torn]
    good = header.filter(pc.is_valid(header.column("base_offset")))
    if not bad:
        return good
    first_bad = min(bad)
    log.errors.append(CorruptSegmentError(bad[first_bad]))
    behind = sum(1 for f in log.directory.segments if f.base_offset > first_bad)
    if behind:
        log.skipped.append(f"{behind} segments behind a file that cannot be read")
    return good.filter(pc.less(good.column("segment"), first_bad))


def _check(
    directory: PartitionDirectory,
    header: pa.Table,
    held: HeldLog,
    log_end: int,
    source_start: int,
    *,
    is_compacted: bool,
) -> None:
    if held.state is None or held.last_batch is None:
        return
    names = SourceBatch._fields
    source = [SourceBatch(**row) for row in header.select(list(names)).to_pylist()]
    last = SourceBatch(**held.last_batch)
    check_continuation(
        directory.path,
        Held(log_end, last),
        source,
        source_start=source_start,
        is_compacted=is_compacted,
    )


def _below_high_watermark(
    header: pa.Table, log: SourceLog, directory: PartitionDirectory
) -> pa.Table:
    watermark = directory.high_watermark
    if watermark is None:
        return header
    below = header.filter(pc.less(header.column("last_offset"), watermark))
    left = header.num_rows - below.num_rows
    if left:
        log.skipped.append(f"{left} batches at or above the high watermark {watermark}")
    return below


def _check_gaps(where: str, header: pa.Table, first: int, *, is_allowed: bool) -> None:
    bases = header.column("base_offset").to_numpy()
    expected = np.concatenate([[first], header.column("last_offset").to_numpy()[:-1] + 1])
    for i in np.flatnonzero(bases != expected)[:1]:
        check_no_gap(where, int(expected[i]), int(bases[i]), is_allowed=is_allowed)


def _with_transactions(header: pa.Table, undecided: Mapping[int, int]) -> pa.Table:
    """Add `txn_first_offset`: on a marker with data, where its transaction starts."""
    firsts: list[int | None] = [None] * header.num_rows
    transactions = OpenTransactions(dict(undecided))
    attributes = header.column("attributes").to_numpy()
    names = ["base_offset", "last_offset", "attributes", "producer_id"]
    rows = np.flatnonzero(attributes & TRANSACTIONAL)
    taken = header.select(names).take(pa.array(rows, pa.int64())).to_pylist()
    for i, row in zip(rows, taken, strict=True):
        firsts[i] = transactions.append(Batch(**row))
    return header.append_column("txn_first_offset", pa.array(firsts, pa.int64()))


def _with_segments(header: pa.Table, state: PartitionState | None) -> pa.Table:
    """A source may have merged segments that the table keeps apart: rows never go back."""
    if state is None:
        return header
    segment = pc.max_element_wise(header.column("segment"), pa.scalar(state.active_segment))
    index = header.schema.get_field_index("segment")
    return header.set_column(index, "segment", segment)
