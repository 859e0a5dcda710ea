from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.kafka.batch_header import likely_unit, unit_in_words

NOW_MS = 1_764_200_000_000


@pytest.mark.parametrize(
    ("timestamp_ms", "unit"),
    [
        (NOW_MS, None),
        (NOW_MS + 86_400_000, None),
        (NOW_MS // 1000, "seconds"),
        (NOW_MS * 1000, "microseconds"),
        (NOW_MS * 1_000_000, "nanoseconds"),
        (-1, None),
        (0, None),
        (NOW_MS * 2, None),  # a date of the future, but in milliseconds
        (2**63 - 1, None),
    ],
)
def test_the_unit_that_makes_a_timestamp_one_of_our_time(
    timestamp_ms: int, unit: str | None
) -> None:
    assert likely_unit(timestamp_ms, NOW_MS) == unit


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_any_timestamp_has_words(timestamp_ms: int, now_ms: int) -> None:
    if (unit := likely_unit(timestamp_ms, now_ms)) is not None:
        assert f"look like {unit}" in unit_in_words(unit, timestamp_ms)
