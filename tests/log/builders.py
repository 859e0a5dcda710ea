"""Batches and segments with what a test is about, and everything else ordinary."""

from __future__ import annotations

from typing import Any

from ebbtide.kafka.batch_header import Batch
from ebbtide.records.attributes import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from ebbtide.state.logical_segments import Segment

T0 = 1_700_000_000_000


def data(base_offset: int, last_offset: int | None = None, **fields: Any) -> Batch:
    """A data batch with a record at each of its offsets, all at T0."""
    last_offset = base_offset if last_offset is None else last_offset
    ordinary = {
        "base_timestamp_ms": T0,
        "max_timestamp_ms": T0,
        "record_count": last_offset - base_offset + 1,
        "size_bytes": 100,
    }
    return Batch(base_offset, last_offset, **{**ordinary, **fields})


def sent(offset: int, producer_id: int = 1, **fields: Any) -> Batch:
    """A data batch of one record in a transaction."""
    ordinary = {"attributes": TRANSACTIONAL, "producer_id": producer_id, "producer_epoch": 0}
    return data(offset, **{**ordinary, **fields})


def ended(offset: int, control_type: str, producer_id: int = 1, **fields: Any) -> Batch:
    """A transaction marker; `txn_first_offset` where its transaction has data."""
    attributes = TRANSACTIONAL | CONTROL
    ordinary = {"attributes": attributes, "control_type": control_type, "size_bytes": 78}
    return sent(offset, producer_id, **{**ordinary, **fields})


def emptied(batch: Batch) -> Batch:
    """The batch after a round that left only its header."""
    return batch._replace(record_count=0, base_timestamp_ms=-1, size_bytes=61)


def with_horizon(batch: Batch, horizon_ms: int) -> Batch:
    """The batch after a round that set its delete horizon."""
    attributes = batch.attributes | DELETE_HORIZON
    return batch._replace(attributes=attributes, base_timestamp_ms=horizon_ms)


def segment(base_offset: int, size_bytes: int = 100, **fields: Any) -> Segment:
    """A segment whose records and file are of T0."""
    ordinary = {"max_timestamp_ms": T0, "first_batch_timestamp_ms": T0, "max_append_time_ms": T0}
    ordinary["record_count"] = 10 if size_bytes else 0
    return Segment(base_offset, T0, size_bytes, **{**ordinary, **fields})
