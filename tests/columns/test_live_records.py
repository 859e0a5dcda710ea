"""Batches and segments of what Spark's Kafka source hands over, against a model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.columns.live_records import ActiveSegment, Appender, to_headers
from ebbtide.records.arrays import TIMESTAMP_HEADER, payload_size
from ebbtide.records.batch import HEADERS_TYPE
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.settings.config import TopicConfig

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
CONFIG = TopicConfig(segment_bytes=600, segment_ms=100, max_message_bytes=200)
FIRST_OFFSET = 5
FAR_MS = 2**62  # in no column of microseconds
HEADERS = ([], [("a", b"1"), ("é", None), ("a", b"")])


class Given(NamedTuple):
    """A record as the source gives it."""

    gap: int  # offsets that are missing before it
    timestamp_ms: int
    is_stamped: bool
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


GIVEN = st.builds(
    Given,
    st.sampled_from([0, 0, 0, 1, 300]),
    st.one_of(st.just(-1), st.integers(0, 400), st.sampled_from([FAR_MS, 2**63 - 1])),
    st.booleans(),
    st.one_of(st.none(), st.binary(max_size=4)),
    st.one_of(st.none(), st.binary(max_size=90)),
    st.sampled_from(HEADERS),
)


def is_far(record: Given) -> bool:
    return record.timestamp_ms >= FAR_MS


def held_headers(record: Given) -> list[tuple[str, bytes | None]]:
    """The headers that a table has of it: one keeps a timestamp that no column can hold."""
    kept = [(TIMESTAMP_HEADER, b"%d" % record.timestamp_ms)] if is_far(record) else []
    return [*record.headers, *kept]


def table_of(records: Sequence[Given]) -> tuple[pa.Table, list[int]]:
    offsets, offset = [], FIRST_OFFSET
    for record in records:
        offset += record.gap
        offsets.append(offset)
        offset += 1
    table = pa.table(
        {
            "partition": pa.array([7] * len(records), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(
                [None if is_far(r) else r.timestamp_ms * 1000 for r in records],
                pa.timestamp("us", tz="UTC"),
            ),
            "timestampType": pa.array([int(r.is_stamped) for r in records], pa.int32()),
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in held_headers(r)] or None for r in records],
                HEADERS_TYPE,
            ),
        }
    )
    return table, offsets


def appended(
    records: Sequence[Given], chunks: Sequence[int], active: ActiveSegment, config: TopicConfig
) -> pa.Table:
    """The rows, handed over in chunks of these sizes and a rest."""
    table, _ = table_of(records)
    appender = Appender(active, config, NOW)
    done, at = [], 0
    for size in chunks:
        done.append(appender.append(table.slice(at, size)))
        at += size
    done.append(appender.append(table.slice(at), is_last=True))
    return pa.concat_tables(done)


def model(
    records: Sequence[Given], active: ActiveSegment, config: TopicConfig
) -> list[tuple[int, int]]:
    """(batch, segment) of each record, going from one to the next."""
    _, offsets = table_of(records)
    batches: list[list[int]] = []
    places: list[int] = []
    segment, created_ms, size, first_ms = active
    most = min(config.max_message_bytes, config.segment_bytes)

    def bytes_of(rows: Sequence[int]) -> int:
        return len(encoded([records[i] for i in rows], [offsets[i] for i in rows]))

    def close() -> None:
        """The last batch is complete: it goes into the segment, or begins one."""
        nonlocal segment, created_ms, size, first_ms
        rows = batches[-1]
        waited_ms = NOW_MS - created_ms if size else 0
        if first_ms >= 0:
            waited_ms = max(records[i].timestamp_ms for i in rows) - first_ms
        is_full = size > 0 and size + bytes_of(rows) > config.segment_bytes
        if is_full or waited_ms > config.segment_ms:
            segment, created_ms, size, first_ms = offsets[rows[0]], NOW_MS, 0, -1
        if not size:
            first_ms = records[rows[0]].timestamp_ms
        size += bytes_of(rows)
        places.append(segment)

    for i, record in enumerate(records):
        if batches:
            first = records[batches[-1][0]]
            is_other = record.is_stamped != first.is_stamped or (
                first.is_stamped and record.timestamp_ms != first.timestamp_ms
            )
            since_ms = first_ms
            if since_ms < 0 or first.timestamp_ms - since_ms > config.segment_ms:
                since_ms = first.timestamp_ms
            is_late = since_ms >= 0 and record.timestamp_ms - since_ms > config.segment_ms
            if not (is_other or is_late or bytes_of([*batches[-1], i]) > most):
                batches[-1].append(i)
                continue
            close()
        batches.append([i])
    if batches:
        close()
    pairs = zip(batches, places, strict=True)
    return [(offsets[rows[0]], place) for rows, place in pairs for _ in rows]


def encoded(records: Sequence[Given], offsets: Sequence[int]) -> bytes:
    """The batch as Kafka would write it, uncompressed."""
    return write_batch(
        BatchFields(base_offset=offsets[0]),
        [
            Record(offset, r.timestamp_ms, r.key, r.value, raw_headers(r))
            for offset, r in zip(offsets, records, strict=True)
        ],
    )


def raw_headers(record: Given) -> list[tuple[bytes, bytes | None]]:
    return [(name.encode(), value) for name, value in record.headers]


@given(
    st.lists(GIVEN, min_size=1, max_size=30),
    st.lists(st.integers(0, 12), max_size=4),
    st.sampled_from(
        [ActiveSegment(5, NOW_MS), ActiveSegment(1, NOW_MS, 350, 90), ActiveSegment(1, 0, 200)]
    ),
)
def test_batches_and_segments_are_those_of_a_model_however_the_rows_come(
    records: list[Given], chunks: list[int], active: ActiveSegment
) -> None:
    rows = appended(records, chunks, active, CONFIG)
    _, offsets = table_of(records)
    assert rows["offset"].to_pylist() == offsets
    places = list(zip(rows["batch"].to_pylist(), rows["segment"].to_pylist(), strict=True))
    assert places == model(records, active, CONFIG)


@given(st.lists(GIVEN, min_size=1, max_size=20))
def test_a_header_is_that_of_the_batch_as_kafka_would_write_it(records: list[Given]) -> None:
    rows = appended(records, [], ActiveSegment(5, NOW_MS), CONFIG)
    of_offset = dict(zip(rows["offset"].to_pylist(), records, strict=True))
    is_stamped = pa.array([record.is_stamped for record in records]).to_numpy(False)
    for header in to_headers(rows, is_stamped).to_pylist():
        offsets = [
            row["offset"] for row in rows.to_pylist() if row["batch"] == header["base_offset"]
        ]
        of_batch = [of_offset[offset] for offset in offsets]
        assert header["size_bytes"] == len(encoded(of_batch, offsets))
        assert (header["base_offset"], header["last_offset"]) == (offsets[0], offsets[-1])
        assert header["record_count"] == len(of_batch)
        assert header["base_timestamp_ms"] == of_batch[0].timestamp_ms
        assert header["max_timestamp_ms"] == max(record.timestamp_ms for record in of_batch)
        assert header["attributes"] == (8 if of_batch[0].is_stamped else 0)
        assert (header["producer_id"], header["producer_epoch"], header["base_sequence"]) == (
            -1, -1, -1,
        )  # fmt: skip
        assert (header["crc"], header["leader_epoch"], header["magic"]) == (None, None, 2)
        if of_batch[0].is_stamped:
            assert {record.timestamp_ms for record in of_batch} == {of_batch[0].timestamp_ms}


@given(st.lists(GIVEN, min_size=1, max_size=10))
def test_a_row_keeps_what_the_record_is(records: list[Given]) -> None:
    rows = appended(records, [], ActiveSegment(5, NOW_MS), CONFIG).to_pylist()
    for row, record in zip(rows, records, strict=True):
        is_held = record.timestamp_ms != -1 and not is_far(record)
        timestamp = record.timestamp_ms if is_held else None
        assert ms(row["timestamp"]) == ms(row["event_time"]) == timestamp
        is_known = record.is_stamped and timestamp is not None
        assert ms(row["append_time"]) == (timestamp if is_known else NOW_MS)
        assert (row["key"], row["value"]) == (record.key, record.value)
        assert [(header["key"], header["value"]) for header in row["headers"]] == held_headers(
            record
        )
        assert row["size_bytes"] == payload_size(record.key, record.value, raw_headers(record))
        assert (row["attributes"], row["is_tombstone"], row["tombstone_by"]) == (0, False, None)


def ms(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


@pytest.mark.parametrize("gap", [2**31 - 2, 2**31 - 1, 2**31])
def test_offsets_that_a_batch_cannot_hold_begin_another_and_a_segment(gap: int) -> None:
    first, second = (Given(skipped, 0, False, b"k", b"v", []) for skipped in (0, gap))
    rows = appended([first, second], [], ActiveSegment(5, NOW_MS), CONFIG)
    later = 5 if gap < 2**31 - 1 else gap + 6
    assert rows["batch"].to_pylist() == rows["segment"].to_pylist() == [5, later]


def test_a_record_larger_than_a_batch_is_one() -> None:
    small, large = (Given(0, 0, False, b"k", b"v" * n, []) for n in (1, 1000))
    rows = appended([small, large, small], [], ActiveSegment(5, NOW_MS), CONFIG)
    assert rows["batch"].to_pylist() == [5, 6, 7]
    assert rows["segment"].to_pylist() == [5, 6, 7]
    into_empty = appended([large], [], ActiveSegment(1, NOW_MS), CONFIG)
    assert into_empty["segment"].to_pylist() == [1]


@pytest.mark.parametrize(("after_ms", "segments"), [(100, [5, 5]), (101, [5, 6])])
def test_a_segment_rolls_when_more_than_segment_ms_has_passed(
    after_ms: int, segments: list[int]
) -> None:
    records = [Given(0, at_ms, False, b"k", b"v", []) for at_ms in (50, 50 + after_ms)]
    for chunks in ([], [1]):
        rows = appended(records, chunks, ActiveSegment(5, NOW_MS), CONFIG)
        assert rows["batch"].to_pylist() == rows["segment"].to_pylist() == segments
    held = appended(records[1:], [], ActiveSegment(1, NOW_MS, 350, 50), CONFIG)
    assert held["segment"].to_pylist() == [1 if after_ms == 100 else 5]


@pytest.mark.parametrize(("spare", "batches"), [(0, [5, 5]), (-1, [5, 6])])
def test_a_batch_is_full_at_the_very_byte(spare: int, batches: list[int]) -> None:
    records = [Given(0, 0, False, b"k", b"v" * 20, []) for _ in range(2)]
    config = TopicConfig(max_message_bytes=len(encoded(records, [5, 6])) + spare)
    rows = appended(records, [], ActiveSegment(5, NOW_MS), config)
    assert rows["batch"].to_pylist() == batches


def test_a_row_with_the_offset_of_the_row_before_is_left_out() -> None:
    """Also where the one before came with an earlier call."""
    table, _ = table_of([Given(0, 7, False, b"k", b"v", [])] * 3)
    again = pa.concat_tables([table, table.slice(2), table.slice(2)])
    appender = Appender(ActiveSegment(FIRST_OFFSET, NOW_MS), CONFIG, NOW)
    parts = [appender.append(again), appender.append(again.slice(4), is_last=True)]
    assert pa.concat_tables(parts)["offset"].to_pylist() == [5, 6, 7]
