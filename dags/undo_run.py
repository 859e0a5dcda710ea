"""Undo a run that removed records from a topic: they come back, once somebody has approved it.

Later runs that removed from the same partitions go back with it, the last one first. `approve`
shows what would come back and what cannot, and asks. Records that were ingested since stay. Nothing
is then removed from what came back for 7 days, so change the setting that removed it meanwhile. The
low watermarks that the undo has lowered are published with the run that it undid. What an erasure
removed never comes back, nor what was truncated at the brokers. See docs/undo_run.md.

[Its form](plugin/ebbtide/ebbtide/forms/undo_run) suggests topics and runs that can be undone.
"""

from airflow.sdk import dag

from ebbtide.orchestration.approval.chains import plan_and_approve
from ebbtide.orchestration.house import Purpose, asking, plan_only, required, topic


@dag(
    schedule=None,
    **asking(__doc__, Purpose.RECOVER),
    params={
        "topic": topic(),
        "run": required("Run", "The id of the run that removed, as lake.ebbtide.runs has it."),
        "plan_only": plan_only(),
    },
)
def undo_run() -> None:
    plan_and_approve(
        "undo_run",
        asked={"topics": ["{{ params.topic }}"], "options": {"run": "--run"}},
        publishes=True,
    )


undo_run()
