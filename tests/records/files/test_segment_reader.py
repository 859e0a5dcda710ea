from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ebbtide.errors import CorruptSegmentError, OversizedBatchError, SourceError, UnavailableError
from ebbtide.records.attributes import CONTROL
from ebbtide.records.batch import BATCH_SCHEMA, HEADER
from ebbtide.records.compression import Codec
from ebbtide.records.log_directory_writer import BatchFields, with_crc, write_batch
from ebbtide.records.segment_reader import (
    TornBatch,
    read_records,
    require_whole,
    segment_base_offset,
    walk_segment,
)
from ebbtide.stores import store
from tests.records.builders import MAX_BATCH_BYTES, T0, batch_of, record, segment, walk_rows
from tests.records.test_legacy import message_set

ADVICE = "Copy the file again from its broker, or leave its topic out"


def patched(batch: bytes, at: int, replacement: bytes) -> bytes:
    return batch[:at] + replacement + batch[at + len(replacement) :]


def resealed(batch: bytes, at: int, replacement: bytes) -> bytes:
    return with_crc(patched(batch, at, replacement))


def int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def test_a_row_holds_every_header_field(tmp_path: Path) -> None:
    fields = BatchFields(
        base_offset=40,
        last_offset=49,
        leader_epoch=6,
        attributes=0x10,
        base_timestamp_ms=T0,
        max_timestamp_ms=T0 + 7,
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=17,
    )
    batch = write_batch(fields, [record(41), record(43)], 1)
    _, row = walk_rows(segment(tmp_path, batch_of(0), batch))
    assert row == {
        "position": len(batch_of(0)),
        "base_offset": 40,
        "last_offset": 49,
        "leader_epoch": 6,
        "magic": 2,
        "attributes": 0x11,
        "base_timestamp_ms": T0,
        "max_timestamp_ms": T0 + 7,
        "producer_id": 2**40,
        "producer_epoch": 3,
        "base_sequence": 17,
        "record_count": 2,
        "size_bytes": len(batch),
        "crc": int.from_bytes(batch[17:21], "big"),
        "control_type": None,
        "control_key": None,
        "control_value": None,
    }


OVERSIZED = (
    "{}: expected a batch of at most 99 bytes decompressed at position {}, found more. Set "
    "ebbtide.max.decompressed.batch.bytes higher if the batch is meant to be that large, or leave "
    "its topic out"
)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_too_large_for_the_memory_is_refused(tmp_path: Path, codec: Codec) -> None:
    small, large = (
        write_batch(BatchFields(), [record(offset, value=b"v" * size)], codec)
        for offset, size in ((0, 50), (1, 100))
    )
    path = segment(tmp_path, small, large)
    with pytest.raises(OversizedBatchError) as error:
        list(read_records(path, 0, len(small + large), max_decompressed_bytes=99))
    assert str(error.value) == OVERSIZED.format(path, len(small))


LARGE = [(0, T0, b"k", b"v" * 100)]
CONTROL_RECORD = record(0, key=b"\0\0\0\0", value=b"v" * 100)


@pytest.mark.parametrize(
    "data",
    [
        *(
            message_set(magic, codec, LARGE, 0)
            for magic in (0, 1)
            for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
        ),
        write_batch(BatchFields(attributes=CONTROL), [CONTROL_RECORD], Codec.ZSTD),
    ],
    ids=["gzip-0", "snappy-0", "lz4-0", "gzip-1", "snappy-1", "lz4-1", "marker"],
)
def test_a_wrapper_or_marker_too_large_for_the_memory_is_refused(
    tmp_path: Path, data: bytes
) -> None:
    path = segment(tmp_path, data)
    with pytest.raises(OversizedBatchError) as error:
        walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES, max_decompressed_bytes=99)
    assert str(error.value) == OVERSIZED.format(path, 0)


def test_an_offset_beyond_kafkas_largest_is_corrupt(tmp_path: Path) -> None:
    last = patched(batch_of(0, 1), 0, (2**63 - 2).to_bytes(8, "big"))
    named = {"base_offset": 2**63 - 9}
    assert walk_rows(segment(tmp_path, last, **named))[0]["last_offset"] == 2**63 - 1
    beyond = patched(last, 0, (2**63 - 1).to_bytes(8, "big"))
    with pytest.raises(
        CorruptSegmentError, match=rf"offsets of at most {2**63 - 1} at position 0, found"
    ):
        walk_rows(segment(tmp_path, beyond, **named))


def sets_of(magic: int, codec: int) -> list[bytes]:
    """Three messages, or three wrappers of two each; inner offsets of magic 1 are relative."""
    if not codec:
        return [message_set(magic, codec, [(i, T0, b"k", b"v")], i) for i in range(3)]
    starts = [0, 0, 0] if magic else [0, 2, 4]
    return [
        message_set(magic, codec, [(start + j, T0, b"k", b"v") for j in range(2)], 2 * i + 1)
        for i, start in enumerate(starts)
    ]


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([batch_of(0, 1), batch_of(2, 3), batch_of(4, 5)], id="magic 2"),
        pytest.param(
            [batch_of(2 * i, 2 * i + 1, codec=Codec.ZSTD) for i in range(3)], id="magic 2, zstd"
        ),
        *(
            pytest.param(sets_of(magic, codec), id=f"magic {magic}, codec {codec}")
            for magic in (0, 1)
            for codec in (Codec.NONE, Codec.GZIP)
        ),
    ],
)
def test_a_flipped_bit_is_seen_or_changes_what_no_crc_covers(
    tmp_path: Path, batches: list[bytes]
) -> None:
    data = b"".join(batches)
    starts = [len(b"".join(batches[:i])) for i in range(len(batches))]
    whole = walk_rows(segment(tmp_path, data))
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        start = max(start for start in starts if start <= bit // 8)
        place = bit - start * 8
        try:
            walk = walk_segment(segment(tmp_path, bytes(flipped)), max_batch_bytes=MAX_BATCH_BYTES)
        except CorruptSegmentError:
            continue
        rows = walk.batches.to_pylist()
        if walk.torn is not None:  # a length that reaches beyond the file, at just this batch
            assert walk.torn.position == start
            assert 64 <= place < 96
            assert rows == [row for row in whole if row["position"] < start]
            continue
        (changed,) = (
            {name for name in row if row[name] != before[name]}
            for row, before in zip(rows, whole, strict=True)
            if row != before
        )
        if changed == {"leader_epoch"}:
            assert 97 <= place < 128  # all but the sign
        else:
            assert changed <= {"base_offset", "last_offset"}
            assert start == starts[-1]
            assert 33 <= place < 64  # of a segment's last batch, as far as an index reaches


def test_offsets_beyond_an_index_are_for_a_broker_to_split(tmp_path: Path) -> None:
    path = segment(tmp_path, batch_of(0), batch_of(2**31))
    with pytest.raises(CorruptSegmentError) as error:
        walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    assert str(error.value) == (
        f"{path}: expected offsets of at most {2**31 - 1}, the last that the segment's index can "
        f"hold, at position {len(batch_of(0))}, found {2**31}. If its broker has the same file, "
        "start a broker of Kafka 2.0 or later on a copy of the directory without this segment's "
        ".index and .timeindex. The broker splits the segment; then ingest the copy. Else copy "
        "the file again"
    )


def test_a_name_beyond_kafkas_largest_offset_is_refused() -> None:
    assert segment_base_offset(f"{2**63 - 1:020}.log") == 2**63 - 1
    with pytest.raises(SourceError, match="expected a base offset of at most"):
        segment_base_offset("9" * 20 + ".log")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_whole_file_is_walked_to_its_end(tmp_path: Path, count: int) -> None:
    path = segment(tmp_path, *(batch_of(offset) for offset in range(count)))
    walk = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    assert walk.batches.column("base_offset").to_pylist() == list(range(count))
    assert walk.batches.schema == BATCH_SCHEMA
    assert (walk.valid_bytes, walk.torn) == (Path(path).stat().st_size, None)
    assert require_whole(walk, path) is walk


def test_a_walk_can_begin_behind_the_batches_already_held(tmp_path: Path) -> None:
    path = segment(tmp_path, batch_of(0), batch_of(1), batch_of(2))
    walk = walk_segment(path, from_position=len(batch_of(0)), max_batch_bytes=MAX_BATCH_BYTES)
    assert walk.batches.column("base_offset").to_pylist() == [1, 2]
    assert walk.batches.column("position").to_pylist() == [70, 140]


@pytest.mark.parametrize("kind", [(0, "ABORT"), (1, "COMMIT"), (6, "KRAFT_VOTERS"), (9, "9")])
def test_control_types(tmp_path: Path, kind: tuple[int, str]) -> None:
    number, name = kind
    key = b"\0\0" + number.to_bytes(2, "big")
    marker = write_batch(BatchFields(attributes=CONTROL), [record(0, key=key, value=b"\0\0")])
    (row,) = walk_rows(segment(tmp_path, marker))
    assert (row["control_type"], row["control_key"]) == (name, key)
    assert row["control_value"] == b"\0\0"


ONE = batch_of(0)
TWO = batch_of(1)


@pytest.mark.parametrize(
    ("tail", "torn"),
    [
        pytest.param(TWO[:16], TornBatch(70, 17, 16), id="less than length and magic"),
        pytest.param(TWO[:17], TornBatch(70, 70, 17), id="less than a header"),
        pytest.param(TWO[:-1], TornBatch(70, 70, 69), id="less than its length"),
        pytest.param(bytes(5), TornBatch(70, 17, 5), id="a few zeros"),
        pytest.param(bytes(3_000_000), TornBatch(70, 17, 0), id="a preallocated file's zeros"),
    ],
)
def test_a_torn_end_is_reported_and_what_is_before_it_kept(
    tmp_path: Path, tail: bytes, torn: TornBatch
) -> None:
    path = segment(tmp_path, ONE, tail)
    walk = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    assert (walk.torn, walk.valid_bytes, walk.batches.num_rows) == (torn, 70, 1)
    with pytest.raises(CorruptSegmentError) as error:
        require_whole(walk, path)
    assert str(error.value) == (
        f"{path}: expected {torn.expected_bytes} bytes of a batch in a segment that is not the "
        f"log's last at position 70, found {torn.found_bytes}. {ADVICE}"
    )


CORRUPT = [
    pytest.param(
        patched(TWO, 17, b"\0\0\0\0"),
        f"CRC-32C 0x00000000 at position 70, found 0x{TWO[17:21].hex()}",
        id="a CRC byte flipped",
    ),
    pytest.param(
        patched(TWO, 8, int32(MAX_BATCH_BYTES - 11)),
        "a batch of 61 to 1000000 bytes (the largest allowed) at position 70, found 1000001 bytes",
        id="a length beyond the largest",
    ),
    pytest.param(
        patched(TWO, 8, int32(48)),
        "a batch of 61 to 1000000 bytes (the largest allowed) at position 70, found 60 bytes",
        id="a length below a header's",
    ),
    pytest.param(
        patched(TWO, 8, int32(-1)),
        "a batch of 61 to 1000000 bytes (the largest allowed) at position 70, found 11 bytes",
        id="a negative length",
    ),
    pytest.param(
        patched(TWO, 16, b"\3"),
        "a record batch of magic 0, 1 or 2 at position 70, found magic 3",
        id="a format still unknown",
    ),
    pytest.param(
        b"This is a text file, not a log segment.",
        "a record batch of magic 0, 1 or 2 at position 70, found magic 105",
        id="a foreign file",
    ),
    pytest.param(
        bytes(20) + b"x" + bytes(9),
        "a batch of 26 to 1000000 bytes (the largest allowed) at position 70, found 12 bytes",
        id="zeros with something behind them",
    ),
    pytest.param(
        batch_of(0), "a base offset at or above 1 at position 70, found 0", id="descending offsets"
    ),
    pytest.param(
        resealed(TWO, 22, b"\5"), "codec 0 to 4 at position 70, found codec 5", id="unknown codec"
    ),
    pytest.param(
        resealed(TWO, 57, int32(2)),
        "0 to 1 records, one per offset, at position 70, found 2",
        id="more records than offsets",
    ),
    pytest.param(
        resealed(TWO, 57, int32(-1)),
        "0 to 1 records, one per offset, at position 70, found -1",
        id="a negative record count",
    ),
    pytest.param(
        resealed(TWO, 23, int32(-2)),
        "0 to -1 records, one per offset, at position 70, found 1",
        id="a last offset before the first",
    ),
    pytest.param(
        write_batch(BatchFields(attributes=CONTROL), [record(1, key=b"\0")]),
        "a control record at position 70, found a control record without a type",
        id="a control record without type",
    ),
    pytest.param(
        resealed(write_batch(BatchFields(attributes=CONTROL), [record(1)]), 65, b"\x7e"),
        "a control record at position 70, found length 63 with 4 bytes left",
        id="a control record cut off",
    ),
]


@pytest.mark.parametrize(("second", "expected"), CORRUPT)
def test_corrupt_bytes_name_file_position_expected_and_found(
    tmp_path: Path, second: bytes, expected: str
) -> None:
    path = segment(tmp_path, ONE, second)
    with pytest.raises(CorruptSegmentError) as error:
        walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    assert str(error.value) == f"{path}: expected {expected}. {ADVICE}"
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_first_offset_below_the_files_name_is_corrupt(tmp_path: Path) -> None:
    path = segment(tmp_path, batch_of(41), base_offset=42)
    with pytest.raises(
        CorruptSegmentError, match="a base offset at or above 42 at position 0, found 41"
    ):
        walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)


def test_a_file_shorter_than_what_was_read_of_it_is_corrupt(tmp_path: Path) -> None:
    path = segment(tmp_path, ONE)
    with pytest.raises(CorruptSegmentError) as error:
        walk_segment(path, from_position=71, max_batch_bytes=MAX_BATCH_BYTES)
    assert str(error.value) == (
        f"{path}: expected a batch or the end at position 71, found 70 bytes in all. {ADVICE}"
    )


def test_records_of_a_range_that_is_there_no_more_are_corrupt(tmp_path: Path) -> None:
    path = segment(tmp_path, ONE, TWO[:30])
    with pytest.raises(CorruptSegmentError) as error:
        list(read_records(path, 0, 140))
    assert str(error.value) == (
        f"{path}: expected the batch that was read here before at position 70, "
        f"found 30 of 70 bytes. {ADVICE}"
    )


def test_a_file_that_vanished_since_it_was_listed_is_a_passing_fault(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="List the directory again"):
        walk_segment(str(tmp_path / f"{0:020d}.log"), max_batch_bytes=MAX_BATCH_BYTES)


@pytest.mark.parametrize("name", ["1.log", f"{0:020d}.log.deleted", f"{0:020d}.index", "x.log"])
def test_only_segment_names_are_walked(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=f"20 digits and .log, found {name}"):
        segment_base_offset(str(tmp_path / name))


def test_batches_are_read_across_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segment(tmp_path, *(batch_of(offset) for offset in range(50)))
    monkeypatch.setattr(store, "WINDOW_BYTES", 100)
    walk = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    chunks = list(read_records(path, 0, walk.valid_bytes))
    assert walk.batches.num_rows == sum(chunk.num_rows for chunk in chunks) == 50
    assert HEADER.size == 61
