"""Walk one segment file: find its batches and check all of them.

Source: Kafka's `FileLogInputStream`, `DefaultRecordBatch` and `AbstractLegacyRecordBatch`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ebbtide.errors import SourceError
from ebbtide.numbers import MAX_INT, MAX_LONG
from ebbtide.records.attributes import COMPRESSION_MASK, CONTROL, NO_LEADER_EPOCH
from ebbtide.records.batch import (
    BATCH_SCHEMA,
    CRC_COVERS_FROM,
    HEADER,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    BatchRow,
    BatchRun,
    Control,
    corrupt,
    find_run,
    read_control,
    read_header,
    to_record_batch,
    v2_row,
)
from ebbtide.records.compression import Codec, TooLargeError, decompress
from ebbtide.records.decoding import LegacyBatch, V2Batch, decode_bodies, decode_records, decode_run
from ebbtide.records.legacy import legacy_row, opening_batch, read_legacy_records, read_message
from ebbtide.records.limits import MAX_DECOMPRESSED_BYTES
from ebbtide.stores.store import AMBIENT, FileReader, Store, file_name

# Find the end of a batch, before its contents are checked.
#
# Source: Kafka's `FileLogInputStream`.


# All formats begin with base offset, length, leader epoch (v2) or CRC (0 and 1), and magic.
PREFIX = struct.Struct(">qiib")
# The smallest valid length field, by magic.
MIN_LENGTHS = {0: 14, 1: 22, 2: HEADER.size - LOG_OVERHEAD_BYTES}


class TornBatch(NamedTuple):
    """An incomplete batch at a file's end, which a crashed broker leaves."""

    position: int
    expected_bytes: int
    found_bytes: int  # 0 if only zeros follow, as in a preallocated file


class BatchFrame(NamedTuple):
    """The bytes of one whole batch, not checked yet."""

    position: int
    magic: int
    data: memoryview


def read_frame(
    reader: FileReader, path: str, position: int, max_batch_bytes: int
) -> BatchFrame | TornBatch:
    """Return the batch at a position. Raise CorruptSegmentError if no batch can begin there."""
    prefix = reader.read(position, PREFIX.size)
    if len(prefix) < PREFIX.size:
        return TornBatch(position, PREFIX.size, len(prefix))
    _, length, _, magic = PREFIX.unpack(prefix)
    if not any(prefix) and _is_zero_to_the_end(reader, position):
        return TornBatch(position, PREFIX.size, 0)
    if magic not in MIN_LENGTHS:
        raise corrupt(path, position, "a record batch of magic 0, 1 or 2", f"magic {magic}")
    least_bytes = LOG_OVERHEAD_BYTES + MIN_LENGTHS[magic]
    size_bytes = LOG_OVERHEAD_BYTES + length
    if not least_bytes <= size_bytes <= max_batch_bytes:
        expected = f"a batch of {least_bytes} to {max_batch_bytes} bytes (the largest allowed)"
        raise corrupt(path, position, expected, f"{size_bytes} bytes")
    data = reader.read(position, size_bytes)
    if len(data) < size_bytes:
        return TornBatch(position, size_bytes, len(data))
    return BatchFrame(position, magic, data)


def _is_zero_to_the_end(reader: FileReader, position: int) -> bool:
    step = 1024 * 1024
    return not any(
        bytes(reader.read(start, step)).strip(b"\0")
        for start in range(position, reader.size_bytes, step)
    )


class WantedBatches(NamedTuple):
    """The batches of a file that a walk returns: those that end at or above `first_offset`.

    At most `at_most` batches that end at or above `counted_from` are returned. Below
    `first_offset`, the walk returns batches that share offsets with `compared`. If no batch is
    above, it returns the last one below.
    """

    first_offset: int = 0
    counted_from: int = 0
    at_most: int = MAX_LONG
    compared: tuple[int, int] | None = None  # [first, last]


class KeptBatches:
    """Collects the wanted batches of a file, added in offset order, as BATCH_SCHEMA."""

    def __init__(self, wanted: WantedBatches) -> None:
        self._wanted = wanted
        self._pieces: list[pa.RecordBatch] = []
        self._last: pa.RecordBatch | None = None  # None if it is among the pieces
        self.counted = 0
        self.is_cut = False  # True: a wanted batch was left out because of `at_most`

    def add(self, batches: pa.RecordBatch) -> None:
        """Collect the wanted batches among these, up to the limit."""
        if not batches.num_rows or self.is_cut:
            return
        lasts = batches.column("last_offset").to_numpy()
        first = int(np.searchsorted(lasts, self._wanted.first_offset))
        counted = int(np.searchsorted(lasts, self._wanted.counted_from))
        end = min(batches.num_rows, counted + self._wanted.at_most - self.counted)
        self.counted += max(0, end - counted)
        self.is_cut = end < batches.num_rows
        if self._wanted.compared is not None:
            self._keep_compared(batches.slice(0, first), *self._wanted.compared)
        if end > first:
            self._pieces.append(batches.slice(first, end - first))
            self._last = None
        elif end:
            self._last = batches.slice(end - 1, 1)

    def _keep_compared(self, batches: pa.RecordBatch, first: int, last: int) -> None:
        is_below = batches.column("last_offset").to_numpy() < first
        is_above = batches.column("base_offset").to_numpy() > last
        is_compared = ~(is_below | is_above)
        if is_compared.any():
            self._pieces.append(batches.filter(pa.array(is_compared)))

    def together(self) -> pa.RecordBatch:
        """Return the collected batches as one record batch."""
        if self._last is None:
            return _together(self._pieces)
        last_base = self._last.column("base_offset")[0].as_py()
        if self._pieces and self._pieces[-1].column("base_offset")[-1].as_py() == last_base:
            return _together(self._pieces)
        return _together([*self._pieces, self._last])


def _together(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    columns = pa.Table.from_batches(pieces, BATCH_SCHEMA).combine_chunks().columns
    return pa.record_batch([column.combine_chunks() for column in columns], schema=BATCH_SCHEMA)


# A larger batch is corrupt. max.message.bytes is no limit: it may have been lowered later.
MAX_BATCH_BYTES = 100 * 1024 * 1024
SWAP, CLEANED = ".swap", ".cleaned"
SEGMENT_NAME = re.compile(r"[0-9]{20}\.log", re.ASCII)
# Files that a cleaner or a segment split leaves if its broker dies, index files too.
TEMPORARY_NAME = re.compile(r"[0-9]{20}\..+\.cleaned", re.ASCII)

# Kafka: LogLoader.retryOnOffsetOverflow. It finds such a segment only while it builds the indexes.
_SPLIT = (
    "If its broker has the same file, start a broker of Kafka 2.0 or later on a copy of the "
    "directory without this segment's .index and .timeindex. The broker splits the segment; then "
    "ingest the copy. Else copy the file again"
)
# Number of batches that are Python objects at a time.
ROWS_AT_ONCE = 16_384
EVERY_BATCH = WantedBatches()


class BatchLimits(NamedTuple):
    """The largest size of a topic's batches, in the file and in memory."""

    file_bytes: int = MAX_BATCH_BYTES
    decompressed_bytes: int = MAX_DECOMPRESSED_BYTES


class SegmentWalk(NamedTuple):
    """The wanted batches of a segment file."""

    batches: pa.RecordBatch  # BATCH_SCHEMA
    valid_bytes: int  # position after the last whole batch that was checked
    torn: TornBatch | None
    counted: int = 0  # number of batches that count towards `at_most`
    is_cut: bool = False  # True: the file has more batches than `at_most`


def is_segment_name(name: str) -> bool:
    """Return whether a file is a segment by its name. A `.swap` file is one if it is complete."""
    return SEGMENT_NAME.fullmatch(name.removesuffix(SWAP)) is not None


def segment_base_offset(path: str) -> int:
    """Return the base offset in a segment file's name. Raise SourceError for another name."""
    name = file_name(path)
    if not is_segment_name(name):
        raise SourceError(f"{path}: expected a name of 20 digits and .log, found {name}")
    if int(name[:20]) > MAX_LONG:
        raise SourceError(f"{path}: expected a base offset of at most {MAX_LONG}, found {name}")
    return int(name[:20])


def walk_segment(
    path: str,
    *,
    from_position: int = 0,
    max_batch_bytes: int,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    wanted: WantedBatches = EVERY_BATCH,
    store: Store = AMBIENT,
) -> SegmentWalk:
    """Return the wanted batches from a position on, checked.

    A walk from the file's start checks all batches. A walk from a later position checks batches up
    to the last wanted one. Raise CorruptSegmentError at the first bad batch.
    """
    next_offset = segment_offset = segment_base_offset(path)
    kept, rows = KeptBatches(wanted), list[BatchRow]()
    position, torn = from_position, None
    with FileReader(path, store) as reader:
        if position > reader.size_bytes:
            raise corrupt(path, position, "a batch or the end", f"{reader.size_bytes} bytes in all")
        while position < reader.size_bytes and not (from_position and kept.is_cut):
            run = find_run(reader.rest(position), position, max_batch_bytes, CONTROL)
            if run is not None and (sound := _count_sound(run, segment_offset, next_offset)):
                kept.add(to_record_batch(rows))
                kept.add(sound_rows := run.first(sound).rows())
                rows = []
                next_offset = sound_rows.column("last_offset")[-1].as_py() + 1
                position = run.first(sound).end
                continue
            frame = read_frame(reader, path, position, max_batch_bytes)
            if isinstance(frame, TornBatch):
                torn = frame
                break
            row = _check_frame(path, frame, max_decompressed_bytes)
            _check_row(path, segment_offset, next_offset, row)
            rows.append(row)
            if len(rows) == ROWS_AT_ONCE:
                kept.add(to_record_batch(rows))
                rows = []
            next_offset = row.last_offset + 1
            position += row.size_bytes
    kept.add(to_record_batch(rows))
    return SegmentWalk(kept.together(), position, torn, kept.counted, kept.is_cut)


def _count_sound(run: BatchRun, segment_offset: int, next_offset: int) -> int:
    """Count the sound batches at the start of the run.

    The checks are those of `_check_frame` and `_check_row`, which find the error of the next batch.
    """
    bases, deltas = run.column("base_offset"), run.column("last_offset_delta")
    counts = run.column("record_count")
    is_sound = (run.column("attributes") & COMPRESSION_MASK) <= Codec.ZSTD
    is_sound &= (counts >= 0) & (counts <= deltas + 1)
    is_sound &= bases <= MAX_LONG - np.maximum(deltas, 0)
    lasts = bases + deltas
    is_sound &= bases >= np.concatenate([[next_offset], lasts[:-1] + 1])
    is_sound &= lasts <= min(segment_offset + MAX_INT, MAX_LONG)
    is_sound &= run.column("leader_epoch") >= NO_LEADER_EPOCH
    count = len(is_sound) if is_sound.all() else int(np.argmin(is_sound))
    starts, ends = run.starts.tolist(), (run.starts + run.sizes).tolist()
    crcs = run.column("crc").tolist()
    for number in range(count):
        if crc32c(run.data[starts[number] + CRC_COVERS_FROM : ends[number]]) != crcs[number]:
            return number
    return count


def _check_row(path: str, segment_offset: int, next_offset: int, row: BatchRow) -> None:
    """Raise CorruptSegmentError for a batch that no broker writes after the ones before it."""
    if row.base_offset < next_offset:
        expected = f"a base offset at or above {next_offset}"
        raise corrupt(path, row.position, expected, str(row.base_offset))
    _check_what_no_crc_covers(path, segment_offset, row)


def _check_what_no_crc_covers(path: str, segment_offset: int, row: BatchRow) -> None:
    """Raise CorruptSegmentError for a base offset or a leader epoch that no broker writes.

    The CRC of a v2 batch does not cover base offset, length, leader epoch and magic. A wrong length
    or magic shows as a wrong CRC, unless the batch then seems cut off by the file's end, as in
    Kafka. Two errors go undetected: another leader epoch, and too high offsets of a segment's last
    batch within an index's 32 bits.
    """
    # LogSegment.canConvertToRelativeOffset: the index counts from the segment's base offset.
    last = segment_offset + MAX_INT
    if row.last_offset > last:
        expected = f"offsets of at most {last}, the last that the segment's index can hold,"
        raise corrupt(path, row.position, expected, str(row.last_offset), _SPLIT)
    if row.leader_epoch < NO_LEADER_EPOCH:
        expected = f"a leader epoch at or above {NO_LEADER_EPOCH}"
        raise corrupt(path, row.position, expected, str(row.leader_epoch))


def require_whole(walk: SegmentWalk, path: str) -> SegmentWalk:
    """Return the walk of a file that is not the log's last.

    Raise CorruptSegmentError if it ends in a torn batch.
    """
    if walk.torn is None:
        return walk
    position, expected_bytes, found_bytes = walk.torn
    raise corrupt(
        path,
        position,
        f"{expected_bytes} bytes of a batch in a segment that is not the log's last",
        f"{found_bytes}",
    )


def _check_frame(path: str, frame: BatchFrame, max_bytes: int) -> BatchRow:
    with opening_batch(path, frame.position):
        if frame.magic == 2:
            return _check_v2(path, frame, max_bytes)
        message = read_message(frame.data)
        return legacy_row(frame.position, message, len(frame.data), max_bytes)


def _check_v2(path: str, frame: BatchFrame, max_bytes: int) -> BatchRow:
    header = read_header(frame.data)
    found_crc = crc32c(frame.data[CRC_COVERS_FROM:])
    if found_crc != header.crc:
        expected = f"CRC-32C {header.crc:#010x}"
        raise corrupt(path, frame.position, expected, f"{found_crc:#010x}")
    if header.attributes & COMPRESSION_MASK > Codec.ZSTD:
        codec = header.attributes & COMPRESSION_MASK
        raise corrupt(path, frame.position, "codec 0 to 4", f"codec {codec}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        expected = f"0 to {header.last_offset_delta + 1} records, one per offset,"
        raise corrupt(path, frame.position, expected, str(header.record_count))
    if header.base_offset + header.last_offset_delta > MAX_LONG:
        expected = f"offsets of at most {MAX_LONG}"
        actual = f"{header.base_offset} + {header.last_offset_delta}"
        raise corrupt(path, frame.position, expected, actual)
    return v2_row(frame.position, header, _control_of(path, frame, header, max_bytes))


def _control_of(path: str, frame: BatchFrame, header: BatchHeader, max_bytes: int) -> Control:
    if not header.attributes & CONTROL:
        return Control()
    try:
        return read_control(header, frame.data, max_bytes)
    except TooLargeError:
        raise
    except (IndexError, ValueError) as bad:
        raise corrupt(path, frame.position, "a control record", str(bad)) from bad


# Read the records of a byte range of a segment file whose batches were checked before.
#
# Source: Kafka's `DefaultRecordBatch` and `AbstractLegacyRecordBatch`.


# Larger chunks are no faster, and do not fit into the processor's caches
# (benchmarks/read_segments.py).
ROWS_PER_CHUNK = 16_384
CHUNK_BYTES = 16 * 1024 * 1024


def read_records(
    path: str,
    from_position: int,
    to_position: int,
    *,
    first_offset: int = 0,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    store: Store = AMBIENT,
) -> Iterator[pa.RecordBatch]:
    """Yield the data records of the batches in a byte range, in offset order, as RECORD_SCHEMA.

    The range must consist of batches that `walk_segment` has checked: their CRC is not computed
    again. Batches whose base offset is below `first_offset` are skipped.
    """
    pending: list[V2Batch | LegacyBatch] = []
    rows = size_bytes = 0
    opens = partial(_open_frame, path, first_offset, max_decompressed_bytes)
    for batch in _data_batches(path, from_position, to_position, opens, store):
        if isinstance(batch, BatchRun):
            if pending:
                yield from _slices(decode_records(path, pending), rows_per_chunk)
                pending, rows, size_bytes = [], 0, 0
            wanted = batch.column("record_count") > 0
            wanted &= batch.column("base_offset") >= first_offset
            for chunk in batch.where(wanted).chunks(rows_per_chunk, CHUNK_BYTES):
                for decoded in _decode_run(path, chunk, max_decompressed_bytes):
                    yield from _slices(decoded, rows_per_chunk)
            continue
        if batch.base_offset < first_offset:
            continue
        is_full = rows >= rows_per_chunk or size_bytes >= CHUNK_BYTES
        if pending and (is_full or type(batch) is not type(pending[-1])):
            yield from _slices(decode_records(path, pending), rows_per_chunk)
            pending, rows, size_bytes = [], 0, 0
        pending.append(batch)
        rows += batch.record_count
        size_bytes += batch.size_bytes
    if pending:
        yield from _slices(decode_records(path, pending), rows_per_chunk)


def _decode_run(path: str, run: BatchRun, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a run of data batches, some of which may be compressed.

    At most about CHUNK_BYTES are decompressed at a time.
    """
    codecs = run.column("attributes") & COMPRESSION_MASK
    if not codecs.any():
        yield decode_run(path, run)
        return
    bodies: list[bytes | memoryview] = []
    first = size_bytes = 0
    ends = run.starts + run.sizes
    spans = zip(*(column.tolist() for column in (run.starts, ends, codecs)), strict=True)
    for number, (start, end, codec) in enumerate(spans, start=1):
        data = run.data[start + HEADER.size : end]
        with opening_batch(path, run.position + start):
            bodies.append(_decompress(codec, data, max_bytes))
        size_bytes += len(bodies[-1])
        if size_bytes >= CHUNK_BYTES or number == len(codecs):
            yield decode_bodies(path, run.between(first, number), bodies)
            bodies, first, size_bytes = [], number, 0


def _slices(columns: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, columns.num_rows, rows):
        yield columns.slice(start, rows)


def _data_batches(
    path: str,
    from_position: int,
    to_position: int,
    opens: Callable[[BatchFrame], V2Batch | LegacyBatch | None],
    store: Store,
) -> Iterator[V2Batch | LegacyBatch | BatchRun]:
    """Yield runs of batches; batches of magic 0 and 1, and short runs, one by one."""
    position = from_position
    with FileReader(path, store) as reader:
        while position < to_position:
            left = to_position - position
            data = reader.rest(position)[:left]
            run = find_run(data, position, left, CONTROL)
            if run is not None:
                yield run
                position = run.end
                continue
            frame = read_frame(reader, path, position, to_position - position)
            if isinstance(frame, TornBatch):
                actual = f"{frame.found_bytes} of {frame.expected_bytes} bytes"
                raise corrupt(path, position, "the batch that was read here before", actual)
            batch = opens(frame)
            if batch is not None:
                yield batch
            position += len(frame.data)


def _open_frame(
    path: str, first_offset: int, max_bytes: int, frame: BatchFrame
) -> V2Batch | LegacyBatch | None:
    """Return a data batch with its records decompressed, or None for a control or empty batch.

    Return None too for a batch of magic 2 below `first_offset`. One of magic 0 or 1 must be opened
    to find its base offset.
    """
    with opening_batch(path, frame.position):
        if frame.magic != 2:
            records = read_legacy_records(read_message(frame.data), max_bytes)
            return LegacyBatch(records[0].offset, records)
        header = read_header(frame.data)
        is_wanted = header.record_count and header.base_offset >= first_offset
        if header.attributes & CONTROL or not is_wanted:
            return None
        codec, data = header.attributes & COMPRESSION_MASK, frame.data[HEADER.size :]
        return V2Batch(frame.position, header, _decompress(codec, data, max_bytes))


def _decompress(codec: int, data: memoryview, max_bytes: int) -> bytes | memoryview:
    return data if codec == Codec.NONE else decompress(codec, data, magic=2, max_bytes=max_bytes)
