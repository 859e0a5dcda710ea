"""How much of a live topic is taken, and a slice as a property keeps it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ebbtide.errors import ForeignLogError, OffsetGapError, StateError
from ebbtide.kafka.live_offsets import BrokerOffsets, Range, Slice, next_slice, range_to_take, rest
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState


def held(log_end_offset: int, **changes: int) -> PartitionState:
    return PartitionState(
        log_start_offset=0,
        log_end_offset=log_end_offset,
        first_dirty_offset=0,
        first_unmarked_offset=0,
        segments=(SegmentStart(0, 0),),
        **changes,
    )


@pytest.mark.parametrize(
    ("state", "offered", "taken"),
    [
        pytest.param(None, (0, 9, 9), (0, 9), id="all of a new partition"),
        pytest.param(None, (4, 9, 7), (4, 7), id="what is readable of it"),
        pytest.param(None, (4, 4, 4), (4, 4), id="an empty one begins where the broker does"),
        pytest.param(held(5), (0, 9, 7), (5, 7), id="what is new"),
        pytest.param(held(5), (5, 9, 7), (5, 7), id="to the last offset before the loss"),
        pytest.param(held(5), (0, 9, 3), (5, 5), id="nothing while a transaction is open"),
        pytest.param(held(5), (0, 5, 5), (5, 5), id="nothing new"),
        pytest.param(held(9, first_appended_offset=5), (0, 5, 5), (9, 9), id="own records"),
    ],
)
def test_what_the_table_lacks(
    state: PartitionState | None, offered: tuple[int, int, int], taken: tuple[int, int]
) -> None:
    offsets = BrokerOffsets(*offered)
    assert range_to_take("t-0", state, offsets, accepts_gap=False) == Range(*taken)


def test_a_log_that_ends_before_the_table_was_truncated() -> None:
    message = "^expected t-0 to reach offset 5, the table's log end offset, found its end at 4: "
    with pytest.raises(ForeignLogError, match=message):
        range_to_take("t-0", held(5), BrokerOffsets(0, 4, 4), accepts_gap=True)


def test_what_the_broker_removed_is_lost_only_if_that_is_accepted() -> None:
    offsets = BrokerOffsets(8, 9, 9)
    with pytest.raises(OffsetGapError, match="3 offsets were removed there"):
        range_to_take("t-0", held(5), offsets, accepts_gap=False)
    assert range_to_take("t-0", held(5), offsets, accepts_gap=True) == Range(8, 9)


def test_offsets_that_the_table_was_given_directly_are_no_brokers() -> None:
    state = held(9, first_appended_offset=5)
    with pytest.raises(ForeignLogError, match="to end at or before offset 5"):
        range_to_take("t-0", state, BrokerOffsets(0, 6, 6), accepts_gap=True)


def test_slices_take_everything_once_in_order_and_no_more_than_asked() -> None:
    left = {0: Range(0, 10), 1: Range(5, 7), 2: Range(3, 3), 3: Range(4, 4), 4: Range(0, 0)}
    ends = {1: 5, 3: 4}
    taken: dict[int, list[int]] = {partition: [] for partition in left}
    sizes = []
    while piece := next_slice(left, ends, 6):
        for partition, taken_range in piece.items():
            taken[partition] += range(taken_range.start, taken_range.end)
            ends[partition] = taken_range.end
        sizes.append(sum(taken_range.offsets for taken_range in piece.values()))
        left = rest(left, piece)
    assert taken == {0: [*range(10)], 1: [5, 6], 2: [], 3: [], 4: []}
    assert ends == {0: 10, 1: 7, 2: 3, 3: 4, 4: 0}  # the new and empty partition too
    assert max(sizes) <= 6


def test_a_slice_is_kept_as_text() -> None:
    piece = Slice({0: Range(1, 5), 3: Range(2, 2)}, datetime(2026, 1, 2, tzinfo=UTC))
    assert Slice.parse(piece.to_property()) == piece


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"now":"x","ranges":{}}', '{"ranges":{"a":1}}'])
def test_a_slice_that_somebody_changed_is_refused(text: str) -> None:
    with pytest.raises(StateError, match=r"^expected a slice's clock and ranges in ebb"):
        Slice.parse(text)


def test_a_slice_is_finished_only_where_the_table_ends_before_it() -> None:
    piece = Slice({0: Range(5, 9), 1: Range(0, 2)}, datetime(2026, 1, 2, tzinfo=UTC))
    assert piece.continues({0: held(5)})
    assert piece.continues({0: held(3)})  # after a gap that was accepted
    assert not piece.continues({0: held(9)})
