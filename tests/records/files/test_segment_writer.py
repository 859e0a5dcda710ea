"""Batches as tables keep them, written again: the bytes that Kafka's own classes wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebbtide.records.arrays import TIMESTAMP_HEADER, VARINT_BYTES, VARLONG_BYTES, decode_varint
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from ebbtide.records.batch import HEADER, RECORD_SCHEMA
from ebbtide.records.compression import Codec
from ebbtide.records.log_directory_writer import (
    RECORD_COLUMNS,
    BatchFields,
    Record,
    StoredBatch,
    WrittenBatch,
    encode_batch,
    to_stored_batches,
    write_batch,
    write_batches,
)
from ebbtide.records.segment_reader import read_records, walk_segment
from tests.records.builders import MAX_BATCH_BYTES, T0, Row, record, record_rows, segment, walk_rows

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir())
FILE = "00000000000000000000.log"
KEPT_BITS = {0: COMPRESSION_MASK, 1: COMPRESSION_MASK | LOG_APPEND_TIME, 2: 0xFFFF}
FAR_MS = 2**62  # in no column of microseconds


def as_rows(path: str) -> Any:
    """The records of a file as an ingest puts them into a table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    end = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES).valid_bytes
    rows = pa.Table.from_batches(read_records(path, 0, end), RECORD_SCHEMA)
    event_time = pc.coalesce(rows["producer_timestamp"], rows["timestamp"])
    return rows.append_column("event_time", event_time).select(RECORD_COLUMNS)


def as_batches(path: str) -> list[StoredBatch]:
    import pyarrow as pa

    walk = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    return to_stored_batches(pa.Table.from_batches([walk.batches]))


def written_again(path: str) -> list[WrittenBatch]:
    return list(write_batches(as_batches(path), as_rows(path)))


def bytes_of(path: str) -> list[bytes]:
    data = Path(path).read_bytes()
    return [data[r["position"] : r["position"] + r["size_bytes"]] for r in walk_rows(path)]


def read(path: str) -> list[Row]:
    """All records; as in a table, where no producer's own time is known the log's stands for it."""
    rows = record_rows(path)
    for row in rows:
        producer_timestamp = row.pop("producer_timestamp")
        row["event_time"] = row["timestamp"] if producer_timestamp is None else producer_timestamp
    return rows


def told(row: Row, *but: str) -> Row:
    return {name: value for name, value in row.items() if name not in {"position", *but}}


@pytest.mark.parametrize("case", CASES)
def test_an_uncompressed_batch_has_the_bytes_that_kafka_wrote(case: str) -> None:
    path = str(GOLDEN / case / FILE)
    differing = [
        (batch, theirs.hex(), ours.hex())
        for (batch, _, ours), theirs in zip(written_again(path), bytes_of(path), strict=True)
        if batch.magic == 2 and not batch.attributes & 7 and ours != theirs
    ]
    assert not differing


@pytest.mark.parametrize("case", CASES)
def test_a_compressed_batch_has_the_header_and_the_records(case: str, tmp_path: Path) -> None:
    path = str(GOLDEN / case / FILE)
    again = segment(tmp_path, *(data for _, _, data in written_again(path)))
    theirs, ours = walk_rows(path), walk_rows(again)
    for before, after in zip(theirs, ours, strict=True):
        assert after["magic"] == 2
        if before["magic"] == 2:
            but = ("size_bytes", "crc") if before["attributes"] & 7 else ()
            assert told(after, *but) == told(before, *but)
    assert read(again) == read(path)


@pytest.mark.parametrize("case", [case for case in CASES if "magic-0" in case or "-1" in case])
def test_an_old_format_keeps_offsets_codec_and_times(case: str, tmp_path: Path) -> None:
    path = str(GOLDEN / case / FILE)
    again = segment(tmp_path, *(data for _, _, data in written_again(path)))
    same = ("base_offset", "last_offset", "record_count", "max_timestamp_ms", "producer_id")
    for before, after in zip(walk_rows(path), walk_rows(again), strict=True):
        assert [after[name] for name in same] == [before[name] for name in same]
        assert after["attributes"] == before["attributes"] & KEPT_BITS[before["magic"]]
    assert read(again) == read(path)


def deltas(batch: bytes) -> list[int]:
    """The timestamp deltas of an uncompressed batch's records, in ms."""
    offset_deltas, position = [], HEADER.size
    while position < len(batch):
        length, start = decode_varint(batch, position, VARINT_BYTES)
        offset_deltas.append(decode_varint(batch, start + 1, VARLONG_BYTES)[0])
        position = start + length
    return offset_deltas


def test_times_count_from_the_horizon_back() -> None:
    batch = StoredBatch(
        0, 1, 3, 2, DELETE_HORIZON, T0 + 1000, T0 + 1, 7, 1, 0, record_count=2
    )  # fmt: skip
    data = encode_batch(batch, [record(0, value=None), record(1, value=None)])
    assert deltas(data) == [-1000, -999]


def test_a_marker_with_a_horizon_keeps_its_time(tmp_path: Path) -> None:
    marker = StoredBatch(
        5, 5, 3, 2, CONTROL | TRANSACTIONAL | DELETE_HORIZON, T0 + 1000, T0, 7, 1, -1, 1, None,
        b"\0\0\0\1", b"\0\0\0\0\0\3",
    )  # fmt: skip
    data = encode_batch(marker, [])
    assert deltas(data) == [-1000]
    (row,) = walk_rows(segment(tmp_path, data))
    assert (row["control_type"], row["base_timestamp_ms"]) == ("COMMIT", T0 + 1000)


def test_without_its_records_a_batch_is_a_header(tmp_path: Path) -> None:
    batch = StoredBatch(
        4, 9, 3, 2, TRANSACTIONAL | DELETE_HORIZON | Codec.GZIP, T0, T0 + 5, 7, 1, 11, 6
    )  # fmt: skip
    data = encode_batch(batch, [])
    (row,) = walk_rows(segment(tmp_path, data))
    assert len(data) == 61
    assert (row["base_offset"], row["last_offset"], row["record_count"]) == (4, 9, 0)
    assert (row["attributes"], row["base_timestamp_ms"]) == (TRANSACTIONAL, -1)
    assert (row["producer_id"], row["base_sequence"], row["max_timestamp_ms"]) == (7, 11, T0 + 5)


def test_some_records_of_a_batch_keep_its_offsets(tmp_path: Path) -> None:
    path = segment(tmp_path, write_batch(BatchFields(base_offset=0), [record(i) for i in range(4)]))
    left = as_rows(path).slice(2)
    ((_, count, data),) = write_batches(as_batches(path), left)
    (tmp_path / "again").mkdir()
    again = segment(tmp_path / "again", data)
    (row,) = walk_rows(again)
    assert count == row["record_count"] == 2
    assert (row["base_offset"], row["last_offset"]) == (0, 3)
    assert [r["offset"] for r in record_rows(again)] == [2, 3]


def test_a_header_that_says_another_base_offset_is_kept(tmp_path: Path) -> None:
    batch = StoredBatch(0, 3, -1, 2, 0, T0, T0, -1, -1, -1, 1, header_base_offset=3)
    (row,) = walk_rows(segment(tmp_path, encode_batch(batch, [record(3)]), base_offset=3))
    assert (row["base_offset"], row["last_offset"]) == (3, 3)


@pytest.mark.parametrize("codec", Codec)
def test_a_time_that_no_column_holds_comes_back_from_its_header(
    tmp_path: Path, codec: Codec
) -> None:
    headers = [(b"a", b"1"), (TIMESTAMP_HEADER.encode(), b"its own, not a number")]
    records = [
        record(0, timestamp_ms=FAR_MS, headers=headers),
        record(1, timestamp_ms=-FAR_MS),
        record(2, timestamp_ms=-1, headers=[(TIMESTAMP_HEADER.encode(), b"5")]),
        record(3, timestamp_ms=T0),
    ]
    data = write_batch(BatchFields(), records, codec)
    path = segment(tmp_path, data)
    assert [r["timestamp"] for r in record_rows(path)] == [None, None, None, T0]
    ((_, _, again),) = write_batches(as_batches(path), as_rows(path))
    assert again == data


def test_a_producers_own_time_stays_where_the_broker_stamped_the_batch(tmp_path: Path) -> None:
    fields = BatchFields(attributes=LOG_APPEND_TIME, max_timestamp_ms=T0 + 500)
    data = write_batch(fields, [record(0), record(1, timestamp_ms=FAR_MS)])
    path = segment(tmp_path, data)
    (batch,) = as_batches(path)
    assert deltas(next(write_batches([batch], as_rows(path))).data)[0] == 0
    rewritten = batch._replace(crc=None)
    (after,) = write_batches([rewritten], as_rows(path))
    assert deltas(after.data) == [500, 500]  # as the cleaner writes it


def test_records_of_many_chunks_go_to_their_batches(tmp_path: Path) -> None:
    sizes = [1, 5000, 3, 9000, 1]
    batches, offset = [], 0
    for size in sizes:
        records = [Record(offset + i, T0 + i, b"k%d" % i, None) for i in range(size)]
        batches.append(write_batch(BatchFields(), records))
        offset += size
    path = segment(tmp_path, *batches)
    assert [data for _, _, data in written_again(path)] == batches
