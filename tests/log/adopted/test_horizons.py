"""Delete horizons as ranges of offsets against a model that keeps one for each offset."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.state.covered_offsets import (
    NOTHING_LEFT,
    PENDING,
    HorizonRange,
    OffsetRange,
    after_round,
    covered_end,
    due_ranges,
    next_horizon_ms,
    with_late,
)

RETENTION_MS = 10
ENDS = st.integers(0, 12)


def test_the_first_round_that_covers_an_offset_fixes_its_horizon() -> None:
    first = after_round((), 5, 100, RETENTION_MS)
    second = after_round(first, 8, 105, RETENTION_MS)
    assert second == (HorizonRange(5, 110), HorizonRange(8, 115))
    assert covered_end(second) == 8
    assert due_ranges(second, 8, 109) == []
    assert due_ranges(second, 8, 110) == [OffsetRange(0, 5)]
    assert due_ranges(second, 3, 115) == [OffsetRange(0, 3)]


def test_passed_ranges_with_nothing_left_become_one() -> None:
    ranges = after_round(after_round((), 5, 100, RETENTION_MS), 8, 105, RETENTION_MS)
    assert after_round(ranges, 9, 200, RETENTION_MS) == (
        HorizonRange(8, NOTHING_LEFT),
        HorizonRange(9, 210),
    )


def test_a_late_tombstone_waits_for_the_next_round() -> None:
    ranges = with_late(after_round((), 5, 100, RETENTION_MS), [OffsetRange(2, 3)])
    assert ranges == (HorizonRange(2, 110), HorizonRange(3, PENDING), HorizonRange(5, 110))
    assert due_ranges(ranges, 5, 111) == [OffsetRange(0, 2), OffsetRange(3, 5)]
    after = after_round(ranges, 5, 120, RETENTION_MS)
    assert after[1] == HorizonRange(3, 130)
    assert next_horizon_ms(after, 120) == 130


def test_a_late_tombstone_beyond_all_rounds_is_not_late() -> None:
    ranges = after_round((), 5, 100, RETENTION_MS)
    assert with_late(ranges, [OffsetRange(5, 7)]) == ranges


@given(st.lists(st.tuples(ENDS, ENDS, st.booleans()), max_size=8))
def test_ranges_agree_with_a_horizon_for_each_offset(steps: list[tuple[int, int, bool]]) -> None:
    horizons: tuple[HorizonRange, ...] = ()
    model: dict[int, int] = {}
    for number, (first, end, is_round) in enumerate(steps):
        now_ms = 100 + 7 * number
        if is_round:
            due = {o for o in model if o < end and 0 < model[o] <= now_ms}
            found = due_ranges(horizons, end, now_ms)
            assert {o for span in found for o in range(span.first, span.end)} == due
            for offset in range(end):
                if offset not in model or model[offset] == PENDING:
                    model[offset] = now_ms + RETENTION_MS
                elif model[offset] <= now_ms:
                    model[offset] = NOTHING_LEFT
            horizons = after_round(horizons, end, now_ms, RETENTION_MS)
        else:
            model |= {o: PENDING for o in range(first, end) if o in model}
            horizons = with_late(horizons, [OffsetRange(first, end)] if first < end else [])
    starts = [0, *(horizon.end_offset for horizon in horizons)]
    told = {
        offset: horizon.horizon_ms
        for first, horizon in zip(starts, horizons, strict=False)
        for offset in range(first, horizon.end_offset)
    }
    assert told == model
    assert all(one.horizon_ms != two.horizon_ms for one, two in pairwise(horizons))
