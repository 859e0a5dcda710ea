from __future__ import annotations

import gzip
import subprocess
import sys
from random import Random

import kafka.codec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.records.compression import (
    Codec,
    DecompressionError,
    TooLargeError,
    compress,
    decompress,
)

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


COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LARGE = b"ebb and tide " * 500_000  # some 6.5 MB: several chunks


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_may_be_as_large_as_its_bound_and_no_larger(codec: Codec) -> None:
    packed = compress(codec, LARGE)
    assert decompress(codec, packed, magic=2, max_bytes=len(LARGE)) == LARGE
    for most in (0, 1, len(LARGE) // 2, len(LARGE) - 1):
        with pytest.raises(TooLargeError) as refused:
            decompress(codec, packed, magic=2, max_bytes=most)
        assert refused.value.max_bytes == most


def test_a_snappy_block_without_frames_is_bounded_by_the_length_it_says() -> None:
    claims_four_gigabytes = b"\xff\xff\xff\xff\x0f" + b"x" * 10
    with pytest.raises(TooLargeError):
        decompress(Codec.SNAPPY, claims_four_gigabytes, magic=1)
    plain = kafka.codec.snappy_encode(LARGE, xerial_compatible=False)
    assert decompress(Codec.SNAPPY, plain, magic=1, max_bytes=len(LARGE)) == LARGE
    with pytest.raises(TooLargeError):
        decompress(Codec.SNAPPY, plain, magic=1, max_bytes=len(LARGE) - 1)


def test_gzip_members_one_after_the_other_are_one_batch() -> None:
    packed = gzip.compress(LARGE) + b"\0\0" + gzip.compress(b"tide")
    assert decompress(Codec.GZIP, packed, magic=2) == LARGE + b"tide"
    with pytest.raises(TooLargeError):
        decompress(Codec.GZIP, packed, magic=2, max_bytes=len(LARGE) + 3)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_a_stream_cut_short_is_refused(codec: Codec) -> None:
    with pytest.raises(DecompressionError, match=codec.name.lower()):
        decompress(codec, compress(codec, LARGE)[:-9], magic=2)


@given(st.sampled_from(COMPRESSED), st.randoms(use_true_random=True))
@settings(max_examples=20)
def test_a_round_trip_of_more_than_one_input_piece(codec: Codec, random: Random) -> None:
    data = random.randbytes(random.randint(200_000, 600_000))
    packed = compress(codec, data)
    assert decompress(codec, packed, magic=2, max_bytes=len(data)) == data


# 256 MiB of zeros in each codec; what the process takes beyond what it had before is its answer.
BOMB = """
import gzip, io, resource, struct, sys
import lz4.frame, snappy, zstandard
from ebbtide.records.compression import Codec, TooLargeError, XERIAL_HEADER, decompress
MIB = 1024 * 1024
def bomb(codec):
    pieces = (bytes(MIB) for _ in range(256))
    if codec is Codec.GZIP:
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb") as file:
            for piece in pieces:
                file.write(piece)
        return out.getvalue()
    if codec is Codec.LZ4:
        packer = lz4.frame.LZ4FrameCompressor(block_linked=False)
        return packer.begin() + b"".join(map(packer.compress, pieces)) + packer.flush()
    if codec is Codec.ZSTD:
        packer = zstandard.ZstdCompressor().compressobj()
        return b"".join(map(packer.compress, pieces)) + packer.flush()
    blocks = [snappy.compress(piece) for piece in pieces]
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
packed = bomb(Codec[sys.argv[1]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(Codec[sys.argv[1]], packed, magic=2, max_bytes=16 * MIB)
except TooLargeError:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_takes_no_more_memory_than_the_bound(codec: Codec) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMB, codec.name], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 16 + 8  # MiB: the bound, and what the codec works with


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(DecompressionError, match="codec 5"):
        decompress(5, b"", magic=2)
