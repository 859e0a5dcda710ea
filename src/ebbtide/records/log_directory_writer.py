"""Write a log directory as a broker reads it: batches, segment files, checkpoints, manifest.

Source: Kafka's `CheckpointFile`, `LeaderEpochCheckpointFile`, `PartitionMetadataFile` and
`LogManager`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs
from crc32c import crc32c

from ebbtide.errors import RequestError, UnavailableError
from ebbtide.json_text import parse_json
from ebbtide.records.arrays import Int64s, encode_varint, ms_in_header, to_ms
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from ebbtide.records.batch import (
    CRC_COVERS_FROM,
    CRC_START,
    HEADER,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
)
from ebbtide.records.compression import Codec, compress
from ebbtide.records.decoding import HeaderPairs, with_own_keys
from ebbtide.records.log_directory import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    MANIFEST,
    PARTITION_METADATA,
    PartitionDirectory,
)
from ebbtide.records.segment_reader import SEGMENT_NAME
from ebbtide.stores.store import AMBIENT, file_name, is_object_store, join, split_query

# Writing record batches of magic 2.
#
# Source: Kafka's `MemoryRecordsBuilder`, `DefaultRecordBatch` and `DefaultRecord`.


class Record(NamedTuple):
    """One record to write."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    attributes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFields:
    """The header fields that the records do not determine; None: derived from the records."""

    base_offset: int | None = None
    last_offset: int | None = None
    leader_epoch: int = 0
    attributes: int = 0  # without the codec
    base_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE


def write_batch(fields: BatchFields, records: Sequence[Record], codec: int = Codec.NONE) -> bytes:
    """Return one batch; without records, `fields` must have base and last offset."""
    base_offset = records[0].offset if fields.base_offset is None else fields.base_offset
    last_offset = records[-1].offset if fields.last_offset is None else fields.last_offset
    times = [record.timestamp_ms for record in records] or [NO_TIMESTAMP]
    base_ms = times[0] if fields.base_timestamp_ms is None else fields.base_timestamp_ms
    body = b"".join(_encode_record(record, base_offset, base_ms) for record in records)
    body = compress(codec, body) if records else b""
    header = BatchHeader(
        base_offset=base_offset,
        length=HEADER.size - LOG_OVERHEAD_BYTES + len(body),
        leader_epoch=fields.leader_epoch,
        magic=2,
        crc=0,
        attributes=fields.attributes & ~COMPRESSION_MASK | codec,
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=(
            max(times) if fields.max_timestamp_ms is None else fields.max_timestamp_ms
        ),
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        base_sequence=fields.base_sequence,
        record_count=len(records),
    )
    return with_crc(HEADER.pack(*header) + body)


def with_crc(batch: bytes) -> bytes:
    """Return the batch with the CRC-32C of its bytes."""
    crc = crc32c(batch[CRC_COVERS_FROM:]).to_bytes(4, "big")
    return batch[:CRC_START] + crc + batch[CRC_COVERS_FROM:]


def _encode_record(record: Record, base_offset: int, base_timestamp_ms: int) -> bytes:
    parts = [
        bytes([record.attributes]),
        encode_varint(_as_long(record.timestamp_ms - base_timestamp_ms)),
        encode_varint(record.offset - base_offset),
        _encode_bytes(record.key),
        _encode_bytes(record.value),
        encode_varint(len(record.headers)),
    ]
    for name, content in record.headers:
        parts += [_encode_bytes(name), _encode_bytes(content)]
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _as_long(value: int) -> int:
    """Return the value as a Java long, which drops the upper bits of a larger number."""
    return (value + 2**63) % 2**64 - 2**63


def _encode_bytes(value: bytes | None) -> bytes:
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


# Encode a table's batches and their records as the bytes of a segment file, always in magic 2.
#
# A batch of magic 0 or 1 becomes one of magic 2 with the same offsets, records, codec and times.
# Source: KIP-534 and Kafka's `DefaultRecordBatch`, `MemoryRecords.filterTo`.


# The columns of a records table that are written.
RECORD_COLUMNS = (
    *("offset", "batch", "timestamp", "event_time"),
    *("key", "value", "headers", "attributes"),
)
# Number of records that are Python objects at a time, besides those of one batch.
ROWS_AT_ONCE = 4096


class StoredBatch(NamedTuple):
    """The columns of a batches table that are written; times in ms since the epoch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    crc: int | None = None  # null once a round rewrote the batch
    control_key: bytes | None = None
    control_value: bytes | None = None
    header_base_offset: int | None = None  # None: `base_offset`

    @property
    def is_control(self) -> bool:
        """True if the batch has a control record, such as a transaction marker."""
        return bool(self.attributes & CONTROL) and self.magic == 2

    @property
    def has_producer_times(self) -> bool:
        """True if the records' timestamp deltas are the producer's, although the broker stamped it.

        Kafka leaves the deltas unchanged when the broker stamps a batch, until the cleaner rewrites
        it.
        """
        return bool(self.attributes & LOG_APPEND_TIME) and self.crc is not None


class WrittenBatch(NamedTuple):
    """A batch, the number of its retained records, and its bytes."""

    batch: StoredBatch
    record_count: int
    data: bytes


def to_stored_batches(rows: pa.Table) -> list[StoredBatch]:
    """Read rows of a batches table; columns that were added to StoredBatch later may be missing."""
    names = [name for name in StoredBatch._fields if name in rows.column_names]
    # Rows of a live topic have no epoch: Spark's Kafka source does not return it.
    unknown = rows["leader_epoch"].fill_null(NO_LEADER_EPOCH)
    rows = rows.set_column(rows.schema.get_field_index("leader_epoch"), "leader_epoch", unknown)
    columns = [rows[name].to_pylist() for name in names]
    return [StoredBatch(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def write_batches(batches: Sequence[StoredBatch], rows: pa.Table) -> Iterator[WrittenBatch]:
    """Yield each batch with its records in `rows` (RECORD_COLUMNS, in offset order)."""
    records = _to_records(rows, _times_ms(batches, rows))
    bases, counts = np.unique(rows["batch"].to_numpy(), return_counts=True)
    held = dict(zip(bases.tolist(), counts.tolist(), strict=True))
    for batch in batches:
        left = list(islice(records, held.get(batch.base_offset, 0)))
        yield WrittenBatch(batch, len(left), encode_batch(batch, left))


def encode_batch(batch: StoredBatch, records: Sequence[Record]) -> bytes:
    """Encode a batch with `records`, which may be fewer than its count.

    A control batch has its own record. A batch that lost all its records is encoded as Kafka does:
    as a header alone.
    """
    if batch.is_control and batch.record_count:
        records = [_control_record(batch)]
    attributes, base_timestamp_ms = batch.attributes, batch.base_timestamp_ms
    if batch.record_count and not records:
        attributes &= ~(COMPRESSION_MASK | DELETE_HORIZON)
        base_timestamp_ms = NO_TIMESTAMP
    if batch.magic < 2:
        attributes &= COMPRESSION_MASK | (LOG_APPEND_TIME if batch.magic == 1 else 0)
        base_timestamp_ms = records[0].timestamp_ms if records else NO_TIMESTAMP
    fields = BatchFields(
        base_offset=_written_base_offset(batch),
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
    return write_batch(fields, records, attributes & COMPRESSION_MASK)


def _written_base_offset(batch: StoredBatch) -> int:
    return batch.base_offset if batch.header_base_offset is None else batch.header_base_offset


def _control_record(batch: StoredBatch) -> Record:
    offset = _written_base_offset(batch)
    return Record(offset, batch.max_timestamp_ms, batch.control_key, batch.control_value)


def _times_ms(batches: Sequence[StoredBatch], rows: pa.Table) -> Int64s:
    """Return the time that each record's delta encodes, or -1 if no column has it."""
    timestamp_ms = to_ms(rows["timestamp"])
    producer_timed = [batch.base_offset for batch in batches if batch.has_producer_times]
    if not producer_timed:
        return timestamp_ms
    is_own = np.isin(rows["batch"].to_numpy(), producer_timed)
    return np.where(is_own, to_ms(rows["event_time"]), timestamp_ms)


def _to_records(rows: pa.Table, times_ms: Int64s) -> Iterator[Record]:
    for start in range(0, rows.num_rows, ROWS_AT_ONCE):
        chunk = rows.slice(start, ROWS_AT_ONCE)
        times = times_ms[start : start + ROWS_AT_ONCE].tolist()
        names = ("offset", "key", "value", "attributes", "headers", "timestamp")
        columns = [_values(chunk, name) for name in names]
        for offset, key, value, attributes, headers, is_timed, time_ms in zip(
            *columns, times, strict=True
        ):
            if not is_timed:
                headers, time_ms = without_kept_time(headers, time_ms)
            yield Record(offset, time_ms, key, value, with_own_keys(headers), attributes)


def _values(chunk: pa.Table, name: str) -> list[Any]:
    if name == "headers":
        return [header_pairs(headers) for headers in chunk[name].to_pylist()]
    if name == "timestamp":
        return list(chunk[name].is_valid().to_pylist())
    return list(chunk[name].to_pylist())


def header_pairs(headers: Sequence[Mapping[str, Any]] | None) -> HeaderPairs:
    """Return a record's headers in the form in which they are written."""
    return [(header["key"].encode(), header["value"]) for header in headers or ()]


def without_kept_time(headers: HeaderPairs, time_ms: int) -> tuple[HeaderPairs, int]:
    """Remove the header that ingest adds for a timestamp that does not fit into a column."""
    kept_ms = ms_in_header(*headers[-1]) if headers else None
    if kept_ms is None:
        return headers, time_ms
    return headers[:-1], kept_ms if time_ms == NO_TIMESTAMP else time_ms


LEADER_EPOCHS = "leader-epoch-checkpoint"
# Suffix of the target's name until all files are written: one rename then completes it.
UNFINISHED = ".unfinished"
BUFFER_BYTES = 1024 * 1024

Epochs = tuple[tuple[int, int], ...]  # (leader epoch, start offset)


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def segment_name(base_offset: int) -> str:
    """Return the name of the segment file with a base offset."""
    return f"{base_offset:020}.log"


def next_epochs(epochs: Epochs, epoch: int, base_offset: int) -> Epochs:
    """Return the leader epochs after one more batch: each larger epoch starts with its first batch.

    A broker finds the epochs this way when it recovers a log.
    """
    if epoch < 0 or (epochs and epoch <= epochs[-1][0]):
        return epochs
    return (*epochs, (epoch, base_offset))


def epochs_from(epochs: Epochs, log_start_offset: int) -> Epochs:
    """Return the epochs of a log that starts at an offset; that offset's epoch starts there."""
    before = [epoch for epoch, start in epochs if start <= log_start_offset]
    after = tuple((epoch, start) for epoch, start in epochs if start > log_start_offset)
    return ((before[-1], log_start_offset), *after) if before else after


def read_export(uri: str) -> dict[str, Any] | None:
    """Read an export's description from the manifest at `uri`, or return None without one."""
    file_system, path = _resolve_target(join(uri, MANIFEST))
    try:
        with file_system.open_input_stream(path, compression=None) as stream:
            export = parse_json(stream.read()).get("export")
    except (FileNotFoundError, NotADirectoryError, AttributeError, ValueError):
        return None
    return export if isinstance(export, dict) else None


def _resolve_target(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    file_system, path = AMBIENT.resolve(uri)
    if is_object_store(file_system):
        raise RequestError(
            "expected a target on a file system that renames a directory in one step, found "
            f"{file_system.type_name} for {uri}. Export to a local or HDFS directory, then copy it"
        )
    return file_system, path


def check_target(uri: str) -> None:
    """Raise RequestError unless `uri` is an empty directory or does not exist."""
    file_system, path = _resolve_target(uri)
    file_info = file_system.get_file_info(path)
    if file_info.type is pyarrow.fs.FileType.NotFound:
        return
    names: list[str] = []
    if file_info.type is pyarrow.fs.FileType.Directory:
        names = _names(file_system, path)
        if not names:
            return
    what = f"{len(names)} entries, such as {sorted(names)[0]}" if names else "a file"
    raise RequestError(
        f"expected a target that is empty or does not exist, found {what} in {uri}. Name another "
        "directory, or empty this one"
    )


def _names(file_system: pyarrow.fs.FileSystem, path: str) -> list[str]:
    return [str(f.base_name) for f in file_system.get_file_info(pyarrow.fs.FileSelector(path))]


def unfinished(target: str) -> str:
    """Return the path of a target's files until all are written."""
    base, query = split_query(target)
    return base.rstrip("/") + UNFINISHED + query


def begin_log_directory(target: str, partitions: Iterable[tuple[str, int]]) -> str:
    """Create an empty log directory with the partitions' directories, and return its path.

    An unfinished directory of an earlier export is deleted.
    """
    uri = unfinished(target)
    file_system, path = AMBIENT.resolve(uri)
    if file_system.get_file_info(path).type is not pyarrow.fs.FileType.NotFound:
        file_system.delete_dir(path)
    for topic, partition in partitions:
        file_system.create_dir(
            AMBIENT.resolve(join(uri, partition_name(topic, partition)))[1], recursive=True
        )
    return uri


def open_segment(uri: str) -> pyarrow.NativeFile:
    """Return a stream to a new segment file."""
    file_system, path = AMBIENT.resolve(uri)
    return file_system.open_output_stream(path, compression=None, buffer_size=BUFFER_BYTES)


def set_modified(uri: str, modified_ms: int) -> None:
    """Set a file's modification time if it is local; the manifest has the time too."""
    file_system, path = AMBIENT.resolve(uri)
    if isinstance(file_system, pyarrow.fs.LocalFileSystem):
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def write_beside_segments(
    uri: str,
    directories: Sequence[PartitionDirectory],
    epochs: Mapping[int, Epochs],
    manifest: Mapping[str, Any],
) -> None:
    """Write the files of a log directory other than segments: checkpoints, metadata, manifest.

    `epochs` are by partition. There are no recovery points and no marker of a clean shutdown. So a
    broker checks every batch, and builds indexes and producer state from the batches.
    """
    texts = _checkpoints(directories)
    for directory in directories:
        name = partition_name(directory.topic, directory.partition)
        lines = [f"{epoch} {start}" for epoch, start in epochs[directory.partition]]
        texts[name, LEADER_EPOCHS] = _counted(lines)
        if directory.topic_id is not None:
            texts[name, PARTITION_METADATA] = f"version: 0\ntopic_id: {directory.topic_id}"
    about = {"files": _about_files(directories), **manifest}
    texts[(MANIFEST,)] = json.dumps(about, indent=1) + "\n"
    for names, text in texts.items():
        with open_segment(join(uri, *names)) as stream:
            stream.write(text.encode())


def _checkpoints(directories: Sequence[PartitionDirectory]) -> dict[tuple[str, ...], str]:
    high_watermarks, log_start_offsets = [], []
    for directory in directories:
        key = f"{directory.topic} {directory.partition}"
        high_watermarks.append(f"{key} {directory.high_watermark or 0}")
        # As a broker does: only if the first segment's name has another offset.
        if (directory.log_start_offset or 0) > directory.segments[0].base_offset:
            log_start_offsets.append(f"{key} {directory.log_start_offset}")
    return {
        (HIGH_WATERMARKS,): _counted(high_watermarks),
        (LOG_START_OFFSETS,): _counted(log_start_offsets),
    }


def _counted(lines: Sequence[str]) -> str:
    return "\n".join(["0", str(len(lines)), *lines]) + "\n"


def _about_files(directories: Sequence[PartitionDirectory]) -> dict[str, dict[str, int]]:
    return {
        f"{partition_name(directory.topic, directory.partition)}/{file_name(segment.path)}": {
            "modified_ms": segment.modified_ms,
            "size_bytes": segment.size_bytes,
        }
        for directory in directories
        for segment in directory.segments
    }


def finish_log_directory(target: str, directories: Sequence[PartitionDirectory]) -> None:
    """Rename the unfinished directory to the target, if it has exactly these segment files."""
    uri = unfinished(target)
    _check_segments(uri, directories)
    check_target(target)
    file_system, path = AMBIENT.resolve(uri)
    _, whole = AMBIENT.resolve(target)
    if file_system.get_file_info(whole).type is not pyarrow.fs.FileType.NotFound:
        file_system.delete_dir(whole)
    file_system.move(path, whole)


def _check_segments(uri: str, directories: Sequence[PartitionDirectory]) -> None:
    file_system, path = AMBIENT.resolve(uri)
    expected = {
        AMBIENT.resolve(segment.path)[1]: segment.size_bytes
        for directory in directories
        for segment in directory.segments
    }
    selected = pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)
    sizes = {
        info.path: info.size
        for info in file_system.get_file_info(selected)
        if SEGMENT_NAME.fullmatch(info.base_name)
    }
    if sizes != expected:
        odd = min(set(sizes.items()) ^ set(expected.items()))[0]
        raise UnavailableError(
            f"expected the {len(expected)} segment files that this job wrote in {uri}, found "
            f"{len(sizes)}, and a difference in {odd}: another process writes there. Run again "
            "when that process has ended"
        )
