"""One segment in a round: its share of the offset map, and what becomes of its records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.segment_cleaning import clean_segment, dirty_keys
from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.compaction import Round
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.log_directory_writer import Record
from tests.columns.test_rewritten_batches import HEADER_SCHEMA, ORDINARY, table_of
from tests.log.plain_cleaner import surviving

ROWS = pa.table(
    {
        "offset": [0, 1, 2, 3, 4, 5],
        "batch": [0, 0, 2, 2, 4, 4],
        "key": pa.array([b"a", b"b", b"a", None, b"b", b"c"], pa.binary()),
    }
)
NOW_MS = 1_000
# Of each record: its key, whether it is a tombstone. Of each batch: its horizon.
RECORDS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", None]), st.booleans()), min_size=1, max_size=4
)
BATCHES = st.lists(
    st.tuples(RECORDS, st.sampled_from([None, NOW_MS - 1, NOW_MS, NOW_MS + 1])),
    min_size=1,
    max_size=6,
)


def latest(discarded: list[int], first_dirty_offset: int) -> dict[bytes, int]:
    """Each key with its last dirty offset."""
    keys = dirty_keys(ROWS, discarded, first_dirty_offset)
    return dict(zip(keys["key"].to_pylist(), keys["offset"].to_pylist(), strict=True))


def test_each_key_is_known_by_its_last_dirty_record() -> None:
    assert latest([], 0) == {b"a": 2, b"b": 4, b"c": 5}


def test_what_lies_before_the_first_dirty_offset_supersedes_nothing() -> None:
    assert latest([], 3) == {b"b": 4, b"c": 5}


def test_aborted_data_supersedes_nothing() -> None:
    assert latest([4], 0) == {b"a": 2, b"b": 1}


@given(
    BATCHES,
    st.dictionaries(st.sampled_from([b"a", b"b"]), st.integers(0, 60)),
    st.integers(0, 60) | st.just(MAX_OFFSET),
)
def test_column_by_column_is_as_one_by_one(
    batches: list[tuple[list[tuple[bytes | None, bool]], int | None]],
    latest_offsets: dict[bytes | None, int],
    held_back_from: int,
) -> None:
    this_round = Round(NOW_MS, 50, 10**6, held_back_from=held_back_from)
    freely = this_round._replace(held_back_from=MAX_OFFSET)
    headers, rows = [], []
    kept, kept_freely = set[int](), set[int]()
    for number, (of_batch, horizon_ms) in enumerate(batches):
        base = 10 * number
        header = Batch(base, base + 9, base_timestamp_ms=0, record_count=len(of_batch))
        if horizon_ms is not None:
            header = header._replace(attributes=64, base_timestamp_ms=horizon_ms)
        headers.append(header)
        records = [
            Record(base + i, 0, key, None if is_tombstone else b"v")
            for i, (key, is_tombstone) in enumerate(of_batch)
        ]
        rows += [(r.offset, base, r.key, r.value is None) for r in records]
        for a_round, left in ((this_round, kept), (freely, kept_freely)):
            survivors = surviving(header, ORDINARY, records, latest_offsets, this_round=a_round)
            left.update(record.offset for record in survivors)

    def is_superseded(keys: pa.ChunkedArray, offsets: Int64s) -> Bools:
        latest = np.array([latest_offsets.get(key, -1) for key in keys.to_pylist()])
        return np.asarray(offsets < latest)

    offsets, bases, keys, is_tombstone = zip(*rows, strict=True)
    done = clean_segment(
        table_of(offsets, bases, keys, is_tombstone),
        BatchHeaders(pa.Table.from_pylist([h._asdict() for h in headers], schema=HEADER_SCHEMA)),
        {},
        is_superseded,
        this_round,
        10**9,
    )
    assert set(np.array(offsets)[~done.is_victim].tolist()) == kept
    assert done.tombstones_held_back == len(kept - kept_freely)
