"""The codecs of Kafka's record batches, in the framings that Kafka's Java classes write.

kafka-python has these codecs too, but importing it loads a whole client into every Spark worker.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from threading import local

import lz4.frame
import snappy
import xxhash
import zstandard

from ebbtide.records.limits import MAX_DECOMPRESSED_BYTES

Buffer = bytes | memoryview

# snappy-java's stream: a marker, two version numbers, then blocks, each preceded by its length.
XERIAL_MARKER = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MARKER + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
BLOCK_LENGTH = struct.Struct(">i")

# Bytes passed to a codec at a time, and bytes read from it.
INPUT_BYTES = 256 * 1024
CHUNK_BYTES = 1024 * 1024
# Up to SMALL_BYTES of input: to allocate CHUNK_BYTES would take longer than to decompress.
SMALL_BYTES, SMALL_CHUNK_BYTES = 4 * 1024, 64 * 1024


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressionError(ValueError):
    """Bytes that are not what their batch's codec writes."""


class TooLargeError(DecompressionError):
    """A batch that needs more memory than allowed; that memory was not allocated."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.max_bytes = max_bytes


# Errors that the five libraries raise for malformed bytes.
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


def decompress(
    codec: int, data: Buffer, *, magic: int, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """Return the records of a batch whose attributes name `codec`.

    Raise TooLargeError if they take more than `max_bytes`, DecompressionError if they are
    malformed.
    """
    try:
        match codec:
            case Codec.NONE:
                return bytes(data)
            case Codec.GZIP:
                return _collect(_gzip_chunks(bytes(data)), max_bytes)
            case Codec.SNAPPY:
                return _collect(_snappy_chunks(bytes(data), max_bytes), max_bytes)
            case Codec.LZ4:
                return _collect(_lz4_chunks(bytes(data), magic), max_bytes)
            case Codec.ZSTD:
                return _collect(_zstd_chunks(bytes(data)), max_bytes)
    except DecompressionError as refusal:
        if isinstance(refusal, TooLargeError):
            raise
        raise DecompressionError(f"{Codec(codec).name.lower()}: {refusal}") from refusal
    except _REFUSALS as refusal:
        reason = refusal.__cause__ or refusal  # python-snappy's own error has no text
        raise DecompressionError(f"{Codec(codec).name.lower()}: {reason}") from refusal
    raise DecompressionError(f"codec {codec}")


def _collect(chunks: Iterator[bytes], max_bytes: int) -> bytes:
    """Return all chunks joined; raise TooLargeError before they exceed `max_bytes`."""
    first = next(chunks, b"")
    second = next(chunks, b"")
    _check_size(len(first) + len(second), max_bytes)
    if not second:
        return first
    whole = io.BytesIO()  # returns its buffer without a copy; b"".join would hold all bytes twice
    whole.write(first)
    whole.write(second)
    for chunk in chunks:
        _check_size(whole.tell() + len(chunk), max_bytes)
        whole.write(chunk)
    return whole.getvalue()


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise TooLargeError(max_bytes)


def compress(codec: int, data: bytes) -> bytes:
    """Compress `data` with `codec`, as in a batch of magic 1 or 2."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return gzip.compress(data, mtime=0)
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            # Kafka's reader refuses linked blocks.
            return bytes(lz4.frame.compress(data, block_linked=False))
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3).compress(data)
    raise ValueError(f"codec {codec}")


def _gzip_chunks(data: bytes) -> Iterator[bytes]:
    """Yield the contents of the gzip members in order; zeros after a member are skipped."""
    position = 0
    while position < len(data):
        if not data.startswith(b"\x1f\x8b", position):
            raise gzip.BadGzipFile(f"Not a gzipped file ({data[position : position + 2]!r})")
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        pending = b""
        while not inflater.eof:
            if not pending:
                pending = data[position : position + INPUT_BYTES]
                position += len(pending)
            chunk = inflater.decompress(pending, CHUNK_BYTES)
            if not (chunk or pending or inflater.eof):
                raise EOFError("the data ends before the end-of-stream marker")
            pending = inflater.unconsumed_tail
            if chunk:
                yield chunk
        position -= len(inflater.unused_data)
        while data[position : position + 1] == b"\0":
            position += 1


def _snappy_chunks(data: bytes, max_bytes: int) -> Iterator[bytes]:
    if not data.startswith(XERIAL_MARKER):
        yield _unsnapped(data, max_bytes)
        return
    position = len(XERIAL_HEADER)
    while position < len(data):
        (length,) = BLOCK_LENGTH.unpack_from(data, position)
        position += BLOCK_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise DecompressionError(
                f"block length {length} with {len(data) - position} bytes left"
            )
        yield _unsnapped(data[position : position + length], max_bytes)
        position += length


def _unsnapped(block: bytes, max_bytes: int) -> bytes:
    """Decompress a block, after a check of the size that its first bytes declare."""
    size_bytes = 0
    for place, byte in enumerate(block[:5]):
        size_bytes |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            _check_size(size_bytes, max_bytes)
            break
    return bytes(snappy.uncompress(block))


def _compress_snappy(data: bytes) -> bytes:
    framed = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[start : start + XERIAL_BLOCK_BYTES])
        framed += [BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(framed)


def _lz4_chunks(data: bytes, magic: int) -> Iterator[bytes]:
    """Yield the contents of the first frame only, as Kafka's reader does."""
    frame = _with_header_checksum(data) if magic == 0 else data
    decompressor = lz4.frame.LZ4FrameDecompressor()
    position = 0
    while not decompressor.eof:
        piece = b""
        if decompressor.needs_input:
            piece = frame[position : position + INPUT_BYTES]
            position += len(piece)
            if not piece:
                raise EOFError("the frame ends before its end mark")
        if chunk := bytes(decompressor.decompress(piece, CHUNK_BYTES)):
            yield chunk


def _with_header_checksum(frame: bytes) -> bytes:
    """Correct the frame's header checksum: Kafka before 0.10 also hashed the magic number."""
    if len(frame) < 7:
        raise DecompressionError(f"a frame of {len(frame)} bytes")
    has_content_size = frame[4] & 0x08
    end = 14 if has_content_size else 6
    checksum = xxhash.xxh32(frame[4:end]).intdigest() >> 8 & 0xFF
    return frame[:end] + bytes([checksum]) + frame[end + 1 :]


class _OfThread(local):
    """Decompressors, one per thread: creating one takes 30 us, and threads cannot share it."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_OWN = _OfThread()


def _zstd_chunks(data: bytes) -> Iterator[bytes]:
    size_bytes = CHUNK_BYTES if len(data) > SMALL_BYTES else SMALL_CHUNK_BYTES
    with _OWN.zstd.stream_reader(data, read_across_frames=True) as reader:
        while chunk := reader.read(size_bytes):
            yield chunk
