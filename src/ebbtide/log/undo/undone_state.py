"""The state of a partition once the runs since a point are undone: as before, and what came since.

An ingest moves the end, adds segments and stamps the active one; the other fields are a removing
run's, and go back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ebbtide.log.adopted.segments import EMPTY
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.log.state.topic_state import PartitionState


def undone_state(
    before: Sequence[PartitionState],
    current: PartitionState,
    *,
    filled_segments: Collection[int],
    quarantined_end: int,
) -> PartitionState:
    """Return the state that takes the place of `current`.

    `before` are the states before each undone run, oldest first. `filled_segments` are the physical
    segments that hold batches, `quarantined_end` is the offset after the last quarantined
    record, NEVER without one.
    """
    first = before[0]
    return replace(
        first,
        log_end_offset=current.log_end_offset,
        first_dirty_offset=min(first.first_dirty_offset, current.first_dirty_offset),
        # Rows come back with the marks that they had in the newest of these states.
        first_unmarked_offset=min(s.first_unmarked_offset for s in (*before, current)),
        segments=_segments(before, current, filled_segments),
        max_event_time_ms=current.max_event_time_ms,
        expired_end_offset=max(
            first.expired_end_offset, min(current.expired_end_offset, quarantined_end)
        ),
        first_appended_offset=current.first_appended_offset,
        place=current.place,
    )


def _segments(
    before: Sequence[PartitionState], current: PartitionState, filled_segments: Collection[int]
) -> tuple[SegmentStart, ...]:
    """Return the first state's segments, and what ingests have added or stamped since."""
    # Retention that removes the whole log begins a segment at its end, which nobody else began.
    rolled = {state.log_end_offset for state in before} - set(filled_segments)
    segments = list(before[0].segments)
    for state in (*before[1:], current):
        for base, modified_ms in state.segments:
            last = segments[-1]
            if base == last.base_offset or (
                base > last.base_offset and base in rolled and state.log_end_offset > base
            ):
                segments[-1] = SegmentStart(last.base_offset, modified_ms)
            elif base > last.base_offset and base not in rolled:
                segments.append(SegmentStart(base, modified_ms))
    return tuple(segments)


def state_to_return_to(before: Sequence[PartitionState], current: PartitionState) -> PartitionState:
    """Return an adopted topic's state before the first undone run, with the segments cut since.

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
