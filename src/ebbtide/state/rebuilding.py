"""Rebuild a topic's state from its tables: exactly if possible, else so that more is retained.

docs/repair_state.md explains for each property how its value is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ebbtide.errors import RequestError
from ebbtide.numbers import MAX_INT, MAX_LONG, parse_whole
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import CLOCKS, NEVER, PartitionState


class LogInTables(NamedTuple):
    """A partition's offsets [start, end) and segments, as found in its batches."""

    start: int
    end: int
    segments: tuple[SegmentStart, ...]  # modified_ms: the largest timestamp, or -1
    max_event_time_ms: int


@dataclass(frozen=True, slots=True)
class RepairInput:
    """The operator's values, by partition, for facts that are in no table."""

    log_start_offsets: Mapping[int, int] = field(default_factory=dict)
    max_event_times_ms: Mapping[int, int] = field(default_factory=dict)


def parse_asked(name: str, lines: Sequence[str]) -> dict[int, int]:
    """Parse lines of `PARTITION=NUMBER`. Raise RequestError for any other line."""
    asked: dict[int, int] = {}
    for line in lines:
        partition, equals, number = line.partition("=")
        try:
            if not equals:
                raise ValueError
            asked[parse_whole(partition.strip(), MAX_INT)] = parse_whole(number.strip(), MAX_LONG)
        except ValueError:
            raise RequestError(
                f"expected PARTITION=NUMBER for {name}, found {line!r:.80}"
            ) from None
    return asked


def rebuilt_states(
    told: Mapping[int, PartitionState],
    held: Mapping[int, LogInTables],
    asked: RepairInput,
    now_ms: int,
) -> dict[int, PartitionState]:
    """Return the state of each partition; `told` has the states that can be trusted."""
    partitions = {*told, *held, *asked.log_start_offsets}
    return {
        p: _kept(told[p], held.get(p)) if p in told else _made(p, held.get(p), asked, now_ms)
        for p in sorted(partitions)
    }


def _kept(told: PartitionState, held: LogInTables | None) -> PartitionState:
    """Return the recorded state up to the end of the rows, with all of it unmarked and dirty."""
    start = told.log_start_offset
    end = min(told.log_end_offset, max(start, start if held is None else held.end))
    segments = tuple(s for s in told.segments if s.base_offset < end) or told.segments[:1]
    return replace(
        told,
        log_end_offset=end,
        segments=segments,
        first_dirty_offset=start,
        first_unmarked_offset=start,
        **CLOCKS,
    )


def _made(
    partition: int, held: LogInTables | None, asked: RepairInput, now_ms: int
) -> PartitionState:
    if held is None:
        start = asked.log_start_offsets[partition]
        held = LogInTables(start, start, (SegmentStart(start, now_ms),), NEVER)
    start = asked.log_start_offsets.get(partition, held.start)
    end = max(start, held.end)
    # A segment without timestamps counts as written now, so that it is retained longest.
    segments = tuple(SegmentStart(base, now_ms if ms < 0 else ms) for base, ms in held.segments)
    newest_ms = asked.max_event_times_ms.get(partition, NEVER)
    return PartitionState(
        log_start_offset=start,
        log_end_offset=end,
        first_dirty_offset=start,
        first_unmarked_offset=start,
        segments=segments,
        max_event_time_ms=max(newest_ms, held.max_event_time_ms),
        expired_end_offset=end,  # retention may have removed single records anywhere
    )
