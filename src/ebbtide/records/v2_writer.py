"""Writing record batches of magic 2.

Source: Kafka's `MemoryRecordsBuilder`, `DefaultRecordBatch` and `DefaultRecord`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from ebbtide.records.batch import (
    CRC_COVERS_FROM,
    CRC_START,
    HEADER,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
)
from ebbtide.records.compression import Codec, compress
from ebbtide.records.varint import encode_varint


class Record(NamedTuple):
    """One record to write."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    attributes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFields:
    """The header fields that the records do not determine; None means: from the records."""

    base_offset: int | None = None
    last_offset: int | None = None
    leader_epoch: int = 0
    attributes: int = 0  # without the codec
    base_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE


def write_batch(fields: BatchFields, records: Sequence[Record], codec: int = Codec.NONE) -> bytes:
    """Return one batch; without records, `fields` must hold base and last offset."""
    base_offset = records[0].offset if fields.base_offset is None else fields.base_offset
    last_offset = records[-1].offset if fields.last_offset is None else fields.last_offset
    times = [record.timestamp_ms for record in records] or [NO_TIMESTAMP]
    base_ms = times[0] if fields.base_timestamp_ms is None else fields.base_timestamp_ms
    body = b"".join(_encode_record(record, base_offset, base_ms) for record in records)
    body = compress(codec, body) if records else b""
    header = BatchHeader(
        base_offset=base_offset,
        length=HEADER.size - LOG_OVERHEAD_BYTES + len(body),
        leader_epoch=fields.leader_epoch,
        magic=2,
        crc=0,
        attributes=fields.attributes & ~COMPRESSION_MASK | codec,
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=(
            max(times) if fields.max_timestamp_ms is None else fields.max_timestamp_ms
        ),
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        base_sequence=fields.base_sequence,
        record_count=len(records),
    )
    return with_crc(HEADER.pack(*header) + body)


def with_crc(batch: bytes) -> bytes:
    """Return the batch with the CRC-32C of its bytes."""
    crc = crc32c(batch[CRC_COVERS_FROM:]).to_bytes(4, "big")
    return batch[:CRC_START] + crc + batch[CRC_COVERS_FROM:]


def _encode_record(record: Record, base_offset: int, base_timestamp_ms: int) -> bytes:
    parts = [
        bytes([record.attributes]),
        encode_varint(_as_long(record.timestamp_ms - base_timestamp_ms)),
        encode_varint(record.offset - base_offset),
        _encode_bytes(record.key),
        _encode_bytes(record.value),
        encode_varint(len(record.headers)),
    ]
    for name, content in record.headers:
        parts += [_encode_bytes(name), _encode_bytes(content)]
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _as_long(value: int) -> int:
    """Return the value as a Java long, which drops the upper bits of a larger one."""
    return (value + 2**63) % 2**64 - 2**63


def _encode_bytes(value: bytes | None) -> bytes:
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value
