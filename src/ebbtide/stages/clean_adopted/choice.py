"""Choose which logs of an adopted topic get a round now, as `clean_log` chooses among its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.planned.planned_round import PartitionRound
from ebbtide.iceberg.topics import Topic
from ebbtide.log.adopted.segments import segments_of
from ebbtide.log.logical_segments import Bounds as LogBounds
from ebbtide.log.logical_segments import Cleanable, cleanable
from ebbtide.log.reasons import Reason
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.stages.clean_adopted.victims import with_due_tombstones
from ebbtide.stages.clean_log.choice import UNBOUNDED, RoundBounds

NO_KEY = "the table has no key column"


@dataclass(slots=True)
class Choice:
    """The partitions that get a round, why or why not, and the ratios that decided."""

    parts: dict[int, PartitionRound] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    dirty_ratios: dict[int, float] = field(default_factory=dict)


def choose(
    topic: Topic,
    rows: AdoptedRows,
    snapshot: int,
    states: Mapping[int, PartitionState],
    now_ms: int,
    bounds: Mapping[int, RoundBounds] | None,
    pauses: Mapping[int, str],
) -> Choice:
    """Pick as Kafka's cleaner picks; beside that, logs in which a tombstone is due.

    Only partitions that have bounds are picked, where a kept plan gives any. `pauses` are why
    others are left alone.
    """
    choice, idle = Choice(), dict[int, PartitionRound]()
    for partition, state in states.items():
        if why := pauses.get(partition) or _reason_against(topic.config, rows, state, now_ms):
            choice.reasons[partition] = why
        elif bounds is not None and partition not in bounds:
            choice.reasons[partition] = Reason.NOT_PLANNED
        else:
            of = UNBOUNDED if bounds is None else bounds[partition]
            log = _cleanable(state, topic.config, now_ms, of.first_uncleanable_offset)
            is_picked = log.is_picked(topic.config.min_cleanable_dirty_ratio)
            ending = "" if is_picked else " is too low"
            choice.reasons[partition] = f"dirty ratio {log.ratio:.2f}{ending}"
            choice.dirty_ratios[partition] = log.ratio
            part = _part(state, log, is_idle=not is_picked)
            (choice.parts if is_picked else idle)[partition] = part
    if topic.config.cleans_idle:
        ends = {p: part.first_uncleanable_offset for p, part in idle.items()}
        for partition in with_due_tombstones(rows, snapshot, ends, states, now_ms):
            choice.parts[partition] = idle[partition]
            choice.reasons[partition] = Reason.HORIZON_REACHED
    return choice


def _reason_against(
    config: TopicConfig, rows: AdoptedRows, state: PartitionState, now_ms: int
) -> str | None:
    """Return why a partition gets no round, whatever is dirty; None where that decides."""
    if not config.is_compacted:
        return Reason.NOT_COMPACTED
    if rows.layout.key is None:
        return NO_KEY
    if now_ms <= state.cleaned_at_ms:
        return f"now is not later than the last round's, {state.cleaned_at_ms} ms"
    return None


def _cleanable(
    state: PartitionState, config: TopicConfig, now_ms: int, end_of_plan: int
) -> Cleanable:
    limits = LogBounds(
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty_offset=state.first_dirty_offset,
        last_stable_offset=state.log_end_offset,
        first_unmarked_offset=state.log_end_offset,
        end_of_plan=end_of_plan,
    )
    return cleanable(segments_of(state), limits, config, now_ms)


def _part(state: PartitionState, log: Cleanable, *, is_idle: bool) -> PartitionRound:
    return PartitionRound(
        log_start_offset=state.log_start_offset,
        first_segment_offset=state.first_segment,
        first_dirty_offset=log.first_dirty_offset,
        first_uncleanable_offset=log.first_uncleanable_offset,
        is_idle=is_idle,
    )
