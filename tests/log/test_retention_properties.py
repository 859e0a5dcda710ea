"""What holds of every log when the event-time limit is all that is set (KIP-870)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ebbtide.kafka.retention import blocker, expiry_basis, next_expiry_ms, next_look_ms
from ebbtide.settings.config import TopicConfig, parse_config
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import NEVER, PartitionState
from tests.log.decided_retention import config_of, decided
from tests.log.retention_model import EVENT_MS, FUTURE_MS, GRANULARITY, NOW_MS, POLICY, Entry, Log

LONGEST_MS = 1_000


def only_event_time(limit_ms: int, granularity: str = "segment") -> TopicConfig:
    return config_of({POLICY: "delete", EVENT_MS: str(limit_ms), GRANULARITY: granularity})


def entry(event_age: int | None, append_age: int, *, is_marker: bool) -> Entry:
    is_untimed = event_age is None or is_marker
    event_ms = None if is_untimed else NOW_MS - (event_age or 0)
    return Entry(event_ms, NOW_MS - append_age, is_marker)


def log_of(segments: list[list[Entry]], start: int, watermark: int, gone_age: int | None) -> Log:
    bases = [10 * i for i in range(len(segments))]
    end = bases[-1] + len(segments[-1])
    start, watermark = sorted((min(start, end), min(watermark, end)))
    return Log(
        segments={base: tuple(entries) for base, entries in zip(bases, segments, strict=True)},
        end=end,
        start=start,
        high_watermark=watermark,
        gone_ms=-1 if gone_age is None else NOW_MS - gone_age,
    )


ENTRIES = st.builds(
    entry,
    st.none() | st.integers(-2 * FUTURE_MS, LONGEST_MS),
    st.integers(0, LONGEST_MS),
    is_marker=st.sampled_from([False, False, False, True]),
)
LOGS = st.builds(
    log_of,
    st.lists(st.lists(ENTRIES, max_size=4), min_size=1, max_size=5),
    st.integers(0, 25),
    st.integers(0, 50),
    st.none() | st.integers(0, LONGEST_MS),
)
LIMITS = st.integers(0, LONGEST_MS)
GRANULARITIES = st.sampled_from(["segment", "record"])


def timed(log: Log) -> dict[int, int]:
    """The event time of each record from the log start on that has one, by offset."""
    return {
        base + i: entry.counted_ms
        for base, entries in log.segments.items()
        for i, entry in enumerate(entries)
        if base + i >= log.start and not entry.is_marker and entry.event_ms is not None
    }


@given(log=LOGS, limit_ms=LIMITS, granularity=GRANULARITIES)
def test_the_record_that_set_max_event_time_stays(
    log: Log, limit_ms: int, granularity: str
) -> None:
    _, left = decided(log, only_event_time(limit_ms, granularity))
    newest_ms = max(log.newest_ms, log.gone_ms)
    assert {o for o, ms in timed(log).items() if ms == newest_ms} <= set(left.offsets)


@given(log=LOGS, limit_ms=LIMITS)
def test_at_record_granularity_nothing_past_the_limit_is_left(log: Log, limit_ms: int) -> None:
    _, left = decided(log, only_event_time(limit_ms, "record"))
    oldest_ms = max(log.newest_ms, log.gone_ms) - limit_ms
    times = timed(log)
    assert all(times[offset] >= oldest_ms for offset in left.offsets if offset in times)
    assert {offset for offset, ms in times.items() if ms >= oldest_ms} <= set(left.offsets)


@given(log=LOGS, limit_ms=LIMITS)
def test_at_segment_granularity_the_first_segment_left_reaches_the_limit(
    log: Log, limit_ms: int
) -> None:
    expiry, _ = decided(log, only_event_time(limit_ms))
    first, *others = expiry.kept
    end = others[0].base_offset if others else log.end
    may_go = end <= log.watermark and (bool(others) or first.size_bytes > 0)
    is_past = max(log.newest_ms, log.gone_ms) - first.max_event_time_ms > limit_ms
    assert not (may_go and first.max_event_time_ms >= 0 and is_past)
    assert not (may_go and first.record_count == 0)


@given(log=LOGS, granularity=GRANULARITIES, years=st.integers(0, 100))
def test_what_spans_no_more_than_the_limit_loses_nothing_however_old_it_is(
    log: Log, granularity: str, years: int
) -> None:
    everything = replace(log, gone_ms=-1, start=0)
    times = timed(everything).values()
    limit_ms = max(times, default=0) - min(times, default=0)
    now_ms = NOW_MS + years * 365 * 24 * 3_600_000
    _, left = decided(everything, only_event_time(limit_ms, granularity), now_ms=now_ms)
    assert timed(everything).keys() <= set(left.offsets)


@given(log=LOGS, limit_ms=LIMITS, granularity=GRANULARITIES, years=st.integers(0, 100))
def test_waiting_removes_nothing(log: Log, limit_ms: int, granularity: str, years: int) -> None:
    config = only_event_time(limit_ms, granularity)
    now_ms = NOW_MS + years * 365 * 24 * 3_600_000
    assert decided(log, config)[1] == decided(log, config, now_ms=now_ms)[1]


LIMIT_SETTINGS = st.fixed_dictionaries(
    {POLICY: st.sampled_from(["delete", "compact,delete", "compact"])},
    optional={
        "kafka.retention.ms": st.integers(-1, LONGEST_MS).map(str),
        "kafka.retention.bytes": st.integers(-1, 5_000).map(str),
        EVENT_MS: LIMITS.map(str),
        GRANULARITY: GRANULARITIES,
        "ebbtide.retention.combine": st.sampled_from(["any", "all"]),
    },
)


@given(log=LOGS, settings=LIMIT_SETTINGS, wait=st.integers(0, 3 * LONGEST_MS))
def test_before_the_next_expiry_nothing_goes_and_then_something_may(
    log: Log, settings: dict[str, str], wait: int
) -> None:
    log, config = replace(log, high_watermark=log.end), config_of(settings)
    expiry, left = decided(log, config)
    next_ms = next_expiry_ms(expiry.kept, config)
    event(f"next expiry {'never' if next_ms < 0 else 'unknown' if next_ms == 0 else 'known'}")
    rest = replace(
        log,
        segments={
            segment.base_offset: log.segments.get(segment.base_offset, ())
            for segment in expiry.kept
        },
        start=left.start,
        gone_ms=max(log.newest_ms, log.gone_ms),
    )
    before_ms = NOW_MS + wait if next_ms == NEVER else next_ms - 1
    if before_ms >= NOW_MS:
        again, left_later = decided(rest, config, now_ms=before_ms)
        assert (again.removed, left_later) == ([], left)
    if next_ms > 0 and "all" not in settings.values():
        again, _ = decided(rest, config, now_ms=max(next_ms, NOW_MS))
        assert again.removed  # it may lie below the log start offset, which then stays


@given(log=LOGS, settings=LIMIT_SETTINGS, wait=st.integers(0, 3 * LONGEST_MS))
def test_before_the_next_look_no_segment_is_held_back_and_then_it_is_told_each_night(
    log: Log, settings: dict[str, str], wait: int
) -> None:
    log, config = replace(log, high_watermark=log.end), config_of(settings)
    kept = decided(log, config)[0].kept
    newest_ms = max(log.newest_ms, log.gone_ms)

    def is_held_back(now_ms: int) -> bool:
        found = blocker(kept, config, now_ms=now_ms, max_event_time_ms=newest_ms)
        return found is not None

    next_ms = next_look_ms(kept, config, now_ms=NOW_MS, max_event_time_ms=newest_ms)
    expiry_ms = next_expiry_ms(kept, config)
    if is_held_back(NOW_MS):
        event("held back now")
        assert next_ms == 0
        return
    assert next_ms == expiry_ms or 0 < next_ms < (expiry_ms if expiry_ms > 0 else next_ms + 1)
    before_ms = NOW_MS + wait if next_ms == NEVER else next_ms - 1
    if before_ms >= NOW_MS:
        assert not is_held_back(before_ms)
    if 0 < next_ms != expiry_ms and "all" not in settings.values():
        event("held back later")
        assert is_held_back(next_ms)


BASIS = {
    POLICY: ("delete", "compact"),
    "kafka.retention.ms": ("1", "2"),
    "kafka.retention.bytes": ("1", "2"),
    EVENT_MS: ("1", "2"),
    GRANULARITY: ("segment", "record"),
    "ebbtide.retention.combine": ("any", "all"),
    "kafka.message.timestamp.after.max.ms": ("1", "2"),
}
STATE = PartitionState(
    log_start_offset=0,
    log_end_offset=9,
    first_dirty_offset=0,
    first_unmarked_offset=0,
    segments=(SegmentStart(0, 1), SegmentStart(5, 2)),
)


def test_the_basis_changes_with_each_setting_that_retention_goes_by() -> None:
    plain = {name: values[0] for name, values in BASIS.items()}
    bases = {expiry_basis(STATE, parse_config(plain))}
    for name, (_, other) in BASIS.items():
        bases.add(expiry_basis(STATE, parse_config({**plain, name: other})))
    assert len(bases) == 1 + len(BASIS)
    elsewhere = {**plain, "ebbtide.source": "segments:s3://logs", "ebbtide.enabled": "false"}
    assert expiry_basis(STATE, parse_config(elsewhere)) in bases


def test_the_basis_is_the_one_that_tables_hold_already() -> None:
    plain = {name: values[0] for name, values in BASIS.items()}
    assert expiry_basis(STATE, parse_config(plain)) == 55467208941685159


@pytest.mark.parametrize(
    "changes",
    [
        {"log_start_offset": 1},
        {"log_end_offset": 10},
        {"segments": ((5, 2),)},
        {"segments": ((0, 1), (5, 3))},
        {"cleaned_at_ms": 7},
        {"max_event_time_ms": 7},
        {"expired_end_offset": 7},
    ],
    ids=str,
)
def test_the_basis_changes_with_the_log(changes: dict[str, Any]) -> None:
    config = config_of({POLICY: "delete"})
    assert expiry_basis(STATE, config) != expiry_basis(replace(STATE, **changes), config)
