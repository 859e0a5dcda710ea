"""Mark the tombstones of a topic by the rules that it has now.

`ebbtide.tombstone.*` say what makes one. A changed rule is for what is not marked yet; with
`from_offset`, records from there on are marked again, and those that are none by the new rule are
unmarked. What is cleaned already stays as it is: lower offsets are refused. `plan` shows how many
records would change; where some would go to the quarantine, `approve` asks first.

[Its form](plugin/ebbtide/ebbtide/forms/mark_tombstones) suggests topics and partitions.
"""

from airflow.sdk import Param, dag

from ebbtide.orchestration.approval.chains import plan_and_approve
from ebbtide.orchestration.house import Purpose, asking, like, topic


@dag(
    schedule=None,
    **asking(__doc__, Purpose.RETENTION),
    params={
        "topic": topic(),
        "from_offset": Param(
            None,
            type=["null", "array"],
            items={
                "type": "string",
                **like("^([0-9]+:)?[0-9]+$", "PARTITION:OFFSET or OFFSET, such as 0:1200"),
            },
            minItems=1,
            title="From offset",
            description="One PARTITION:OFFSET a line, or OFFSET for all others; empty means what "
            "is not marked yet.",
        ),
        "plan_only": Param(
            True,
            type="boolean",
            title="Plan only",
            description="Show what would be marked, unmarked and quarantined.",
        ),
    },
)
def mark_tombstones() -> None:
    asked = {"topics": ["{{ params.topic }}"], "options": {"from_offset": "--from-offset"}}
    plan_and_approve("mark_tombstones", asked=asked)


mark_tombstones()
