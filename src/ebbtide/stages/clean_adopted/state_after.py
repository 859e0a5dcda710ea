"""The state of an adopted topic's partition after a cleaner round; the round alone decides it."""

from __future__ import annotations

from ebbtide.iceberg.planned.planned_round import CleaningRound
from ebbtide.log.adopted.horizons import after_round, next_horizon_ms
from ebbtide.log.adopted.segments import merged_into, segments_of
from ebbtide.log.logical_segments import merged
from ebbtide.log.state.topic_state import NEVER, PartitionState


def state_after(state: PartitionState, this_round: CleaningRound, partition: int) -> PartitionState:
    """Return the state with the round's horizons, and its segments merged as Kafka merges them."""
    part = this_round.partitions[partition]
    end = part.first_uncleanable_offset
    horizons = after_round(state.horizons, end, this_round.now_ms, this_round.delete_retention_ms)
    heads = merged(segments_of(state), end, this_round.segment_bytes)
    grouped = merged_into(state, heads, this_round.removed.get(partition, {}))
    waits_ms = next_horizon_ms(horizons, this_round.now_ms) or NEVER
    return grouped.moved(
        first_dirty_offset=state.first_dirty_offset if part.is_idle else end,
        horizons=horizons,
        cleaned_at_ms=this_round.now_ms,
        cleaned_end_offset=state.log_end_offset,
        next_clean_ms=waits_ms,
        horizon_ms=waits_ms,
    )
