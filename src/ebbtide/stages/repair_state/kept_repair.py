"""What a kept plan of a repair says beside the rows, and whether a repair is still that.

A topic that others have changed stands still, so that an execution finds what the plan has found:
no other change, the same way, the same snapshots to go back to, the same state to set. A killed
execution leaves less to do, never more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ebbtide.errors import PlanExceededError
from ebbtide.log.state.topic_state import PREFIX, PartitionState, to_properties

if TYPE_CHECKING:
    from ebbtide.stages.repair_state.plan import RepairPlan

LONGEST = 60  # of a value in the plan; the segments of a long log are a hash
MAX_NAMED = 5  # differences of an error


def decisions_of(plan: RepairPlan) -> dict[str, Any]:
    """Return what the repair would do beside taking rows out, as a plan's parameters keep it."""
    return {
        "found": plan.what,
        "way": plan.way,
        "back_to": {table: str(snapshot) for table, snapshot in plan.targets.items()},
        "sets": {str(p): state_in_short(state) for p, state in plan.states.items()},
    }


def state_in_short(state: PartitionState) -> dict[str, str]:
    """Return a partition's state by the names of its properties, long values as their SHA-256."""
    of_partition = to_properties(0, state)
    return {name.removeprefix(f"{PREFIX}0."): _short(value) for name, value in of_partition.items()}


def check_as_planned(plan: RepairPlan, planned: Mapping[str, Any]) -> None:
    """Raise PlanExceededError where the repair would change what the plan does not say.

    `planned` are the parameters of the kept plan.
    """
    if differences := list(_differences(decisions_of(plan), planned)):
        rest = len(differences) - MAX_NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        raise PlanExceededError(
            f"expected to repair {plan.topic.name} as its plan says, found since it was made: "
            f"{'; '.join(differences[:MAX_NAMED])}{more}; nothing was changed, make a new plan"
        )


def _differences(found: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the repair would change otherwise; nothing where nothing is left to repair."""
    if not found["found"]:
        return
    for line in found["found"]:
        if line not in planned["found"]:
            yield f"another change of others, {line}"
    if found["way"] != planned["way"]:
        yield f"the way {found['way']} instead of {planned['way']}"
    for table, snapshot in found["back_to"].items():
        if (target := planned["back_to"].get(table, "where it is")) != snapshot:
            yield f"the {table} table back at snapshot {snapshot} instead of {target}"
    for partition in sorted({*found["sets"], *planned["sets"]}, key=int):
        of_both = (of["sets"].get(partition, {}) for of in (found, planned))
        yield from _state_differences(partition, *of_both)


def _state_differences(
    partition: str, found: Mapping[str, str], planned: Mapping[str, str]
) -> Iterator[str]:
    for name in dict.fromkeys([*found, *planned]):
        if found.get(name) != planned.get(name):
            instead = f"{found.get(name)} instead of {planned.get(name)}"
            yield f"{name} {instead} in partition {partition}"


def _short(value: str) -> str:
    if len(value) <= LONGEST:
        return value
    return f"sha-256 {hashlib.sha256(value.encode()).hexdigest()[:16]}"
