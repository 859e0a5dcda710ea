"""Segment files with what a test is about, and everything else ordinary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.records.segment_reader import read_records, walk_segment

MAX_BATCH_BYTES = 1_000_000
T0 = 1_700_000_000_000

Row = dict[str, Any]


def record(offset: int, **fields: Any) -> Record:
    """A record with a key and a value, unless the test says otherwise."""
    ordinary = {"timestamp_ms": T0 + offset, "key": b"k", "value": b"v"}
    return Record(offset, **{**ordinary, **fields})


def batch_of(*offsets: int, codec: int = 0, **fields: Any) -> bytes:
    """A v2 batch with ordinary records at the offsets."""
    return write_batch(BatchFields(**fields), [record(offset) for offset in offsets], codec)


def segment(directory: Path, *batches: bytes, base_offset: int = 0) -> str:
    """The path of a segment file with these bytes."""
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(batches))
    return str(path)


def walk_rows(path: str) -> list[Row]:
    """All batches of a file, each a dict."""
    rows: list[Row] = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES).batches.to_pylist()
    return rows


def record_rows(path: str, **options: Any) -> list[Row]:
    """All records of a file, each a dict, times in milliseconds since 1970."""
    valid_bytes = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES).valid_bytes
    rows: list[Row] = []
    for chunk in read_records(path, 0, valid_bytes, **options):
        columns = {name: chunk.column(name) for name in chunk.schema.names}
        for name in ("timestamp", "producer_timestamp"):
            columns[name] = columns[name].cast("int64")
        lists = [column.to_pylist() for column in columns.values()]
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]
    for row in rows:
        for name in ("timestamp", "producer_timestamp"):
            row[name] = None if row[name] is None else row[name] // 1000
        row["headers"] = [(header["key"], header["value"]) for header in row["headers"]]
    return rows
