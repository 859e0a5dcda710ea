"""Rules and their order; test_retention_combinations.py compares what is left with a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.kafka.retention import Expiry, LogOffsets, Rule, blocker, expire
from ebbtide.settings.config import TopicConfig
from ebbtide.state.logical_segments import Segment
from tests.log.builders import T0, segment

NOW_MS = T0 + 10_000
BOTH = frozenset({"compact", "delete"})
LOG = [segment(0), segment(10), segment(20), segment(30)]


def expired(
    segments: Sequence[Segment] = LOG,
    *,
    start: int = 0,
    high_watermark: int = 40,
    max_event_time_ms: int = -1,
    **config: Any,
) -> Expiry:
    """What retention does to a log that ends at 40, with cleanup.policy delete."""
    return expire(
        segments,
        LogOffsets(start, 40, high_watermark),
        TopicConfig(**{"cleanup_policy": frozenset({"delete"}), **config}),
        now_ms=NOW_MS,
        max_event_time_ms=max_event_time_ms,
    )


def removed(expiry: Expiry) -> list[tuple[int, str]]:
    return [(segment.base_offset, str(rule)) for segment, rule in expiry.removed]


def aged(*ages_ms: int) -> list[Segment]:
    """Segments of ten offsets, whose newest records are that much older than now."""
    return [segment(10 * i, max_timestamp_ms=NOW_MS - age) for i, age in enumerate(ages_ms)]


# -- each rule


@pytest.mark.parametrize(
    ("limit_bytes", "gone"),
    [
        pytest.param(400, [], id="a log of that size loses nothing"),
        pytest.param(301, [], id="nor one that would fall below it"),
        pytest.param(300, [0], id="one that falls to it loses a segment"),
        pytest.param(1, [0, 10, 20], id="the log never falls below retention.bytes"),
        pytest.param(0, [0, 10, 20, 30], id="unless it may be empty"),
        pytest.param(-1, [], id="below 0 is no limit"),
    ],
)
def test_which_segments_are_too_many(limit_bytes: int, gone: list[int]) -> None:
    expiry = expired(retention_bytes=limit_bytes)
    assert removed(expiry) == [(base, "size") for base in gone]


@pytest.mark.parametrize(
    ("start", "gone"),
    [
        pytest.param(9, [], id="a segment that the log start offset lies in stays"),
        pytest.param(10, [0], id="one that ends there goes"),
        pytest.param(35, [0, 10, 20], id="the active segment stays whatever lies below"),
        pytest.param(40, [0, 10, 20], id="also when all of it does"),
    ],
)
@pytest.mark.parametrize("policy", [None, frozenset(), frozenset({"compact"}), BOTH])
def test_segments_below_the_log_start_offset_go_by_any_policy(
    policy: frozenset[str] | None, start: int, gone: list[int]
) -> None:
    expiry = expired(start=start, cleanup_policy=policy)
    assert removed(expiry) == [(base, "log_start_offset") for base in gone]
    assert expiry.log_start_offset == start


# -- rules together


def test_the_first_rule_that_takes_a_segment_is_its_rule() -> None:
    log = aged(500, 500, 500, 0)
    expiry = expired(log, start=10, retention_bytes=200, retention_ms=100)
    assert removed(expiry) == [(0, "log_start_offset"), (10, "size"), (20, "time")]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(None, id="no policy"),
        pytest.param(frozenset(), id="an empty policy"),
        pytest.param(frozenset({"compact"}), id="compact"),
    ],
)
def test_without_delete_no_limit_removes(policy: frozenset[str] | None) -> None:
    expiry = expired(
        aged(500, 500),
        cleanup_policy=policy,
        retention_ms=0,
        retention_bytes=0,
        retention_max_eventtime_ms=0,
        max_event_time_ms=NOW_MS,
    )
    assert removed(expiry) == []


def test_without_limits_nothing_goes() -> None:
    assert removed(expired(aged(10**12, 10**12))) == []
    assert removed(expired(retention_ms=-1, retention_max_eventtime_ms=-1)) == []


@pytest.mark.parametrize(
    ("high_watermark", "gone"),
    [
        pytest.param(9, [], id="a segment that reaches above the high watermark stays"),
        pytest.param(10, [0], id="one that ends at it goes"),
        pytest.param(39, [0, 10, 20], id="the active segment ends at the log end offset"),
    ],
)
def test_nothing_at_or_above_the_high_watermark_goes(high_watermark: int, gone: list[int]) -> None:
    expiry = expired(high_watermark=high_watermark, retention_bytes=0)
    assert [segment.base_offset for segment, _ in expiry.removed] == gone


def test_an_empty_active_segment_stays() -> None:
    empty = [Segment(40, T0)]
    assert expired(empty, start=40, retention_ms=0, retention_bytes=0) == Expiry([], empty, 40)


# -- properties

SEGMENTS = st.lists(
    st.builds(
        lambda size, age, event: Segment(
            0,
            T0,
            size,
            max_timestamp_ms=NOW_MS - age,
            max_event_time_ms=event,
            record_count=size,
        ),
        st.integers(0, 3).map(lambda n: 100 * n),
        st.integers(-50, 200),
        st.integers(-1, 200),
    ),
    min_size=1,
    max_size=4,
).map(lambda log: [s._replace(base_offset=10 * i) for i, s in enumerate(log)])
LIMITS = st.fixed_dictionaries(
    {
        "retention_ms": st.none() | st.integers(-1, 200),
        "retention_bytes": st.none() | st.integers(-1, 800),
        "retention_max_eventtime_ms": st.none() | st.integers(-1, 200),
        "cleanup_policy": st.sampled_from([None, frozenset({"compact"}), BOTH]),
    }
)


@given(log=SEGMENTS, limits=LIMITS, start=st.integers(0, 40), watermark=st.integers(0, 40))
def test_what_goes_is_a_prefix_by_rules_in_their_order(
    log: list[Segment], limits: dict[str, Any], start: int, watermark: int
) -> None:
    start = min(start, watermark)
    expiry = expired(log, start=start, high_watermark=watermark, max_event_time_ms=200, **limits)
    gone = [segment for segment, _ in expiry.removed]
    rules = [list(Rule).index(rule) for _, rule in expiry.removed]
    is_rolled = len(gone) == len(log)
    assert gone == log[: len(gone)]
    assert expiry.kept == ([Segment(40, NOW_MS)] if is_rolled else log[len(gone) :])
    assert rules == sorted(rules)
    assert start <= expiry.log_start_offset <= watermark
    assert not gone or expiry.kept[0].base_offset <= watermark


@given(log=SEGMENTS, limits=LIMITS)
def test_a_second_run_at_once_removes_nothing(log: list[Segment], limits: dict[str, Any]) -> None:
    first = expired(log, max_event_time_ms=200, **limits)
    again = expired(first.kept, start=first.log_start_offset, max_event_time_ms=200, **limits)
    assert again == Expiry([], first.kept, first.log_start_offset)


@given(log=SEGMENTS, limit_bytes=st.integers(0, 1200))
def test_size_retention_leaves_the_shortest_log_not_below_the_limit(
    log: list[Segment], limit_bytes: int
) -> None:
    expiry = expired(log, retention_bytes=limit_bytes)
    total = sum(segment.size_bytes for segment in log)
    left = sum(segment.size_bytes for segment in expiry.kept)
    assert left >= min(limit_bytes, total)
    next_out = expiry.kept[0].size_bytes
    assert left - next_out < limit_bytes or expiry.kept == [Segment(40, NOW_MS)] or next_out == 0


def test_a_segment_that_holds_others_back_is_told_with_them() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"delete"}), retention_ms=10)
    kept = [
        Segment(base, 0, 9, max_timestamp_ms=ms, record_count=1)
        for base, ms in enumerate([95, 50, 99, 60, 70])
    ]
    found = blocker(kept, config, now_ms=100, max_event_time_ms=-1)
    assert found is not None
    assert (found.segment, found.newest_ms, found.next_base_offset) == (kept[0], 95, 1)
    assert found.held == [kept[1], kept[3]]  # and not the active one
    assert blocker(kept[2:3], config, now_ms=100, max_event_time_ms=-1) is None
    assert blocker(kept, config, now_ms=59, max_event_time_ms=-1) is None


def test_a_segment_that_holds_others_back_by_event_time_is_told() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"delete"}), retention_max_eventtime_ms=10)
    kept = [
        Segment(base, 0, 9, max_event_time_ms=ms, record_count=ms >= 0)
        for base, ms in enumerate([95, 50, -1, 60, 100])
    ]
    found = blocker(kept, config, now_ms=7, max_event_time_ms=100)
    assert found is not None
    assert (found.newest_ms, found.held) == (95, [kept[1], kept[3]])
