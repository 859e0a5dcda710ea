"""Times at the edge of 64 bits: no sum wraps around, and every moment has a text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ebbtide.columns.headers import TIMES, batch_totals
from ebbtide.columns.live_records import ActiveSegment, Records
from ebbtide.jobs.removed_rows import Scope, _is_expired
from ebbtide.kafka.adopted_segments import cut
from ebbtide.kafka.compaction import Round
from ebbtide.kafka.retention import NEVER, LogOffsets, expire, next_expiry_ms, record_limit
from ebbtide.ledger.plans import Removal, tripped
from ebbtide.moments import (
    FIRST_MS,
    LAST_MS,
    after,
    before,
    earlier,
    iso_seconds,
    later,
    minute,
    second,
    to_datetime,
    to_ms,
    to_us,
)
from ebbtide.numbers import MAX_LONG, MIN_LONG, whole
from ebbtide.orchestration.pages.app import iso, relative, value_in_words
from ebbtide.orchestration.pages.key import _lag
from ebbtide.settings.config import TopicConfig, parse_config
from ebbtide.state.covered_offsets import after_round, due_ranges
from ebbtide.state.logical_segments import Bounds, Segment, SegmentStart, SegmentSums, cleanable
from ebbtide.state.topic_state import (
    MAX_SNAPSHOT_AGE,
    PartitionState,
    max_snapshot_age_ms,
    parse_states,
    to_properties,
)
from ebbtide.text import span

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
    texts = [minute(ms), iso_seconds(ms), iso(ms), relative(ms, 1_700_000_000_000), second(ms)]
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


# The settings below, over all that `tests/log/settings/test_config.py` lets through. Each expected
# value is the rule said with Python's own numbers, which have no edge; what Kafka's classes say at
# the edge is in tests/log/test_against_kafka.py.
MOMENTS = st.one_of(st.integers(-1, MAX_LONG), NOWS)
LIMITS = st.one_of(st.integers(-1, MAX_LONG), st.integers(0, 10**13), st.just(MAX_LONG))
DELETE = {"kafka.cleanup.policy": "delete"}
EVENT_TIME = "kafka.retention.max.eventtime.ms"


def limits(
    limit_ms: int, event_limit_ms: int, needs_all: bool, more: dict[str, str]
) -> TopicConfig:
    """A topic with both limits of time, each alone or together."""
    combine = "all" if needs_all else "any"
    times = {"kafka.retention.ms": str(limit_ms), EVENT_TIME: str(event_limit_ms)}
    return parse_config(DELETE | times | {"ebbtide.retention.combine": combine} | more)


@given(LIMITS, LIMITS, MOMENTS, MOMENTS, MOMENTS, NOWS, st.booleans())
@example(MAX_LONG, MAX_LONG, 0, 0, MAX_LONG, 4 * 10**12, True)
@example(0, 0, MAX_LONG, MAX_LONG, MAX_LONG, 1, False)
@example(5, -1, 7, 7, 7, 12, False)
@example(-1, 5, 7, 7, 12, 12, False)
def test_a_segment_expires_by_any_limit_and_time(
    limit_ms: int,
    event_limit_ms: int,
    newest_event_ms: int,
    newest_append_ms: int,
    max_event_time_ms: int,
    now_ms: int,
    needs_all: bool,
) -> None:
    """retention.ms and retention.max.eventtime.ms, each alone would do or both have to."""
    config = limits(limit_ms, event_limit_ms, needs_all, {})
    first = Segment(
        0,
        now_ms,
        size_bytes=1,
        max_timestamp_ms=newest_append_ms,
        max_event_time_ms=newest_event_ms,
        max_append_time_ms=newest_append_ms,
        record_count=1,
    )
    removed = expire(
        [first, Segment(1, now_ms)],
        LogOffsets(0, 1, 1),
        config,
        now_ms=now_ms,
        max_event_time_ms=max_event_time_ms,
    ).removed
    by_event = newest_event_ms >= 0 and max_event_time_ms - newest_event_ms > event_limit_ms
    # Without an event-time limit a segment without any timestamp has its file's time, here `now`.
    told_ms = newest_append_ms if event_limit_ms >= 0 or newest_append_ms >= 0 else now_ms
    says = [now_ms - told_ms > limit_ms] if limit_ms >= 0 else []
    says += [by_event] if event_limit_ms >= 0 else []
    assert bool(removed) == (bool(says) and (all if needs_all else any)(says))


MICROS = st.one_of(st.none(), st.integers(-(2**63), MAX_LONG), st.integers(0, 4 * 10**15))


@given(
    st.lists(st.tuples(MICROS, MICROS), min_size=1, max_size=4),
    *(LIMITS, LIMITS, MOMENTS, NOWS, LIMITS, st.booleans()),
)
@example([(MAX_LONG, MAX_LONG)], 0, 0, MAX_LONG, 1, MAX_LONG, True)
def test_single_records_expire_by_any_limit_and_time(
    times_us: list[tuple[int | None, int | None]],
    limit_ms: int,
    event_limit_ms: int,
    max_event_time_ms: int,
    now_ms: int,
    future_ms: int,
    needs_all: bool,
) -> None:
    """retention.max.eventtime.ms of single records, beside retention.ms if both have to say so."""
    config = limits(
        limit_ms, event_limit_ms, needs_all, {"ebbtide.retention.granularity": "record"}
    )
    limit = record_limit(config, now_ms=now_ms, max_event_time_ms=max_event_time_ms)
    is_limited = needs_all and limit_ms >= 0
    before_ms = [max_event_time_ms - event_limit_ms] if event_limit_ms >= 0 else []
    before_ms += [now_ms - limit_ms] if is_limited and before_ms else []
    if not before_ms or min(before_ms) <= 0:
        assert limit is None
        return
    assert limit is not None
    assert [whole(ms) for ms in limit if ms is not None] == before_ms
    rows = pa.table(
        {
            "offset": pa.array(range(len(times_us)), pa.int64()),
            "event_time": pa.array([event for event, _ in times_us], pa.int64()).cast(TIME),
            "append_time": pa.array([append for _, append in times_us], pa.int64()).cast(TIME),
        }
    )
    scope = Scope(0, len(times_us), limit, max(0, future_ms))

    def expires(event: int | None, append: int | None) -> bool:
        told = [] if event is None else [event]
        if event is not None and append is not None:
            told += [append] if event // 1000 - append // 1000 > scope.future_ms else []
        by_event = any(us < before_ms[0] * 1000 for us in told)
        return by_event and (
            not is_limited or (append is not None and append < before_ms[1] * 1000)
        )

    assert _is_expired(rows, scope).tolist() == [expires(*times) for times in times_us]


@given(st.integers(MIN_LONG, MAX_LONG), st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
@example(MAX_LONG, [1])
@example(MIN_LONG, [1])
@example(0, [1])
def test_segments_expire_by_any_size(limit_bytes: int, sizes: list[int]) -> None:
    config = parse_config(DELETE | {"kafka.retention.bytes": str(limit_bytes)})
    segments = [Segment(n, 1, size_bytes=size) for n, size in enumerate(sizes)]
    end = len(sizes)
    kept = expire(
        [*segments, Segment(end, 1)],
        LogOffsets(0, end, end),
        config,
        now_ms=1,
        max_event_time_ms=-1,
    ).kept_bytes
    left = next(n for n in range(end + 1) if n == end or sum(sizes[n + 1 :]) < limit_bytes)
    assert kept == sum(sizes if limit_bytes < 0 else sizes[left:])


@given(st.integers(0, MAX_LONG), st.integers(1, MAX_LONG), MOMENTS, NOWS)
@example(MAX_LONG, MAX_LONG, MAX_LONG, 1)
@example(MAX_LONG, MAX_LONG, 1, 4 * 10**12)
@example(0, 1, MAX_LONG, 4 * 10**12)
@example(5, 5, 7, 12)
def test_what_may_be_compacted_by_any_lag_and_time(
    least_ms: int, most_ms: int, newest_ms: int, now_ms: int
) -> None:
    """min.compaction.lag.ms and max.compaction.lag.ms, Kafka: LogCleanerManager."""
    config = TopicConfig(min_compaction_lag_ms=least_ms, max_compaction_lag_ms=most_ms)
    dirty = Segment(
        0, now_ms, size_bytes=1, max_timestamp_ms=newest_ms, first_batch_timestamp_ms=newest_ms
    )
    found = cleanable([dirty, Segment(1, now_ms)], Bounds(0, 1, 0, 1, 1), config, now_ms)
    told_ms = newest_ms if newest_ms >= 0 else now_ms
    is_young = least_ms > 0 and told_ms > now_ms - least_ms
    assert found.first_uncleanable_offset == (0 if is_young else 1)
    assert found.is_overdue == (newest_ms > 0 and newest_ms < now_ms - most_ms)


@given(st.integers(1, MAX_LONG), MOMENTS, MOMENTS, NOWS)
@example(MAX_LONG, 0, MAX_LONG, 4 * 10**12)
@example(1, MAX_LONG, -1, 1)
def test_a_segment_is_rolled_by_any_age(
    limit_ms: int, first_ms: int, timestamp_ms: int, now_ms: int
) -> None:
    """segment.ms, of a live topic and of an adopted one."""
    config = TopicConfig(segment_ms=limit_ms)
    active = ActiveSegment(0, now_ms, size_bytes=1, first_timestamp_ms=first_ms)
    is_old = first_ms >= 0 and timestamp_ms - first_ms > limit_ms
    assert active.is_old_at(timestamp_ms, config, now_ms) == is_old
    state = PartitionState(
        log_start_offset=0,
        log_end_offset=1,
        first_dirty_offset=0,
        first_unmarked_offset=1,
        segments=(SegmentStart(0, now_ms),),
        sums=(SegmentSums(1, first_ms, first_ms, 1),),
    )
    is_closed = len(cut(state, config, now_ms).segments) == 2
    assert is_closed == (first_ms >= 0 and now_ms - first_ms >= limit_ms)


@given(*[st.integers(0, MAX_LONG)] * 4, st.floats(0, 1), st.floats(0, 1))
@example(MAX_LONG, 0, MAX_LONG, 0, 1.0, 0.0)
@example(0, MAX_LONG, 0, MAX_LONG, 0.0, 1.0)
def test_a_guard_counts_to_the_edge(
    most: int, records: int, most_bytes: int, size_bytes: int, most_share: float, share: float
) -> None:
    config = parse_config(
        {
            "ebbtide.max.delete.records": str(most),
            "ebbtide.max.delete.bytes": str(most_bytes),
            "ebbtide.max.delete.ratio": str(most_share),
        }
    )
    message = tripped("log.t", config, Removal(records, size_bytes, share))
    shown = {
        f"{records:,} records": records > most,
        f"{size_bytes:,} bytes": size_bytes > most_bytes,
        "of the bytes": share > most_share,
    }
    for text, is_tripped in shown.items():
        assert (text in message.partition(", found ")[2]) == is_tripped, message


SETTINGS_OF_LONGS = [
    *("retention.ms", "retention.bytes", "retention.max.eventtime.ms", "segment.ms"),
    *("delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms"),
]


@given(st.sampled_from(SETTINGS_OF_LONGS), LONGS)
@example("retention.ms", MAX_LONG)
@example("retention.bytes", MIN_LONG)
def test_any_setting_has_a_short_text(name: str, value: int) -> None:
    assert len(value_in_words(str(value), f"kafka.{name}")) < 20


@given(SPANS, NOWS)
@example(MAX_LONG, 1)
def test_a_key_has_reasons_by_any_setting(value: int, now_ms: int) -> None:
    config = TopicConfig(min_compaction_lag_ms=value, delete_retention_ms=value)
    assert len(_lag(config)) < 90
    assert all(len(span(ms)) < 30 for ms in (value, value - now_ms))
