"""Mark the tombstones of a topic by the rules that it has now.

`ebbtide.tombstone.*` say what makes one. A changed rule is for what is not marked yet; with
`from_offset`, records from there on are marked again, and those that are none by the new rule are
unmarked. What is cleaned already stays as it is: lower offsets are refused. With `plan_only`, the
task's log shows how many records would change, and how many would go to the quarantine.
"""

from datetime import datetime, timedelta

from airflow.sdk import Param, chain, dag

from ebbtide.orchestration.handover import verdict
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "mark_tombstones"


@dag(
    schedule=None,
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["ebbtide"],
    doc_md=__doc__,
    params={
        "topic": Param(
            "demo.flights",
            type="string",
            pattern=r"^[^.]+\..+$",
            title="Topic",
            description="<cluster>.<topic>, as the lake names it.",
        ),
        "from_offset": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": "^([0-9]+:)?[0-9]+$"},
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
    chain(
        EbbtideJobOperator(
            task_id=JOB,
            job=JOB,
            topics=["{{ params.topic }}"],
            options={"from_offset": "--from-offset", "plan_only": "--plan-only"},
            needs_spark=True,
        ),
        verdict([JOB]),
    )


mark_tombstones()
