"""Take back that a table is a topic: the properties on it and the state beside it go, rows stay.

[Its form](plugin/ebbtide/ebbtide/forms/abandon_table) suggests the lake's topics.
"""

from airflow.sdk import Param, chain, dag

from ebbtide.orchestration.handover import verdict
from ebbtide.orchestration.house import Purpose, house, topic
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "abandon_table"


@dag(
    schedule=None,
    **house(__doc__, Purpose.SETTINGS),
    params={
        "topic": topic(),
        "plan_only": Param(
            True,
            type="boolean",
            title="Plan only",
            description="Show what would go; change nothing.",
        ),
    },
)
def abandon_table() -> None:
    chain(
        EbbtideJobOperator(
            task_id=JOB,
            job=JOB,
            topics=["{{ params.topic }}"],
            options={"plan_only": "--plan-only"},
            needs_spark=True,
        ),
        verdict([JOB]),
    )


abandon_table()
