"""The state of a topic's partitions after a cleaner round."""

from __future__ import annotations

from ebbtide.iceberg.planned.planned_round import CleaningRound, open_round
from ebbtide.iceberg.topics import PropertyChanges, Topic
from ebbtide.log.logical_segments import Segment, merged
from ebbtide.log.state.topic_state import NEVER, ROUND, PartitionState, to_properties
from ebbtide.stages.clean_adopted.judge_rows import state_after_rows
from ebbtide.stages.clean_log.effect_numbers import RoundEffect


def finish_state(
    this_round: CleaningRound, effect: RoundEffect, current: Topic
) -> PropertyChanges | None:
    """Return the property changes that end the round; None where it is no longer in flight."""
    in_flight = open_round(current)
    if in_flight is None or in_flight.id != this_round.id:
        return None
    changes: dict[str, str | None] = {ROUND: None}
    for partition, part in in_flight.partitions.items():
        state = current.partitions[partition]
        if current.is_adopted:
            after = state_after_rows(state, in_flight, partition)
        else:
            after = _after_batches(state, partition, this_round, effect)
        end = part.first_uncleanable_offset
        after = after.moved(
            first_dirty_offset=state.first_dirty_offset if part.is_idle else end,
            cleaned_at_ms=this_round.now_ms,
            cleaned_end_offset=state.log_end_offset,
        )
        changes |= to_properties(partition, after)
    return changes


def _after_batches(
    state: PartitionState, partition: int, this_round: CleaningRound, effect: RoundEffect
) -> PartitionState:
    known = {segment.base_offset: segment for segment in effect.segments[partition]}
    segments = [
        known.get(base, Segment(base, ms))._replace(modified_ms=ms) for base, ms in state.segments
    ]
    end = this_round.partitions[partition].first_uncleanable_offset
    return state.moved(
        segments=tuple(of.start for of in merged(segments, end, this_round.segment_bytes)),
        next_clean_ms=effect.next_clean_ms[partition],
        horizon_ms=effect.numbers[partition]["next_horizon_ms"] or NEVER,
    )
