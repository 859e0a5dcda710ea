"""The state of an adopted topic's partition to which an undo goes back, before what came since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ebbtide.log.adopted.segments import EMPTY
from ebbtide.log.state.topic_state import PartitionState


def state_to_return_to(before: Sequence[PartitionState], current: PartitionState) -> PartitionState:
    """Return the first of the states before each undone run, with the segments cut since.

    Those are empty: what has arrived since is still to be added.
    """
    first = before[0]
    segments = list(first.segments)
    for state in (*before[1:], current):
        segments += [of for of in state.segments if of.base_offset > segments[-1].base_offset]
    added = len(segments) - len(first.segments)
    return replace(
        first,
        log_end_offset=max(first.log_end_offset, segments[-1].base_offset),
        segments=tuple(segments),
        sums=(*first.sums, *[EMPTY] * added),
        place=current.place,
    )
