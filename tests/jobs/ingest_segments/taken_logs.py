"""What an ingest would take of one partition's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.jobs.ingest_segments.source import (
    WALK_SCHEMA,
    FileToWalk,
    GapRule,
    HeldLog,
    SourceLog,
    read_back,
    refused_whole,
    take_log,
    walk_file,
)
from ebbtide.jobs.ingest_segments.stage import unread_segments
from ebbtide.kafka.continuation import SourceBatch
from ebbtide.records.log_directory import list_log_directory
from ebbtide.records.segment_reader import MAX_BATCH_BYTES, BatchLimits
from ebbtide.stores.store import AMBIENT
from tests.tables.partition_log import (
    Segments,
    batch,
    write_segments,
)

DELETE = GapRule(is_compacted=False, accepts_all=False)
COMPACT = GapRule(is_compacted=True, accepts_all=False)
NOTHING = HeldLog()


def take(directory: Path, held: HeldLog = NOTHING, rule: GapRule = DELETE) -> SourceLog:
    """What an ingest would take of partition 0."""
    (partition,) = list_log_directory(str(directory))
    if partition.error is not None:
        return take_log(refused_whole(partition), held, rule)
    unread = unread_segments(partition, held.state)
    rows = [
        walk_file(
            BatchLimits(MAX_BATCH_BYTES),
            AMBIENT,
            FileToWalk(0, file.path, file.base_offset, file.size_bytes, file == unread[-1]),
        ).rows
        for file in unread
    ]
    walked = pa.concat_tables([WALK_SCHEMA.empty_table(), *rows])
    first_read = unread[0].base_offset if unread else 0
    return take_log(read_back(partition, first_read, walked, {}), held, rule)


def held_after(log: SourceLog, **changes: Any) -> HeldLog:
    """The tables after `log` went into them; changes are the state's."""
    state = log.state_after(log.held.state, -1)
    assert state is not None
    names = list(SourceBatch._fields)
    rows = log.batches.select(names).to_pylist()
    last = rows[-1] if rows else log.held.last_batch
    return HeldLog(state.moved(**changes), last_batch=last)


def offsets(log: SourceLog) -> list[int]:
    base_offsets: list[int] = log.batches.column("base_offset").to_pylist()
    return base_offsets


def error_of(log: SourceLog) -> str:
    (error,) = log.errors
    assert not log.batches.num_rows
    return str(error)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Offsets 0 to 9 in two segments, and an empty active one."""
    segments: Segments = {0: [batch(0, 2), batch(2, 3)], 5: [batch(5, 5)], 10: []}
    return write_segments(tmp_path / "source", segments)
