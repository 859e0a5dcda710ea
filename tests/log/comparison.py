"""A log as `ebbtide.log` leaves it and as Kafka does, in the same words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ebbtide.kafka.batch_header import Batch
from ebbtide.records.attributes import NO_TIMESTAMP
from ebbtide.records.log_directory_writer import without_kept_time
from tests.kafka import oracle
from tests.kafka.oracle import LogState
from tests.log.plain_cleaner import Log, in_segments

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME = {"LogAppendTime": 0x08}


class Described(NamedTuple):
    """What must be equal; batches and records from the log start offset on."""

    log_start_offset: int
    log_end_offset: int
    segments: list[tuple[int, int]]
    batches: dict[int, dict[str, Any]]
    records: dict[int, tuple[Any, ...]]

    def differences(self, other: Described) -> list[str]:
        """Each difference in a line: what, here, there."""
        lines = [
            f"{name}: {getattr(self, name)} != {getattr(other, name)}"
            for name in ("log_start_offset", "log_end_offset", "segments")
            if getattr(self, name) != getattr(other, name)
        ]
        lines += _unequal("batch", self.batches, other.batches)
        return lines + _unequal("record", self.records, other.records)


def _unequal(what: str, ours: Mapping[int, Any], theirs: Mapping[int, Any]) -> list[str]:
    lines = []
    for offset in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(offset), theirs.get(offset)
        if mine == other:
            continue
        if isinstance(mine, dict) and isinstance(other, dict):
            differing = [name for name in mine if mine[name] != other[name]]
            mine, other = ({n: side[n] for n in differing} for side in (mine, other))
        lines.append(f"{what} {offset}: {mine} != {other}")
    return lines


def described(log: Log) -> Described:
    """What `ebbtide.log` leaves."""
    state = log.state
    batches = [b for b in in_segments(log) if b.next_offset > state.log_start_offset]
    return Described(
        state.log_start_offset,
        state.log_end_offset,
        list(state.segments),
        visible_batches(batches, log),
        {
            record.offset: (
                None if is_astride(batch.base_offset, log) else batch.written_base_offset,
                batch.is_control,
                timestamp_ms,
                record.key,
                record.value,
                tuple((name.decode(), value) for name, value in headers),
                record.attributes,
            )
            for batch in batches
            for record in log.records[batch.base_offset]
            for headers, timestamp_ms in [without_kept_time(record.headers, record.timestamp_ms)]
        },
    )


def described_by_kafka(state: LogState, log: Log) -> Described:
    """What Kafka leaves; `log` is ours, for what lies astride its start."""
    counts = Counter(record.batch for record in state.records)
    batches = [
        batch._replace(record_count=counts[batch.base_offset])
        for batch in batches_of(state.batches)
    ]
    return Described(
        state.log_start_offset,
        state.log_end_offset,
        [(segment.base_offset, segment.last_modified_ms) for segment in state.segments],
        visible_batches(batches, log),
        {
            record.offset: (
                None if is_astride(record.batch, log) else record.batch,
                record.is_control,
                record.timestamp_ms,
                record.key,
                record.value,
                record.headers,
                record.attributes,
            )
            for record in state.records
            if record.offset >= state.log_start_offset
        },
    )


def visible_batches(batches: Iterable[Batch], log: Log) -> dict[int, dict[str, Any]]:
    """The headers to compare by base offset: from the log start offset on, and not astride it."""
    start = log.state.log_start_offset
    return {
        batch.written_base_offset: _batch(batch)
        for batch in batches
        if batch.written_base_offset >= start and not is_astride(batch.base_offset, log)
    }


def is_astride(offset: int, log: Log) -> bool:
    """Whether the offset is of a batch that begins below the log start offset and ends above.

    Kafka may have removed its hidden records, and converted it, which we cannot know.
    """
    start = log.state.log_start_offset
    return any(
        batch.base_offset <= offset < batch.next_offset
        for batch in log.batches
        if batch.base_offset < start < batch.next_offset
    )


def differing_batches(log: Log, theirs: Iterable[Batch]) -> list[str]:
    """Each batch of magic 2 that is not as Kafka has it."""
    both = (
        visible_batches([batch for batch in batches if not batch.is_legacy], log)
        for batches in (in_segments(log), theirs)
    )
    return _unequal("batch", *both)


def _batch(batch: Batch) -> dict[str, Any]:
    values = batch._asdict()
    del values["base_offset"], values["txn_first_offset"], values["header_base_offset"]
    del values["producer_timestamp_ms"]
    if not batch.record_count:
        values["control_type"] = None
    return values


def batches_of(batches: Iterable[oracle.Batch]) -> list[Batch]:
    """Kafka's batches as headers of ours."""
    return [
        Batch(
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            attributes=_attributes(batch),
            base_timestamp_ms=_or(batch.base_timestamp_ms, NO_TIMESTAMP),
            max_timestamp_ms=batch.max_timestamp_ms,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            record_count=_or(batch.record_count, 1),  # before magic 2, the header has none
            size_bytes=batch.size_bytes,
            control_type=batch.control_type,
            magic=batch.magic,
        )
        for batch in batches
    ]


def _attributes(batch: oracle.Batch) -> int:
    """Those of a header, or of a message before magic 2."""
    if batch.attributes is not None:
        return batch.attributes
    return CODECS[batch.compression] | LOG_APPEND_TIME.get(batch.timestamp_type, 0)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
