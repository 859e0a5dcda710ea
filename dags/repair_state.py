"""Settle what somebody else did to a topic's rows or state, so that its nights go on.

A topic stands still once rows were added to its tables or removed from them by others, or its state
was edited. `plan` shows what was done, when, and what the repair would do about it; the plan is
kept. Without `plan_only`, `approve` asks then whether it may be executed, and the repair does what
the plan says or nothing. See docs/repair_state.md.

[Its form](plugin/ebbtide/ebbtide/forms/repair_state) suggests topics and partitions.
"""

from airflow.sdk import Param, dag

from ebbtide.orchestration.approval.chains import plan_and_approve
from ebbtide.orchestration.house import Purpose, asking, like, topic


def by_partition(title: str, description: str) -> Param:
    """Return a Param of any number of PARTITION=NUMBER lines."""
    return Param(
        None,
        type=["null", "array"],
        items={"type": "string", **like(r"^[0-9]+=[0-9]+$", "PARTITION=NUMBER, such as 0=1200")},
        title=title,
        description=f"One PARTITION=NUMBER a line: {description}",
    )


@dag(
    schedule=None,
    **asking(__doc__, Purpose.RECOVER),
    params={
        "topic": topic(),
        "keep_changes": Param(
            False,
            type="boolean",
            title="Keep changes",
            description="Leave the tables as others left them and rebuild the state from them, "
            "instead of taking their change back.",
        ),
        "log_start_offset": by_partition(
            "Log start offsets", "where a partition starts, if its state is lost."
        ),
        "max_event_time_ms": by_partition(
            "Largest event times", "what a partition ever held, if its state is lost."
        ),
        "plan_only": Param(
            True,
            type="boolean",
            title="Plan only",
            description="End after the plan, which shows what was done and what the repair would "
            "do; approve_plan executes it until it expires.",
        ),
    },
)
def repair_state() -> None:
    options = {
        "keep_changes": "--keep-changes",
        "log_start_offset": "--log-start-offset",
        "max_event_time_ms": "--max-event-time-ms",
    }
    plan_and_approve("repair_state", asked={"topics": ["{{ params.topic }}"], "options": options})


repair_state()
