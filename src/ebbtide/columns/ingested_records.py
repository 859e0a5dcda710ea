"""Columns of the records that an ingest adds, from segment files or from a live topic."""

from __future__ import annotations

import pyarrow as pa

from ebbtide.records.batch import RECORD_SCHEMA

_TIME = pa.timestamp("us", tz="UTC")
INGESTED_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("segment", pa.int64()),
        ("batch", pa.int64()),
        ("timestamp", _TIME),
        ("event_time", _TIME),
        ("append_time", _TIME),
        *(RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "attributes")),
        ("is_tombstone", pa.bool_()),
        ("tombstone_by", pa.string()),
        ("size_bytes", pa.int32()),
    ]
)
