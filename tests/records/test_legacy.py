"""Magic 0 and 1 against kafka-python's builder; what Kafka itself writes is in test_golden.py."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from ebbtide.errors import CorruptSegmentError
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.compression import compress
from ebbtide.records.segment_reader import walk_segment
from tests.records.builders import MAX_BATCH_BYTES, T0, batch_of, record_rows, segment, walk_rows

NONE, GZIP, SNAPPY, LZ4 = range(4)
CODECS = [NONE, GZIP, SNAPPY, LZ4]
ADVICE = "Copy the file again from its broker, or leave its topic out"
BYTES = st.none() | st.binary(max_size=300)


def message_set(magic: int, codec: int, messages: list[tuple], last_offset: int) -> bytes:
    """Messages of (offset, timestamp, key, value); a wrapper gets the offset a broker gives it."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 30)
    for offset, timestamp_ms, key, value in messages:
        builder.append(offset, timestamp_ms, key, value)
    data = bytes(builder.build())
    return last_offset.to_bytes(8, "big") + data[8:] if codec else data


def resealed(message: bytes, at: int, replacement: bytes) -> bytes:
    """The message with bytes replaced and its CRC right again."""
    message = message[:at] + replacement + message[at + len(replacement) :]
    return message[:12] + struct.pack(">I", zlib.crc32(message[16:])) + message[16:]


@given(
    st.sampled_from([0, 1]),
    st.sampled_from(CODECS),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**42), BYTES, BYTES), min_size=1),
)
def test_what_kafka_python_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, magic: int, codec: int, drawn: list[tuple]
) -> None:
    offsets, offset = [], 99
    for step, *_ in drawn:
        offset += step
        offsets.append(offset)
    # Inside a compressed set of magic 1, offsets count from its first.
    shift = offsets[0] if codec and magic == 1 else 0
    messages = [(at - shift, *rest) for at, (_, *rest) in zip(offsets, drawn, strict=True)]
    data = message_set(magic, codec, messages, offsets[-1])
    rows = record_rows(segment(tmp_path_factory.getbasetemp(), data))
    for row, at, (_, timestamp_ms, key, value) in zip(rows, offsets, drawn, strict=True):
        time = None if magic == 0 else timestamp_ms
        expected = (at, offsets[0] if codec else at, time, time, key, value, [], 0)
        names = ["offset", "batch", "timestamp", "producer_timestamp", "key", "value", "headers"]
        assert tuple(row[name] for name in [*names, "attributes"]) == expected


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_is_one_batch_from_its_first_record_to_its_own_offset(
    tmp_path: Path, magic: int, codec: int
) -> None:
    first = 0 if magic else 40
    data = message_set(
        magic, codec, [(first, T0, b"k", b"v"), (first + 2, T0, None, b"")], last_offset=42
    )
    (row,) = walk_rows(segment(tmp_path, data))
    assert row == {
        "position": 0,
        "base_offset": 40,
        "last_offset": 42,
        "leader_epoch": -1,
        "magic": magic,
        "attributes": codec,
        "base_timestamp_ms": -1,
        "max_timestamp_ms": 0 if magic else -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": 2,
        "size_bytes": len(data),
        "crc": int.from_bytes(data[12:16], "big"),
        "control_type": None,
        "control_key": None,
        "control_value": None,
    }


def test_append_time_of_a_wrapper_counts_and_the_producers_time_is_kept(tmp_path: Path) -> None:
    data = message_set(1, GZIP, [(0, T0, b"k", b"v"), (1, T0 + 1, b"k", b"w")], last_offset=1)
    stamped = GZIP | LOG_APPEND_TIME
    data = resealed(data, 17, bytes([stamped]) + (T0 + 50).to_bytes(8, "big"))
    rows = record_rows(segment(tmp_path, data))
    assert [row["timestamp"] for row in rows] == [T0 + 50, T0 + 50]
    assert [row["producer_timestamp"] for row in rows] == [T0, T0 + 1]


def test_append_time_of_a_plain_message_has_overwritten_the_producers(tmp_path: Path) -> None:
    data = message_set(1, NONE, [(0, T0, b"k", b"v")], last_offset=0)
    (row,) = record_rows(segment(tmp_path, resealed(data, 17, bytes([LOG_APPEND_TIME]))))
    assert (row["timestamp"], row["producer_timestamp"]) == (T0, None)


def test_a_log_may_hold_all_formats(tmp_path: Path) -> None:
    old = message_set(0, GZIP, [(0, -1, b"a", b"v"), (1, -1, b"b", b"v")], last_offset=1)
    newer = message_set(1, NONE, [(2, T0, b"c", b"v"), (3, T0, b"d", b"v")], last_offset=3)
    path = segment(
        tmp_path, old, newer, batch_of(4, 5), message_set(1, NONE, [(6, 0, None, b"")], 6)
    )
    assert [row["magic"] for row in walk_rows(path)] == [0, 1, 1, 2, 1]
    assert [row["offset"] for row in record_rows(path)] == list(range(7))


PLAIN = message_set(1, NONE, [(0, T0, b"k", b"v")], 0)
INNER = message_set(1, NONE, [(0, T0, b"k", b"v"), (1, T0, b"k", b"v")], 1)


def wrapped(inner: bytes, last_offset: int = 1) -> bytes:
    """A gzip wrapper of magic 1 whose value is any bytes."""
    value = compress(GZIP, inner)
    plain = message_set(1, NONE, [(last_offset, T0, None, value)], last_offset)
    return resealed(plain, 17, bytes([GZIP]))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(
            PLAIN[:-1] + b"x",
            f"CRC-32 0x{PLAIN[12:16].hex()} at position 0, found 0x",
            id="a value byte flipped",
        ),
        pytest.param(
            resealed(PLAIN, 26, b"\0\0\0\x09"),
            "9 bytes of key or value at position 0, found 6. Copy",
            id="a key beyond the message",
        ),
        pytest.param(
            resealed(PLAIN, 17, b"\4"),
            "codec none, gzip, snappy or lz4 at position 0, found codec 4. Copy",
            id="zstd before magic 2",
        ),
        pytest.param(
            resealed(message_set(1, NONE, [(0, T0, b"k", None)], 0), 17, b"\1"),
            "compressed messages at position 0, found a null value. Copy",
            id="a wrapper of nothing",
        ),
        pytest.param(
            wrapped(b""), "compressed messages at position 0, found none. Copy", id="an empty set"
        ),
        pytest.param(
            wrapped(wrapped(INNER)),
            "one layer of compression at position 0, found two. Copy",
            id="a wrapper in a wrapper",
        ),
        pytest.param(wrapped(INNER[:-1] + b"x"), "CRC-32 0x", id="a byte flipped inside a wrapper"),
        pytest.param(
            wrapped(bytes(30)),
            "the length of a message at position 0, found 0. Copy",
            id="zeros inside a wrapper",
        ),
        pytest.param(
            wrapped(INNER[36:] + INNER[:36]),
            "an offset above 2 at position 0, found 1. Copy",
            id="descending offsets inside a wrapper",
        ),
        pytest.param(
            wrapped(message_set(1, NONE, [(9, T0, b"k", b"v")], 9)),
            "a last offset of 1 in a compressed set at position 0, found 9. Copy",
            id="an inner offset beyond the wrapper's",
        ),
        pytest.param(
            resealed(PLAIN, 17, b"\1"),
            "a batch that decompresses at position 0, found gzip: Not a gzipped file (b'v'). Copy",
            id="a value that is not compressed",
        ),
    ],
)
def test_corrupt_messages(tmp_path: Path, data: bytes, expected: str) -> None:
    path = segment(tmp_path, data)
    with pytest.raises(CorruptSegmentError) as error:
        walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    message = str(error.value)
    assert message.startswith(f"{path}: expected {expected}")
    assert message.endswith(f". {ADVICE}")


@given(st.sampled_from(CODECS), st.integers(16, 100), st.binary(min_size=1, max_size=9))
def test_no_bytes_make_another_error(
    tmp_path_factory: pytest.TempPathFactory, codec: int, at: int, replacement: bytes
) -> None:
    data = message_set(1, codec, [(0, T0, b"key", b"v" * 30), (1, T0, None, b"w" * 30)], 1)
    path = segment(tmp_path_factory.getbasetemp(), resealed(data, at, replacement)[: len(data)])
    with suppress(CorruptSegmentError):
        record_rows(path)
