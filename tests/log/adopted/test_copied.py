"""Slices of a table's rows, and what the state keeps of the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import StateError
from ebbtide.kafka.live_offsets import Range
from ebbtide.layouts.copied import CopiedTable, RowsOfOffsets, slices_of
from ebbtide.layouts.layout import Layout

LAYOUT = Layout(profile="explicit", partition=1, offset=2, timestamp=3, values=(4, 5), headers=6)


def parts_of(counts: list[int], first: int) -> list[RowsOfOffsets]:
    ends = [first + sum(counts[: i + 1]) for i in range(len(counts))]
    return [RowsOfOffsets(*part) for part in zip(counts, ends, strict=True)]


@given(
    counts=st.lists(st.lists(st.integers(1, 5), max_size=6), min_size=1, max_size=4),
    most=st.integers(1, 30),
)
def test_slices_take_all_rows_in_order_and_few_at_a_time(
    counts: list[list[int]], most: int
) -> None:
    rows = {p: parts_of(numbers, 10 * p) for p, numbers in enumerate(counts)}
    starts = {p: 10 * p for p in rows}
    slices = list(slices_of(rows, starts, most))
    for partition, parts in rows.items():
        taken = [ranges[partition] for ranges in slices if partition in ranges]
        assert [cut.start for cut in taken] == [10 * partition, *(cut.end for cut in taken)][:-1]
        assert (taken[-1].end if taken else None) == (parts[-1].end_offset if parts else None)
    assert all(ranges for ranges in slices)
    largest = max((part.rows for parts in rows.values() for part in parts), default=0)
    assert all(sum(cut.offsets for cut in ranges.values()) < most + largest for ranges in slices)


def test_partitions_share_a_slice() -> None:
    rows = {0: parts_of([1] * 4, 0), 1: parts_of([1] * 2, 7)}
    assert list(slices_of(rows, {0: 0, 1: 7}, 4)) == [
        {0: Range(0, 2), 1: Range(7, 9)},
        {0: Range(2, 4)},
    ]


@pytest.mark.parametrize(
    "copied",
    [
        CopiedTable(table_id="x", layout=LAYOUT),
        CopiedTable(table_id="x", layout=LAYOUT, seen=-(2**62), until=2**62, ends={3: 7}),
    ],
)
def test_what_the_state_keeps_is_read_back(copied: CopiedTable) -> None:
    assert CopiedTable.of({"ebbtide.copied": copied.to_property()}) == copied
    assert CopiedTable.of({}) is None


@pytest.mark.parametrize("text", ["", "{}", '{"table_id": "x", "layout": {}}'])
def test_what_is_damaged_is_named(text: str) -> None:
    with pytest.raises(StateError, match=r"ebbtide\.copied"):
        CopiedTable.of({"ebbtide.copied": text})
