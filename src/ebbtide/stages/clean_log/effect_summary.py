"""A round's effect as a kept plan tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ebbtide.log.plans.summary import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    Staying,
    partition_summary,
)
from ebbtide.stages.clean_log.effect_numbers import RoundEffect
from ebbtide.stages.planned_rows import PlannedRows

# The rules by which records leave, as a partition's numbers have them.
_RULES = ("superseded", "aborted", "keyless", "tombstones_removed")
_REMOVING = (*_RULES, "markers_removed")
WAITS_FOR_HORIZON = "a tombstone stays until its delete horizon"
WAITS_FOR_REPLICA = "due, but a replica does not hold it yet"


def summaries_of(effect: RoundEffect, *, shows_keys: bool) -> dict[int, PartitionSummary]:
    """Return the summary of each partition of the round, on an adopted table if rows leave it."""
    return {
        partition: partition_summary(
            _leaving(numbers, effect.planned.get(partition, PlannedRows())),
            {rule: RuleNumbers(records=numbers[rule]) for rule in numbers if rule in _REMOVING},
            _staying(numbers),
            bytes_removed=numbers["bytes_before"] - numbers["bytes_after"],
            shows_keys=shows_keys,
        )
        for partition, numbers in effect.numbers.items()
        if "tombstones_kept" in numbers or any(numbers.get(rule) for rule in _RULES)
    }


def nothing_leaves(reason: str) -> PartitionSummary:
    """Return the summary of a partition that is not cleaned, and why."""
    stays = [Staying(reason=reason)] if reason else []
    return partition_summary(LeavingRows(), {}, stays)


def _leaving(numbers: Mapping[str, Any], planned: PlannedRows) -> LeavingRows:
    return LeavingRows(
        records=sum(numbers.get(rule, 0) for rule in _RULES),
        event_times_ms=list(planned.event_times_ms),
        keys=list(planned.keys),
    )


def _staying(numbers: Mapping[str, Any]) -> Iterator[Staying]:
    held_back = numbers.get("held_back", {}).get("tombstones", 0)
    if held_back:
        yield Staying(reason=WAITS_FOR_REPLICA, records=held_back)
    if waiting := numbers.get("tombstones_kept", 0) - held_back:
        yield Staying(reason=WAITS_FOR_HORIZON, records=waiting)
