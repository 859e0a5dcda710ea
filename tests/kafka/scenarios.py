"""A topic's log and the rounds it goes through, described so that a person can read it.

A description turns into the segment files that a broker would have, and to JSON and back.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from ebbtide.records.attributes import CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP
from ebbtide.records.compression import compress
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch

MARKER_TYPES = {ABORT: 0, COMMIT: 1}


class Written(NamedTuple):
    """One record; text stands for its bytes in UTF-8."""

    offset: int
    timestamp_ms: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...] = ()


class WrittenBatch(NamedTuple):
    """One batch; None is what follows from the records. `control` makes it a marker.

    Before magic 2 it is a message, or one that wraps all the records where there is a codec.
    """

    records: tuple[Written, ...]
    magic: int = 2
    codec: int = 0
    attributes: int = 0
    base_offset: int | None = None
    last_offset: int | None = None
    base_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    control: str | None = None

    @property
    def next_offset(self) -> int:
        """The offset after it."""
        last = self.records[-1].offset if self.last_offset is None else self.last_offset
        return last + 1

    @property
    def newest_ms(self) -> int:
        """The largest timestamp in its header."""
        if self.max_timestamp_ms is not None:
            return self.max_timestamp_ms
        return max(record.timestamp_ms for record in self.records)

    @property
    def all_attributes(self) -> int:
        """Its attributes with the codec and whether it is a marker."""
        return self.attributes | self.codec | (CONTROL if self.control is not None else 0)


class WrittenSegment(NamedTuple):
    """A segment file, or what was appended to one that was there before."""

    base_offset: int
    modified_ms: int
    batches: tuple[WrittenBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRound:
    """What happens to all partitions at one time; `config` stays in force."""

    now_ms: int
    config: Mapping[str, str] = field(default_factory=dict)
    retention: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A log as it grows: `grown[i]` is there from round i on, `delete_records[i]` is asked in it.

    `delete_records` holds offsets, -1 for the high watermark, None for no request.
    """

    grown: tuple[tuple[WrittenSegment, ...], ...]
    delete_records: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Partitions that share a configuration, in Kafka's names, and the rounds."""

    config: Mapping[str, str]
    rounds: tuple[TopicRound, ...]
    partitions: tuple[Partition, ...]

    def config_at(self, number: int) -> dict[str, str]:
        """The configuration in round `number`."""
        config = dict(self.config)
        for a_round in self.rounds[: number + 1]:
            config |= a_round.config
        return config


def encode_batch(batch: WrittenBatch) -> bytes:
    """The batch as a segment file holds it."""
    if batch.magic < 2:
        return _legacy(batch)
    fields = BatchFields(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        attributes=batch.all_attributes & ~batch.codec,
        base_timestamp_ms=batch.base_timestamp_ms,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
    return write_batch(fields, records_of(batch), batch.codec)


def records_of(batch: WrittenBatch) -> list[Record]:
    """Its records as a reader finds them: the broker's time, where it stamped them."""
    if batch.control is not None:
        return [_control_record(record, batch.control) for record in batch.records]
    is_stamped = batch.attributes & LOG_APPEND_TIME
    return [
        Record(
            record.offset,
            batch.newest_ms if is_stamped else record.timestamp_ms,
            _bytes(record.key),
            _bytes(record.value),
            tuple((name.encode(), _bytes(value)) for name, value in record.headers),
        )
        for record in batch.records
    ]


def header_of(batch: WrittenBatch) -> Batch:
    """Its header as a reader finds it."""
    is_v2, first, times_ms = batch.magic == 2, batch.records[:1], batch.base_timestamp_ms
    if times_ms is None:
        times_ms = records_of(batch)[0].timestamp_ms if is_v2 else NO_TIMESTAMP
    return Batch(
        base_offset=first[0].offset if batch.base_offset is None else batch.base_offset,
        last_offset=batch.next_offset - 1,
        attributes=batch.all_attributes,
        base_timestamp_ms=times_ms,
        max_timestamp_ms=batch.newest_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        record_count=len(batch.records),
        size_bytes=len(encode_batch(batch)),
        control_type=batch.control if batch.records else None,
        magic=batch.magic,
    )


def _control_record(record: Written, kind: str) -> Record:
    """An EndTxnMarker of version 0, by a coordinator of epoch 0."""
    key = struct.pack(">hh", 0, MARKER_TYPES[kind])
    return Record(record.offset, record.timestamp_ms, key, bytes(6))


def _legacy(batch: WrittenBatch) -> bytes:
    time_ms = batch.newest_ms
    if not batch.codec:
        (record,) = batch.records
        return _message(batch.magic, batch.attributes, record._replace(timestamp_ms=time_ms))
    first = batch.records[0].offset if batch.magic == 1 else 0
    inner = b"".join(
        _message(batch.magic, 0, record._replace(offset=record.offset - first))
        for record in batch.records
    )
    wrapper = Written(batch.records[-1].offset, time_ms, None, None)
    return _message(
        batch.magic, batch.attributes | batch.codec, wrapper, compress(batch.codec, inner)
    )


def _message(magic: int, attributes: int, record: Written, value: bytes | None = None) -> bytes:
    content = _bytes(record.value) if value is None else value
    time = struct.pack(">q", record.timestamp_ms) if magic == 1 else b""
    body = bytes([magic, attributes]) + time + _sized(_bytes(record.key)) + _sized(content)
    return struct.pack(">qiI", record.offset, len(body) + 4, zlib.crc32(body)) + body


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def encode_segment(segment: WrittenSegment) -> bytes:
    """The bytes of its batches."""
    return b"".join(encode_batch(batch) for batch in segment.batches)


def source_segments(partition: Partition, number: int) -> list[WrittenSegment]:
    """The source's segments as they are in round `number`, grown ones joined."""
    segments: dict[int, WrittenSegment] = {}
    for segment in (s for step in partition.grown[: number + 1] for s in step):
        before = segments.get(segment.base_offset)
        batches = (*(before.batches if before else ()), *segment.batches)
        segments[segment.base_offset] = segment._replace(batches=batches)
    return list(segments.values())


def write_source(directory: Path, segments: Sequence[WrittenSegment]) -> Path:
    """A partition's directory with these segment files and their times."""
    directory.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        path = directory / f"{segment.base_offset:020d}.log"
        path.write_bytes(encode_segment(segment))
        os.utime(path, ns=(segment.modified_ms * 1_000_000,) * 2)
    return directory


def to_json(topic: Topic) -> dict[str, Any]:
    """The description as JSON; defaults are left out."""
    return {
        "config": dict(topic.config),
        "rounds": [
            {"now_ms": r.now_ms, "config": dict(r.config), "retention": r.retention}
            for r in topic.rounds
        ],
        "partitions": [
            {
                "delete_records": list(partition.delete_records),
                "grown": [[_segment_to_json(s) for s in step] for step in partition.grown],
            }
            for partition in topic.partitions
        ],
    }


def _segment_to_json(segment: WrittenSegment) -> dict[str, Any]:
    return {
        "base_offset": segment.base_offset,
        "modified_ms": segment.modified_ms,
        "batches": [_batch_to_json(batch) for batch in segment.batches],
    }


def _batch_to_json(batch: WrittenBatch) -> dict[str, Any]:
    defaults = WrittenBatch._field_defaults
    values = {k: v for k, v in batch._asdict().items() if k not in defaults or defaults[k] != v}
    records = [list(record if record.headers else record[:4]) for record in batch.records]
    return {**values, "records": records}


def from_json(values: Mapping[str, Any]) -> Topic:
    """The topic that `to_json` described."""
    return Topic(
        config=values["config"],
        rounds=tuple(TopicRound(**a_round) for a_round in values["rounds"]),
        partitions=tuple(
            Partition(
                grown=tuple(tuple(_segment_from(s) for s in step) for step in partition["grown"]),
                delete_records=tuple(partition["delete_records"]),
            )
            for partition in values["partitions"]
        ),
    )


def _segment_from(values: Mapping[str, Any]) -> WrittenSegment:
    batches = tuple(
        WrittenBatch(**{**batch, "records": tuple(_record_from(r) for r in batch["records"])})
        for batch in values["batches"]
    )
    return WrittenSegment(values["base_offset"], values["modified_ms"], batches)


def _record_from(values: Sequence[Any]) -> Written:
    headers = tuple((name, value) for name, value in (values[4] if len(values) > 4 else ()))
    return Written(values[0], values[1], values[2], values[3], headers)
