"""The codecs of Kafka's record batches, in the framings that Kafka's Java classes write.

kafka-python has them too, but importing it loads a whole client into every Spark worker.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from enum import IntEnum

import lz4.frame
import snappy
import xxhash
import zstandard

Buffer = bytes | memoryview

# snappy-java's stream: a marker, two version numbers, then blocks each behind its length.
XERIAL_MARKER = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MARKER + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
BLOCK_LENGTH = struct.Struct(">i")


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressionError(ValueError):
    """Bytes that are not what their batch's codec writes."""


# What the five libraries raise for bytes that are not theirs.
_REFUSALS = (
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
    zlib.error,
    snappy.UncompressError,
    zstandard.ZstdError,
)


def decompress(codec: int, data: Buffer, *, magic: int) -> bytes:
    """Return the records of a batch whose attributes name `codec`."""
    try:
        match codec:
            case Codec.NONE:
                return bytes(data)
            case Codec.GZIP:
                return gzip.decompress(data)
            case Codec.SNAPPY:
                return _decompress_snappy(bytes(data))
            case Codec.LZ4:
                return _decompress_lz4(bytes(data), magic)
            case Codec.ZSTD:
                return _decompress_zstd(bytes(data))
    except _REFUSALS as refusal:
        reason = refusal.__cause__ or refusal  # python-snappy's own error has no text
        raise DecompressionError(f"{Codec(codec).name.lower()}: {reason}") from refusal
    raise DecompressionError(f"codec {codec}")


def compress(codec: int, data: bytes) -> bytes:
    """Return what a batch of magic 1 or 2 holds for `data` under `codec`."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return gzip.compress(data, mtime=0)
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            # Kafka's reader takes no linked blocks.
            return bytes(lz4.frame.compress(data, block_linked=False))
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3).compress(data)
    raise ValueError(f"codec {codec}")


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(XERIAL_MARKER):
        return bytes(snappy.uncompress(data))
    blocks = []
    position = len(XERIAL_HEADER)
    while position < len(data):
        (length,) = BLOCK_LENGTH.unpack_from(data, position)
        position += BLOCK_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise DecompressionError(f"a block of {length} bytes with {len(data) - position} left")
        blocks.append(snappy.uncompress(data[position : position + length]))
        position += length
    return b"".join(blocks)


def _compress_snappy(data: bytes) -> bytes:
    framed = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[start : start + XERIAL_BLOCK_BYTES])
        framed += [BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(framed)


def _decompress_lz4(data: bytes, magic: int) -> bytes:
    return bytes(lz4.frame.decompress(_with_header_checksum(data) if magic == 0 else data))


def _with_header_checksum(frame: bytes) -> bytes:
    """Kafka before 0.10 hashed the frame's magic number too, so its header checksum is wrong."""
    if len(frame) < 7:
        raise DecompressionError(f"a frame of {len(frame)} bytes")
    has_content_size = frame[4] & 0x08
    end = 14 if has_content_size else 6
    checksum = xxhash.xxh32(frame[4:end]).intdigest() >> 8 & 0xFF
    return frame[:end] + bytes([checksum]) + frame[end + 1 :]


def _decompress_zstd(data: bytes) -> bytes:
    # Kafka's frames do not carry their content's size, so the one-shot call cannot be used.
    return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(data)
