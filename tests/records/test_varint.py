from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.records.arrays import (
    VARINT_BYTES,
    VARLONG_BYTES,
    MalformedVarintError,
    decode_varint,
    decode_varints,
    encode_varint,
    payload_size,
    record_size,
    varint_size,
)
from ebbtide.records.batch import HEADER
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch

INT64S = st.integers(-(2**63), 2**63 - 1)

# The bytes that Kafka's ByteUtilsTest expects, and the neighbours of each change of length.
KNOWN = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (-8192, "ff7f"),
    (8192, "808001"),
    (-8193, "818001"),
    (1048575, "feff7f"),
    (-1048576, "ffff7f"),
    (1048576, "80808001"),
    (134217727, "feffff7f"),
    (134217728, "8080808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("value", "encoded"), KNOWN)
def test_varint_bytes(value: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert encode_varint(value) == data
    assert decode_varint(data, 0, VARLONG_BYTES) == (value, len(data))
    assert varint_size(value) == len(data)


@given(INT64S)
def test_varint_round_trip(value: int) -> None:
    data = b"\xff" + encode_varint(value) + b"\xff"
    assert decode_varint(data, 1, VARLONG_BYTES) == (value, len(data) - 1)
    assert varint_size(value) == len(data) - 2


@given(st.lists(INT64S, min_size=1))
def test_a_column_of_varints_decodes_as_each_of_them(values: list[int]) -> None:
    encoded = [encode_varint(value) for value in values]
    starts = np.cumsum([0] + [len(each) for each in encoded])
    data = np.frombuffer(b"".join(encoded) + bytes(VARLONG_BYTES), dtype=np.uint8)
    decoded, after = decode_varints(data, starts[:-1], VARLONG_BYTES)
    assert decoded.tolist() == values
    assert after.tolist() == starts[1:].tolist()


def test_a_varint_without_end_is_malformed_and_says_which() -> None:
    data = np.frombuffer(b"\x00" + b"\xff" * 20, dtype=np.uint8)
    with pytest.raises(MalformedVarintError) as column:
        decode_varints(data, np.array([0, 1]), VARINT_BYTES)
    with pytest.raises(MalformedVarintError) as single:
        decode_varint(data.tobytes(), 1, VARINT_BYTES)
    assert (column.value.index, column.value.width) == (1, VARINT_BYTES)
    assert (single.value.index, single.value.width) == (0, VARINT_BYTES)


def test_a_varint_cut_off_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        decode_varint(b"\x80", 0, VARINT_BYTES)


@given(
    st.integers(-(2**40), 2**40),
    st.integers(0, 2**31 - 1),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.binary(max_size=70), st.none() | st.binary(max_size=70)), max_size=70),
)
def test_record_size_is_that_of_a_written_record(
    delta_ms: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[bytes, bytes | None]],
) -> None:
    fields = BatchFields(base_offset=0, base_timestamp_ms=0)
    batch = write_batch(fields, [Record(offset_delta, delta_ms, key, value, headers)])
    size_bytes = payload_size(key, value, headers)
    assert HEADER.size + record_size(delta_ms, offset_delta, size_bytes) == len(batch)
