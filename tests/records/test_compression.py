from __future__ import annotations

import kafka.codec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.records.compression import Codec, DecompressionError, compress, decompress

KAFKA_PYTHON = {
    Codec.GZIP: (kafka.codec.gzip_encode, kafka.codec.gzip_decode),
    Codec.SNAPPY: (kafka.codec.snappy_encode, kafka.codec.snappy_decode),
    Codec.LZ4: (kafka.codec.lz4_encode, kafka.codec.lz4_decode),
    Codec.ZSTD: (kafka.codec.zstd_encode, kafka.codec.zstd_decode),
}
SAMPLES = [b"a", b"ebb and tide " * 10_000]


@pytest.mark.parametrize("data", SAMPLES, ids=len)
@pytest.mark.parametrize("codec", list(KAFKA_PYTHON))
def test_kafka_python_and_we_read_each_other(codec: Codec, data: bytes) -> None:
    their_compress, their_decompress = KAFKA_PYTHON[codec]
    assert decompress(codec, memoryview(their_compress(data)), magic=2) == data
    assert their_decompress(compress(codec, data)) == data


@given(st.sampled_from(Codec), st.binary())
def test_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), magic=2) == data


def test_snappy_without_frames_is_read_too() -> None:
    plain = kafka.codec.snappy_encode(b"tide" * 9, xerial_compatible=False)
    assert decompress(Codec.SNAPPY, plain, magic=1) == b"tide" * 9


def test_the_wrong_lz4_header_checksum_of_magic_0_is_read_there_only() -> None:
    old = kafka.codec.lz4_encode_old_kafka(b"tide" * 9)
    assert decompress(Codec.LZ4, old, magic=0) == b"tide" * 9
    with pytest.raises(DecompressionError):
        decompress(Codec.LZ4, old, magic=1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("data", [b"\x00" * 3, b"no codec writes this", b"\x82SNAPPY\x00" * 4])
def test_foreign_bytes_are_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(DecompressionError, match=codec.name.lower()):
        decompress(codec, data, magic=2)


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(DecompressionError, match="codec 5"):
        decompress(5, b"", magic=2)
