"""Times at the edge of 64 bits: no sum wraps around, and every moment has a text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ebbtide.columns.headers import TIMES, batch_totals
from ebbtide.columns.live_records import Records
from ebbtide.kafka.compaction import Round
from ebbtide.kafka.retention import NEVER, LogOffsets, expire, next_expiry_ms
from ebbtide.moments import (
    FIRST_MS,
    LAST_MS,
    after,
    before,
    earlier,
    iso_seconds,
    later,
    minute,
    to_datetime,
    to_ms,
    to_us,
)
from ebbtide.numbers import MAX_LONG, MIN_LONG, whole
from ebbtide.orchestration.pages.app import iso, relative
from ebbtide.settings.config import parse_config
from ebbtide.state.covered_offsets import after_round, due_ranges
from ebbtide.state.logical_segments import Segment
from ebbtide.state.topic_state import (
    MAX_SNAPSHOT_AGE,
    PartitionState,
    max_snapshot_age_ms,
    parse_states,
    to_properties,
)

LONGS = st.integers(MIN_LONG, MAX_LONG)
SPANS = st.integers(0, MAX_LONG)
# Where clocks and timestamps of real logs lie, and the edges.
NOWS = st.integers(1, 4 * 10**12)


@given(LONGS, LONGS)
@example(MAX_LONG, MAX_LONG)
@example(MIN_LONG, MAX_LONG)
def test_sums_are_of_64_bits_and_right_within_them(ms: int, span_ms: int) -> None:
    for found, exact in ((later(ms, span_ms), ms + span_ms), (earlier(ms, span_ms), ms - span_ms)):
        assert whole(found) == max(MIN_LONG, min(exact, MAX_LONG))


@given(LONGS)
@example(MAX_LONG)
@example(MIN_LONG)
@example(LAST_MS + 1)
@example(FIRST_MS - 1)
def test_every_moment_has_a_text(ms: int) -> None:
    texts = [minute(ms), iso_seconds(ms), iso(ms), relative(ms, 1_700_000_000_000)]
    assert all(len(text) <= 40 for text in texts)
    assert (texts[1] == "after 9999") == (ms > LAST_MS)
    assert datetime.min <= to_datetime(ms).replace(tzinfo=None) <= datetime.max


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (-1, "-"),
        (0, "1970-01-01 00:00"),
        (LAST_MS, "9999-12-31 23:59"),
        (LAST_MS + 1, "after 9999"),
        (10**15, "after 9999"),
        (MAX_LONG, "after 9999"),
    ],
)
def test_a_moment_is_read_to_the_minute(ms: int | None, text: str) -> None:
    assert minute(ms) == text


@given(st.datetimes(timezones=st.just(UTC)), SPANS)
def test_a_date_that_is_moved_is_a_date(at: datetime, span_ms: int) -> None:
    assert before(at, span_ms) <= at <= after(at, span_ms)


@given(st.datetimes(timezones=st.just(UTC)))
@example(datetime(9999, 12, 31, 23, 59, 59, 51_000, UTC))
def test_a_date_is_told_to_the_microsecond(at: datetime) -> None:
    assert to_datetime(0) + timedelta(microseconds=to_us(at)) == at
    assert to_us(at) // 1000 == to_ms(at)


@given(SPANS, NOWS, NOWS)
@example(MAX_LONG, 1_700_000_000_000, 1_700_000_000_000)
def test_what_a_run_notes_of_the_next_expiry_can_be_read_again(
    limit_ms: int, newest_ms: int, now_ms: int
) -> None:
    """A limit of 2^63-1 is Kafka's way to say for ever."""
    config = parse_config({"kafka.cleanup.policy": "delete", "kafka.retention.ms": str(limit_ms)})
    segments = [Segment(0, newest_ms, size_bytes=1, max_timestamp_ms=newest_ms)]
    due_ms = next_expiry_ms(segments, config)
    state = PartitionState(
        log_start_offset=0,
        log_end_offset=1,
        first_dirty_offset=0,
        first_unmarked_offset=0,
        segments=((0, newest_ms),),
        next_expiry_ms=due_ms,
    )
    assert parse_states(to_properties(0, state))[0].next_expiry_ms == due_ms
    removed = expire(
        segments, LogOffsets(0, 1, 1), config, now_ms=now_ms, max_event_time_ms=newest_ms
    ).removed
    assert bool(removed) == (due_ms != NEVER and now_ms >= due_ms)


@given(SPANS, NOWS)
def test_a_delete_horizon_is_never_past_when_it_is_given(span_ms: int, now_ms: int) -> None:
    given_ms = Round(now_ms, span_ms, 1).horizon_ms
    assert now_ms <= whole(given_ms)
    ranges = after_round((), 5, now_ms, span_ms)
    assert [horizon.horizon_ms for horizon in ranges] == [given_ms]
    assert due_ranges(ranges, 5, now_ms) == ([] if given_ms > now_ms else [(0, 5)])


TIME = pa.timestamp("us", tz="UTC")


@given(
    st.one_of(st.none(), st.integers(-(2**62), 2**62)),
    st.integers(0, 4 * 10**15),
    st.one_of(SPANS, st.just(MAX_LONG)),
)
def test_an_event_of_the_future_is_told_by_any_limit(
    event_us: int | None, append_us: int, limit_ms: int
) -> None:
    """2^63-1 is the default of message.timestamp.after.max.ms in brokers 3.6 to 3.9."""
    columns = {
        "offset": pa.array([0], pa.int64()),
        "batch": pa.array([0], pa.int64()),
        "timestamp": pa.array([event_us], pa.int64()).cast(TIME),
        "event_time": pa.array([event_us], pa.int64()).cast(TIME),
        "append_time": pa.array([append_us], pa.int64()).cast(TIME),
        "key": pa.array([b"k"]),
        "is_tombstone": pa.array([False]),
        "size_bytes": pa.array([1], pa.int32()),
    }
    rows = pa.table(columns)
    append_ms = append_us // 1000
    expected = None if event_us is None else event_us // 1000
    if expected is not None and expected - append_ms > limit_ms:
        expected = append_ms
    totals = batch_totals(0, rows.select(TIMES), limit_ms)
    assert totals["event_ms"].to_pylist() == [expected]
    assert Records.of(rows, limit_ms).event_times_ms.tolist() == [
        -1 if expected is None else expected
    ]


@given(SPANS)
def test_a_snapshot_age_may_be_any_of_64_bits(age_ms: int) -> None:
    assert max_snapshot_age_ms({MAX_SNAPSHOT_AGE: str(age_ms)}) == age_ms
