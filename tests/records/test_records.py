from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import CorruptSegmentError
from ebbtide.records.arrays import payload_size
from ebbtide.records.attributes import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME
from ebbtide.records.batch import HEADER, RECORD_SCHEMA
from ebbtide.records.compression import Codec
from ebbtide.records.decoding import with_own_keys
from ebbtide.records.log_directory_writer import BatchFields, Record, with_crc, write_batch
from ebbtide.records.segment_reader import read_records
from tests.records.builders import T0, batch_of, record, record_rows, segment

MAX_MS = (2**63 - 1) // 1000

BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=40), BYTES), max_size=4)
RECORDS = st.lists(
    st.tuples(
        st.integers(1, 200),  # offset after the one before
        st.just(-1) | st.integers(0, 2**42),
        BYTES,
        BYTES,
        HEADERS,
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=20,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@given(st.lists(st.tuples(RECORDS, st.sampled_from(Codec)), min_size=1, max_size=4), st.data())
def test_what_is_written_is_read(
    directory: Path, batches: list[tuple[list[tuple], Codec]], data: st.DataObject
) -> None:
    offset = -1
    encoded, expected = [], []
    for drawn, codec in batches:
        first = offset + 1
        records = []
        for step, timestamp_ms, key, value, headers, attributes in drawn:
            offset += step
            names = [(name.encode(), content) for name, content in headers]
            records.append(Record(offset, timestamp_ms, key, value, names, attributes))
            expected.append(
                {
                    "offset": offset,
                    "batch": first,
                    "timestamp": None if timestamp_ms == -1 else timestamp_ms,
                    "key": key,
                    "value": value,
                    "headers": headers,
                    "attributes": attributes,
                    "size_bytes": payload_size(key, value, names),
                }
            )
        encoded.append(write_batch(BatchFields(base_offset=first), records, codec))
    path = segment(directory, *encoded)
    rows_per_chunk = data.draw(st.integers(1, 50))
    rows = record_rows(path, rows_per_chunk=rows_per_chunk)
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected


@pytest.mark.parametrize("empty_or_null", [b"", None])
@pytest.mark.parametrize("codec", list(Codec))
def test_null_and_empty_differ_everywhere(
    tmp_path: Path, codec: Codec, empty_or_null: bytes | None
) -> None:
    fields = {"key": empty_or_null, "value": empty_or_null, "headers": [(b"h", empty_or_null)]}
    path = segment(tmp_path, write_batch(BatchFields(), [record(0, **fields)], codec))
    (row,) = record_rows(path)
    assert (row["key"], row["value"]) == (empty_or_null, empty_or_null)
    assert row["headers"] == [("h", empty_or_null)]


@pytest.mark.parametrize(
    ("fields", "times", "expected"),
    [
        pytest.param({}, [T0, T0 - 5], [(T0, T0), (T0 - 5, T0 - 5)], id="create time"),
        pytest.param(
            {"attributes": LOG_APPEND_TIME, "max_timestamp_ms": T0 + 9},
            [T0, T0 - 5],
            [(T0 + 9, T0), (T0 + 9, T0 - 5)],
            id="append time; the producer's is kept",
        ),
        pytest.param({}, [-1, -1], [(None, None), (None, None)], id="no timestamps"),
        pytest.param({}, [-1, 5], [(None, None), (5, None)], id="a base timestamp of -1"),
        pytest.param({}, [5, -1], [(5, 5), (None, None)], id="one record without timestamp"),
        pytest.param(
            {"attributes": DELETE_HORIZON, "base_timestamp_ms": T0 + 86_400_000},
            [T0, T0 - 5],
            [(T0, T0), (T0 - 5, T0 - 5)],
            id="horizon as base timestamp, negative deltas",
        ),
        pytest.param(
            {"attributes": LOG_APPEND_TIME, "max_timestamp_ms": T0, "base_timestamp_ms": -1},
            [3, 4],
            [(T0, None), (T0, None)],
            id="append time without a base timestamp",
        ),
    ],
)
def test_timestamps(
    tmp_path: Path, fields: dict[str, int], times: list[int], expected: list[tuple[int, int]]
) -> None:
    records = [record(offset, timestamp_ms=ms) for offset, ms in enumerate(times)]
    rows = record_rows(segment(tmp_path, write_batch(BatchFields(**fields), records)))
    assert [(row["timestamp"], row["producer_timestamp"]) for row in rows] == expected


@pytest.mark.parametrize(
    ("timestamp_ms", "is_kept"),
    [(MAX_MS, True), (MAX_MS + 1, False), (-MAX_MS, True), (-MAX_MS - 1, False), (-(2**63), False)],
)
def test_a_timestamp_no_column_holds_goes_to_a_header(
    tmp_path: Path, timestamp_ms: int, is_kept: bool
) -> None:
    headers_of_record = [(b"ebbtide.timestamp", b"own")]
    records = [
        record(0),
        record(1, timestamp_ms=timestamp_ms, headers=headers_of_record),
        record(2),
    ]
    path = segment(tmp_path, write_batch(BatchFields(base_timestamp_ms=0), records))
    rows = record_rows(path)
    kept = [] if is_kept else [("ebbtide.timestamp", str(timestamp_ms).encode())]
    assert rows[1]["timestamp"] == (timestamp_ms if is_kept else None)
    assert rows[1]["producer_timestamp"] == rows[1]["timestamp"]
    assert rows[1]["headers"] == [("ebbtide.timestamp", b"own"), *kept]
    assert rows[1]["size_bytes"] == payload_size(b"k", b"v", headers_of_record)
    assert [row["headers"] for row in (rows[0], rows[2])] == [[], []]


def test_control_and_empty_batches_have_no_records(tmp_path: Path) -> None:
    empty = write_batch(BatchFields(base_offset=5, last_offset=9), [])
    marker = write_batch(BatchFields(attributes=CONTROL), [record(10, key=b"\0\0\0\1")])
    path = segment(tmp_path, batch_of(0, 1), empty, marker, batch_of(11))
    assert [row["offset"] for row in record_rows(path)] == [0, 1, 11]


@pytest.mark.parametrize(
    ("first_offset", "offsets"), [(0, [0, 1, 4, 5]), (3, [4, 5]), (4, [5]), (6, [])]
)
def test_batches_that_begin_before_first_offset_are_left_out(
    tmp_path: Path, first_offset: int, offsets: list[int]
) -> None:
    astride = write_batch(BatchFields(base_offset=3), [record(4)])
    path = segment(tmp_path, batch_of(0, 1), astride, batch_of(5))
    assert [row["offset"] for row in record_rows(path, first_offset=first_offset)] == offsets


def test_a_byte_range_gives_its_batches_in_chunks_of_the_schema(tmp_path: Path) -> None:
    first, second, third = batch_of(0, 1), batch_of(2, 3, 4), batch_of(5)
    path = segment(tmp_path, first, second, third)
    stop = len(first) + len(second)
    chunks = list(read_records(path, len(first), stop, rows_per_chunk=2))
    assert [chunk.column("offset").to_pylist() for chunk in chunks] == [[2, 3], [4]]
    assert all(chunk.schema == RECORD_SCHEMA for chunk in chunks)


def rewrite(batch: bytes, **changes: bytes) -> bytes:
    """The batch with bytes replaced at places counted from its records, and the CRC right again."""
    size = len(batch)
    for place, replacement in changes.items():
        at = HEADER.size + int(place.removeprefix("at_"))
        batch = batch[:at] + replacement + batch[at + len(replacement) :]
    return with_crc(batch[:size])


# Its one record: length, attributes, timestamp and offset delta, 1 k, 1 v, header count.
ONE = batch_of(0)
assert ONE[HEADER.size :] == bytes.fromhex("10 00 00 00 02 6b 02 76 00")

MALFORMED = [
    (
        {"at_0": b"\x7e"},
        "1 records in 9 bytes at position 0, found 0 in 0",
        "length beyond the batch",
    ),
    ({"at_0": b"\x0e"}, "1 records in 9 bytes at position 0, found 1 in 8", "bytes left over"),
    ({"at_0": b"\x01"}, "1 records in 9 bytes at position 0, found 0 in 0", "negative length"),
    (
        {"at_0": b"\xff\xff\xff\xff\xff\xff"},
        "1 records in 9 bytes at position 0, found 0 in 0",
        "length without end",
    ),
    (
        {"at_4": b"\x7e"},
        "a key and value within the record's length in record 0 of the batch at position 0, "
        "found 63",
        "key beyond the record",
    ),
    (
        {"at_8": b"\x04"},
        "2 headers within the record's length in record 0 of the batch at position 0, found 0",
        "headers beyond the record",
    ),
    (
        {"at_8": b"\x01"},
        "a count of headers in record 0 of the batch at position 0, found -1",
        "negative header count",
    ),
    (
        {"at_3": b"\x02"},
        "an offset in the batch's range in record 0 of the batch at position 0, found 1",
        "offset beyond the batch",
    ),
    (
        {"at_6": b"\x00"},
        "59 headers within the record's length in record 0 of the batch at position 0, found 0",
        "value shorter than said",
    ),
    (
        {"at_6": b"\x01\x00"},
        "fields that fill the record's length in record 0 of the batch at position 0, found 7",
        "fields shorter than the record",
    ),
    (
        {"at_2": b"\xff\xff\xff\xff\xff\xff\xff"},
        "numbers within the record's length in record 0 of the batch at position 0, found 9",
        "delta beyond the record",
    ),
]


@pytest.mark.parametrize(
    ("changes", "expected"), [pytest.param(*case[:2], id=case[2]) for case in MALFORMED]
)
def test_malformed_records_name_file_position_expected_and_found(
    tmp_path: Path, changes: dict[str, bytes], expected: str
) -> None:
    path = segment(tmp_path, rewrite(ONE, **changes))
    with pytest.raises(CorruptSegmentError) as error:
        record_rows(path)
    assert str(error.value) == (
        f"{path}: expected {expected}. Copy the file again from its broker, or leave its topic out"
    )


def test_offsets_that_do_not_ascend_inside_a_batch_are_corrupt(tmp_path: Path) -> None:
    first = batch_of(0)
    records = [record(1), record(3), record(2)]
    path = segment(tmp_path, first, write_batch(BatchFields(last_offset=3), records))
    with pytest.raises(
        CorruptSegmentError, match=r"above .* in record 2 .* position 70, found 2\. Copy"
    ):
        record_rows(path)


def test_a_header_key_that_is_not_utf8_is_shown_as_a_consumer_shows_it(tmp_path: Path) -> None:
    headers = [(b"fine", b""), (b"\xff", b"v")]
    batch = write_batch(BatchFields(), [record(0), record(1, headers=headers)])
    rows = record_rows(segment(tmp_path, batch))
    kept = ("ebbtide.header.keys", b"1=ff")
    assert [row["headers"] for row in rows] == [[], [("fine", b""), ("\ufffd", b"v"), kept]]
    assert rows[1]["size_bytes"] == payload_size(b"k", b"v", headers)


HEADER_KEYS = st.one_of(
    st.binary(max_size=6),
    st.text(max_size=3).map(str.encode),
    st.sampled_from([b"ebbtide.header.keys", b"ebbtide.timestamp", b"\xed\xa0\x80"]),
)


@given(st.lists(st.lists(st.tuples(HEADER_KEYS, BYTES), max_size=4), min_size=1, max_size=5))
def test_header_keys_of_any_bytes_come_back(
    directory: Path, headers: list[list[tuple[bytes, bytes | None]]]
) -> None:
    records = [record(offset, headers=pairs) for offset, pairs in enumerate(headers)]
    rows = record_rows(segment(directory, write_batch(BatchFields(), records)))
    stored = [[(key.encode(), value) for key, value in row["headers"]] for row in rows]
    assert [with_own_keys(pairs) for pairs in stored] == headers


@pytest.mark.parametrize("value", [b"x", b"0=ff", b"7=ff", b"0=zz"])
def test_a_header_that_only_looks_like_kept_keys_stays(value: bytes) -> None:
    """Of a table that an earlier ebbtide wrote."""
    headers: list[tuple[bytes, bytes | None]] = [(b"a", b""), (b"ebbtide.header.keys", value)]
    assert with_own_keys(headers) == headers


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_records_that_do_not_decompress_are_corrupt(tmp_path: Path, codec: Codec) -> None:
    batch = with_crc(batch_of(0, codec=codec)[: HEADER.size] + b"nothing")
    fields = bytearray(batch)
    fields[8:12] = (len(batch) - 12).to_bytes(4, "big")
    path = segment(tmp_path, bytes(fields))
    expected = rf"decompresses at position 0, found {codec.name.lower()}: .+\. Copy"
    with pytest.raises(CorruptSegmentError, match=expected):
        record_rows(path)


@given(st.sampled_from(Codec), st.integers(21, 200), st.binary(min_size=1, max_size=9))
def test_no_bytes_make_another_error(
    directory: Path, codec: Codec, at: int, replacement: bytes
) -> None:
    headers = [(b"name", b"content"), (b"null", None)]
    records = [record(0), record(1, key=None, headers=headers), record(2, value=b"v" * 90)]
    batch = write_batch(BatchFields(), records, codec)
    changed = (batch[:at] + replacement + batch[at + len(replacement) :])[: len(batch)]
    path = segment(directory, with_crc(changed.ljust(len(batch), b"\0")))
    with suppress(CorruptSegmentError):
        record_rows(path)
