"""Where to start looking for tombstones: at the first unmarked offset, or at an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ebbtide.errors import RequestError
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.numbers import MAX_INT, parse_whole


class FromOffset(NamedTuple):
    """The offset to mark again from; it applies to all partitions where it names none."""

    partition: int | None
    offset: int

    def __str__(self) -> str:
        return str(self.offset) if self.partition is None else f"{self.partition}:{self.offset}"


def parse_from_offset(text: str) -> FromOffset:
    """Parse OFFSET or PARTITION:OFFSET."""
    partition, colon, offset = text.rpartition(":")
    try:
        return FromOffset(parse_whole(partition, MAX_INT) if colon else None, parse_whole(offset))
    except ValueError:
        raise RequestError(f"expected OFFSET or PARTITION:OFFSET, found {text[:100]!r}") from None


def ranges_to_mark(
    states: Mapping[int, PartitionState],
    again_from: Mapping[int, int],
    ends: Mapping[int, int] | None = None,
) -> dict[int, tuple[int, int]]:
    """Return the offsets [first, end) of each partition that has any to look at.

    With `ends` it looks at no other partitions, and not beyond these.
    """
    ranges = {}
    for partition, state in states.items():
        end = state.log_end_offset if ends is None else ends.get(partition, 0)
        first = min(state.first_unmarked_offset, again_from.get(partition, state.log_end_offset))
        first = max(first, state.log_start_offset)
        if first < end:
            ranges[partition] = first, end
    return ranges


def offsets_to_mark_again_from(
    states: Mapping[int, PartitionState],
    cleaned_up_to: Mapping[int, int],
    asked: Sequence[FromOffset],
) -> dict[int, int]:
    """Return the offset asked for in each partition; RequestError for one out of bounds.

    Cleaned records keep their marks: `cleaned_up_to` is where a round in flight ends.
    """
    for_all = [each.offset for each in asked if each.partition is None]
    chosen = {each.partition: each.offset for each in asked if each.partition is not None}
    if len(for_all) > 1 or len(for_all) + len(chosen) < len(asked):
        raise RequestError(
            "expected one offset for each partition to mark again from, and one for all others, "
            f"found {', '.join(map(str, asked))}"
        )
    offsets = {p: chosen.get(p, for_all[0] if for_all else None) for p in (*states, *chosen)}
    known = {partition: offset for partition, offset in offsets.items() if offset is not None}
    for partition, offset in known.items():
        if partition not in states:
            raise RequestError(
                f"expected one of the partitions {', '.join(map(str, states))} to mark again, "
                f"found {partition}"
            )
        _check_bounds(partition, states[partition], cleaned_up_to.get(partition, 0), offset)
    return known


def _check_bounds(partition: int, state: PartitionState, cleaned_up_to: int, offset: int) -> None:
    first = max(state.log_start_offset, state.first_dirty_offset, cleaned_up_to)
    if first <= offset <= state.log_end_offset:
        return
    why = (
        "below that its tombstones are cleaned by the marks that they have"
        if state.log_start_offset <= offset < first
        else "the log holds no other"
    )
    raise RequestError(
        f"expected an offset in [{first}, {state.log_end_offset}] to mark partition {partition} "
        f"again from, found {offset}; {why}"
    )
