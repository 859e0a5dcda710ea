"""Walk one segment file: find its batches and check all of them.

Source: Kafka's `FileLogInputStream`, `DefaultRecordBatch` and `AbstractLegacyRecordBatch`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ebbtide.errors import SourceError
from ebbtide.numbers import MAX_INT, MAX_LONG
from ebbtide.records.attributes import COMPRESSION_MASK, CONTROL, NO_LEADER_EPOCH
from ebbtide.records.batch import (
    CRC_COVERS_FROM,
    BatchHeader,
    BatchRow,
    Control,
    corrupt,
    read_control,
    read_header,
    to_record_batch,
    v2_row,
)
from ebbtide.records.batch_runs import BatchRun, find_run
from ebbtide.records.compression import (
    Codec,
    TooLargeError,
)
from ebbtide.records.files.batch_frames import Frame, TornBatch, read_frame
from ebbtide.records.files.kept_batches import KeptBatches, WantedBatches
from ebbtide.records.legacy import (
    legacy_row,
    opening_batch,
    read_message,
)
from ebbtide.records.limits import MAX_DECOMPRESSED_BYTES
from ebbtide.stores.file_reader import FileReader
from ebbtide.stores.store import AMBIENT, Store
from ebbtide.stores.uris import file_name

# A batch may be larger than max.message.bytes, which can be lowered; it is corrupt beyond this.
MAX_BATCH_BYTES = 100 * 1024 * 1024
SWAP, CLEANED = ".swap", ".cleaned"
SEGMENT_NAME = re.compile(r"[0-9]{20}\.log", re.ASCII)
# What a cleaner or a split of a segment leaves if its broker dies: index files too.
TEMPORARY_NAME = re.compile(r"[0-9]{20}\..+\.cleaned", re.ASCII)

# Kafka: LogLoader.retryOnOffsetOverflow. It finds such a segment only while it builds the indexes.
_SPLIT = (
    "if its broker has the same file, start a broker of Kafka 2.0 or later on a copy of the "
    "directory without this segment's .index and .timeindex: it splits the segment, and the copy "
    "can be ingested; else copy the file again"
)
# Batches that are Python objects at a time.
ROWS_AT_ONCE = 16_384
EVERY_BATCH = WantedBatches()


class BatchLimits(NamedTuple):
    """The largest size that a topic's batches may have, in the file and in memory."""

    file_bytes: int = MAX_BATCH_BYTES
    decompressed_bytes: int = MAX_DECOMPRESSED_BYTES


class SegmentWalk(NamedTuple):
    """The whole batches of a segment file that were wanted."""

    batches: pa.RecordBatch  # BATCH_SCHEMA
    valid_bytes: int  # position after the last whole batch that was checked
    torn: TornBatch | None
    counted: int = 0  # of the batches, those that count towards the wanted number
    is_cut: bool = False  # whether the file has more batches than were wanted


def is_segment_name(name: str) -> bool:
    """Return whether a file is a segment by its name; a `.swap` file is one if it is complete."""
    return SEGMENT_NAME.fullmatch(name.removesuffix(SWAP)) is not None


def segment_base_offset(path: str) -> int:
    """Return the offset that a segment file's name says it begins at."""
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
    """Return the wanted batches from a position on, checked; CorruptSegmentError at the first bad.

    From the file's beginning all batches are checked; from a later position, those up to the last
    one that is wanted.
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
    """Count how many of the first batches are sound; checking the next one alone tells its error.

    It is what `_check_frame` and `_check_row` ask of one.
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
    """Refuse a batch that no broker writes behind the ones before it in its segment."""
    if row.base_offset < next_offset:
        expected = f"a base offset of {next_offset} or more"
        raise corrupt(path, row.position, expected, str(row.base_offset))
    _check_what_no_crc_covers(path, segment_offset, row)


def _check_what_no_crc_covers(path: str, segment_offset: int, row: BatchRow) -> None:
    """Refuse a base offset or a leader epoch that no broker writes.

    Of a v2 header the CRC leaves out base offset, length, leader epoch and magic. A wrong length or
    magic shows by the CRC of other bytes, unless the batch then seems to be torn off by the file's
    end, as for Kafka. What stays unseen: another leader epoch, and offsets of a segment's last
    batch that are too high by less than an index's 32 bits.
    """
    # LogSegment.canConvertToRelativeOffset: the index counts from the segment's base offset.
    last = segment_offset + MAX_INT
    if row.last_offset > last:
        expected = f"offsets of at most {last}, as far as its segment's index reaches,"
        raise corrupt(path, row.position, expected, str(row.last_offset), _SPLIT)
    if row.leader_epoch < NO_LEADER_EPOCH:
        expected = f"a leader epoch of {NO_LEADER_EPOCH} or more"
        raise corrupt(path, row.position, expected, str(row.leader_epoch))


def require_whole(walk: SegmentWalk, path: str) -> SegmentWalk:
    """Return the walk, or raise where its file, not the log's last, ends in a torn batch."""
    if walk.torn is None:
        return walk
    position, expected_bytes, found_bytes = walk.torn
    raise corrupt(
        path,
        position,
        f"{expected_bytes} bytes of a batch in a segment that others follow",
        f"{found_bytes}",
    )


def _check_frame(path: str, frame: Frame, max_bytes: int) -> BatchRow:
    with opening_batch(path, frame.position):
        if frame.magic == 2:
            return _check_v2(path, frame, max_bytes)
        message = read_message(frame.data)
        return legacy_row(frame.position, message, len(frame.data), max_bytes)


def _check_v2(path: str, frame: Frame, max_bytes: int) -> BatchRow:
    header = read_header(frame.data)
    found_crc = crc32c(frame.data[CRC_COVERS_FROM:])
    if found_crc != header.crc:
        expected = f"CRC-32C {header.crc:#010x}"
        raise corrupt(path, frame.position, expected, f"{found_crc:#010x}")
    if header.attributes & COMPRESSION_MASK > Codec.ZSTD:
        codec = header.attributes & COMPRESSION_MASK
        raise corrupt(path, frame.position, "codec 0 to 4", f"codec {codec}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        expected = f"0 to {header.last_offset_delta + 1} records, as its offsets allow"
        raise corrupt(path, frame.position, expected, str(header.record_count))
    if header.base_offset + header.last_offset_delta > MAX_LONG:
        expected = f"offsets of at most {MAX_LONG}"
        actual = f"{header.base_offset} + {header.last_offset_delta}"
        raise corrupt(path, frame.position, expected, actual)
    return v2_row(frame.position, header, _control_of(path, frame, header, max_bytes))


def _control_of(path: str, frame: Frame, header: BatchHeader, max_bytes: int) -> Control:
    if not header.attributes & CONTROL:
        return Control()
    try:
        return read_control(header, frame.data, max_bytes)
    except TooLargeError:
        raise
    except (IndexError, ValueError) as bad:
        raise corrupt(path, frame.position, "a control record", str(bad)) from bad
