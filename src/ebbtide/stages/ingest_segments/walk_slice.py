"""Walk as many of a log's files as one slice takes, and of a file with very many batches a part.

The rows of a slice's batches pass through the driver, and so do the descriptions of the files that
are written for its segments, so that the number of either is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.records.files.kept_batches import WantedBatches
from ebbtide.records.files.log_directory import SegmentFile
from ebbtide.stages.ingest_segments.segment_source import (
    WALK_SCHEMA,
    BatchAt,
    FileToWalk,
    WalkedFile,
)
from ebbtide.stages.ingest_segments.source_log import HeldLog

# New batches of a slice, some 150 bytes each on the driver. Files say how many bytes they have, not
# how many batches: the first ones walked tell how many a byte holds.
MAX_BATCHES = 500_000
FIRST_WALK_BYTES = 32 * 1024 * 1024  # has no more batches than that, as a header has 61 bytes
MAX_FILES = 16 * 1024  # of a slice, some 18 kB each on the driver until all are committed
FILES_AT_ONCE = 4096


class WalkedSlice(NamedTuple):
    """The batches of a slice as WALK_SCHEMA, files of which it has a part, and those that wait."""

    rows: pa.Table
    cut: Sequence[FileToWalk]
    waiting: Sequence[FileToWalk]

    @property
    def unfinished(self) -> set[int]:
        """The partitions of which there is more to walk."""
        return {file.partition for file in (*self.cut, *self.waiting)}


def files_to_walk(
    partition: int, segments: Sequence[SegmentFile], held: HeldLog, taken: Mapping[str, BatchAt]
) -> list[FileToWalk]:
    """Return a partition's files with the batches that are wanted of them.

    `taken` names the last batch that this run has taken of a file.
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
    """Walk files, which come by partition and offset, until one has new batches and no more fit.

    Beside MAX_BATCHES new ones, the batches that a killed ingest has appended come as a whole.
    After MAX_FILES the slice ends as soon as it has a new batch.
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
        # In one piece: a table of few rows takes kilobytes.
        tables.append(pa.concat_tables([WALK_SCHEMA.empty_table(), *rows]).combine_chunks())
        waiting = [*behind_cut, *waiting]
        walked_files += len(some)
        walked_bytes += sum(file.unread_bytes for file in some)
        # Three quarters of what seems to fit, as the next files may hold more batches a byte.
        budget_bytes = max(0, MAX_BATCHES - counted) * walked_bytes * 3 // (4 * max(counted, 1))
    return WalkedSlice(pa.concat_tables(tables), cut, waiting)


def _split(
    files: Sequence[FileToWalk], budget_bytes: int, most: int
) -> tuple[list[FileToWalk], list[FileToWalk]]:
    """Return the files to walk next, at least one and at most `most`, and the others.

    The files of a partition that begin below the tables' end are compared with it together.
    """
    ends = accumulate(file.unread_bytes for file in files)
    count = max(1, sum(end <= budget_bytes for end in islice(ends, most)))
    while count < len(files) and _is_held(files[count], files[count - 1].partition):
        count += 1
    return list(files[:count]), list(files[count:])


def _is_held(file: FileToWalk, partition: int) -> bool:
    return file.partition == partition and file.base_offset < file.wanted.counted_from


def _with_shares(files: Sequence[FileToWalk], room: int) -> list[FileToWalk]:
    """Let each file have its bytes' share of the room for batches, at least one."""
    total = sum(file.unread_bytes for file in files)
    return [
        file._replace(
            wanted=file.wanted._replace(at_most=max(1, room * file.unread_bytes // max(total, 1)))
        )
        for file in files
    ]


def has_new(rows: pa.Table, held: HeldLog) -> bool:
    """Return whether a partition's rows hold a batch beyond its state, or an error."""
    first = 0 if held.state is None else held.state.log_end_offset
    is_new = pc.greater_equal(rows.column("last_offset"), first)
    is_new = pc.or_kleene(is_new, pc.is_valid(rows.column("error")))
    return bool(pc.any(is_new).as_py())
