"""Kafka's segment files, written from batches and read back as a `Log`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from ebbtide.records.attributes import CONTROL, TRANSACTIONAL
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.records.segment_reader import read_records, segment_base_offset, walk_segment
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState
from tests.log.plain_cleaner import Log, open_transactions, truncate

MAX_BATCH_BYTES = 1 << 20
MARKER_TYPES = {ABORT: 0, COMMIT: 1}

Segments = Mapping[int, Sequence[bytes]]


def data_batch(
    offset: int,
    *records: tuple[str | None, str | None],
    at_ms: int,
    codec: int = 0,
    **fields: Any,
) -> bytes:
    """A data batch with (key, value) at consecutive offsets, one millisecond apart."""
    written = [
        Record(offset + i, at_ms + i, encoded(key), encoded(value))
        for i, (key, value) in enumerate(records)
    ]
    return write_batch(BatchFields(**fields), written, codec)


def encoded(text: str | None) -> bytes | None:
    """UTF-8, null kept."""
    return None if text is None else text.encode()


def transactional(offset: int, key: str, *, producer: int, at_ms: int, epoch: int = 0) -> bytes:
    """A batch of one record in a transaction."""
    return data_batch(
        offset,
        (key, "v"),
        at_ms=at_ms,
        attributes=TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=0,
    )


def marker(offset: int, kind: str, *, producer: int, at_ms: int, epoch: int = 0) -> bytes:
    """A transaction marker, by a coordinator of epoch 0."""
    key = b"\0\0" + MARKER_TYPES[kind].to_bytes(2, "big")
    fields = BatchFields(
        attributes=TRANSACTIONAL | CONTROL, producer_id=producer, producer_epoch=epoch
    )
    return write_batch(fields, [Record(offset, at_ms, key, bytes(6))])


def write_log(directory: Path, segments: Segments) -> Path:
    """A directory with the segment files of these base offsets."""
    directory.mkdir(parents=True)
    for base_offset, batches in segments.items():
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
    return directory


def read_log(directory: Path, modified_ms: int, *, log_start_offset: int = 0) -> Log:
    """All of a partition's directory; every file was last modified at `modified_ms`."""
    paths = [str(path) for path in sorted(directory.glob("*.log"))]
    files = [(segment_base_offset(path), modified_ms, list(read_segment(path))) for path in paths]
    return truncate(grow(empty_log(files[0][0]), files), log_start_offset)


def empty_log(first_offset: int) -> Log:
    """A log that begins there."""
    state = PartitionState(
        log_start_offset=first_offset,
        log_end_offset=first_offset,
        first_dirty_offset=first_offset,
        first_unmarked_offset=first_offset,
        segments=(SegmentStart(first_offset, -1),),
    )
    return Log(batches=(), records={}, state=state)


# Base offset, modified ms, and what is new in it.
Grown = tuple[int, int, Sequence[tuple[Batch, Sequence[Record]]]]


def grow(log: Log, files: Sequence[Grown]) -> Log:
    """The log with what is new of each segment of its source."""
    batches, records = list(log.batches), dict(log.records)
    transactions = open_transactions(log)
    for batch, written in (new for *_, content in files for new in content):
        batches.append(batch._replace(txn_first_offset=transactions.append(batch)))
        records[batch.base_offset] = written
    segments = grown_segments(
        log.state,
        [(base, modified_ms) for base, modified_ms, _ in files],
        has_new=len(batches) > len(log.batches),
    )
    end = max(
        log.state.log_end_offset, segments[-1].base_offset, *(b.next_offset for b in batches[-1:])
    )
    state = log.state.moved(log_end_offset=end, first_unmarked_offset=end, segments=segments)
    return replace(log, batches=tuple(batches), records=records, state=state)


def grown_segments(
    state: PartitionState, files: Sequence[tuple[int, int]], *, has_new: bool
) -> tuple[SegmentStart, ...]:
    """The segments, the active one as the source has it by now, and those that it began."""
    base, active_ms = state.segments[-1]
    for found_base, modified_ms in files:
        if found_base == base or (found_base < base and has_new):
            active_ms = modified_ms
    first = max(base + 1, state.log_end_offset)
    begun = [SegmentStart(*segment) for segment in files if segment[0] >= first]
    return (*state.segments[:-1], SegmentStart(base, active_ms), *begun)


def read_segment(path: str) -> Iterator[tuple[Batch, list[Record]]]:
    """Every batch of a file with its records."""
    walk = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    records: dict[int, list[Record]] = {}
    for chunk in read_records(path, 0, walk.valid_bytes):
        for row in chunk.to_pylist():
            records.setdefault(row["batch"], []).append(record_of(row))
    for row in walk.batches.to_pylist():
        batch = batch_of(row)
        control = control_records(row) if batch.is_control else None
        yield batch, control if control is not None else records.get(batch.base_offset, [])


def batch_of(row: Mapping[str, Any]) -> Batch:
    """A walked row as a header."""
    return Batch(**{name: row[name] for name in Batch._fields if name in row})


def control_records(row: Mapping[str, Any]) -> list[Record]:
    """The record of a control batch that is not emptied."""
    if row["control_type"] is None:
        return []
    at_ms = row["max_timestamp_ms"]
    return [Record(row["base_offset"], at_ms, row["control_key"], row["control_value"])]


def record_of(row: Mapping[str, Any]) -> Record:
    """A decoded row as the writer takes it."""
    at = row["timestamp"]
    return Record(
        row["offset"],
        -1 if at is None else round(at.timestamp() * 1000),
        row["key"],
        row["value"],
        tuple((header["key"].encode(), header["value"]) for header in row["headers"]),
        row["attributes"],
    )
