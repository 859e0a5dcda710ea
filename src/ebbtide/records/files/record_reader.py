"""Read the records of a byte range of a segment file, whose batches were checked before.

Source: Kafka's `DefaultRecordBatch` and `AbstractLegacyRecordBatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from ebbtide.records.attributes import COMPRESSION_MASK, CONTROL
from ebbtide.records.batch import HEADER, corrupt, read_header
from ebbtide.records.batch_runs import BatchRun, find_run
from ebbtide.records.compression import Codec, decompress
from ebbtide.records.decoding.record_columns import (
    LegacyBatch,
    decode_bodies,
    decode_records,
    decode_run,
)
from ebbtide.records.decoding.record_places import V2Batch
from ebbtide.records.files.batch_frames import Frame, TornBatch, read_frame
from ebbtide.records.legacy import opening_batch, read_legacy_records, read_message
from ebbtide.records.limits import MAX_DECOMPRESSED_BYTES
from ebbtide.stores.file_reader import FileReader
from ebbtide.stores.store import AMBIENT, Store

# Larger chunks are no faster and leave the processor's caches (benchmarks/read_segments.py).
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

    The range must begin and end at batches that `walk_segment` found good: their CRC is not
    computed again. Batches whose base offset is below `first_offset` are left out.
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
    """Yield the records of a run of data batches, of which some may be compressed.

    Together they take little more than CHUNK_BYTES, however well they were compressed.
    """
    codecs = run.column("attributes") & COMPRESSION_MASK
    if not codecs.any():
        yield decode_run(path, run)
        return
    bodies: list[bytes | memoryview] = []
    first = size_bytes = 0
    ends = run.starts + run.sizes
    spans = zip(*(of.tolist() for of in (run.starts, ends, codecs)), strict=True)
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
    opens: Callable[[Frame], V2Batch | LegacyBatch | None],
    store: Store,
) -> Iterator[V2Batch | LegacyBatch | BatchRun]:
    """Yield old batches, and few that lie together, one by one, and the others in runs."""
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
                raise corrupt(path, position, "the batch that was found here before", actual)
            batch = opens(frame)
            if batch is not None:
                yield batch
            position += len(frame.data)


def _open_frame(
    path: str, first_offset: int, max_bytes: int, frame: Frame
) -> V2Batch | LegacyBatch | None:
    """Return a data batch with its records decompressed; None for a control or empty batch.

    None also for one of magic 2 below `first_offset`; an old one must be opened to tell.
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
    """Return the records of a v2 batch."""
    return data if codec == Codec.NONE else decompress(codec, data, magic=2, max_bytes=max_bytes)
