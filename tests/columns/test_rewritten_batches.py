"""What is worked out for all ordinary batches at once is what `rewrite` says of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.live_records import Records
from ebbtide.columns.rewritten_batches import ORDINARY, Rewriting, rewrite_batches
from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.compaction import Round
from ebbtide.records.arrays import to_timestamps

THIS_ROUND = Round(now_ms=10_000, delete_retention_ms=50, first_uncleanable_offset=10**6)
TIMES_MS = st.integers(0, 300)
RECORDS = st.lists(
    st.tuples(st.booleans(), st.booleans(), TIMES_MS, st.integers(3, 200)), min_size=1, max_size=4
)
HEADERS = st.fixed_dictionaries(
    {
        "attributes": st.sampled_from([0, 2, 4, 8, 64, 66, 72]),
        "base_timestamp_ms": TIMES_MS,
        "producer_id": st.sampled_from([-1, 7]),
        "size_bytes": st.integers(70, 300),
        "producer_timestamp_ms": st.sampled_from([None, 5]),
    }
)


@given(st.lists(st.tuples(RECORDS, HEADERS), min_size=1, max_size=6))
def test_all_at_once_is_as_one_by_one(
    batches: list[tuple[list[tuple[bool, bool, int, int]], dict[str, int]]],
) -> None:
    headers, rows, stays = [], [], []
    for number, (records, fields) in enumerate(batches):
        base = 10 * number
        newest_ms = max(ms for _, _, ms, _ in records)
        headers.append(
            Batch(base, base + 9, max_timestamp_ms=newest_ms, record_count=len(records), **fields)
        )
        for delta, (is_left, is_tombstone, at_ms, size_bytes) in enumerate(records):
            rows.append((base + delta, base, at_ms, at_ms + 1, is_tombstone, size_bytes))
            stays.append(is_left)
    table = pa.Table.from_pylist([header._asdict() for header in headers], schema=HEADER_SCHEMA)
    at_once, one_by_one = (
        rewrite_batches(_records(rows), BatchHeaders(table), verdicts, np.array(stays), THIS_ROUND)
        for verdicts in ({}, {header.base_offset: ORDINARY for header in headers})
    )
    assert _with_rows(at_once) == _with_rows(one_by_one)


HEADER_SCHEMA = pa.schema(
    [(name, pa.string() if name == "control_type" else pa.int64()) for name in Batch._fields]
)


def _records(rows: list[tuple[int, int, int, int, bool, int]]) -> Records:
    offsets, bases, times, events, tombstones, sizes = zip(*rows, strict=True)
    table = table_of(offsets, bases, [b"k"] * len(rows), tombstones, (times, events, sizes))
    return Records.of(table, future_limit_ms=10**9)


def table_of(
    offsets: Sequence[int],
    bases: Sequence[int],
    keys: Sequence[bytes | None],
    tombstones: Sequence[bool],
    others: tuple[Sequence[int], Sequence[int], Sequence[int]] | None = None,
) -> pa.Table:
    """Rows as a round reads them; `others` are their timestamps, event times and sizes."""
    times, events, sizes = others or ([0] * len(offsets), [0] * len(offsets), [9] * len(offsets))
    return pa.table(
        {
            "offset": offsets,
            "batch": bases,
            "timestamp": to_timestamps(np.array(times)),
            "event_time": to_timestamps(np.array(events)),
            "append_time": to_timestamps(np.full(len(offsets), -1)),
            "key": pa.array(keys, pa.binary()),
            "is_tombstone": tombstones,
            "size_bytes": pa.array(sizes, pa.int32()),
        }
    )


def _with_rows(done: Rewriting) -> tuple[object, ...]:
    """With the changes as rows, of which a removed one says nothing more."""
    rows = [
        {"base_offset": row["base_offset"]} if row["is_removed"] else row
        for row in done.changes.to_pylist()
    ]
    return (rows, *done[1:])
