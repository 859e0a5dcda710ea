"""Ask for plans that wait for an approval, and execute them once somebody has given it.

A night never waits. A topic that trips one of its guards is left as it is, its plan is kept, and a
run of this DAG asks whether it may be executed after all; the next night replaces a plan that
nobody has answered. Or name plans yourself: those that a run with `plan_only` has kept.

[Its form](plugin/ebbtide/ebbtide/forms/approve_plan) suggests plans that wait.
"""

from airflow.sdk import Param, chain, dag

from ebbtide.orchestration.approval.chains import APPROVE, approval, rejections
from ebbtide.orchestration.approval.job_operators import ExecutionOperator
from ebbtide.orchestration.approval.waiting_plans import NAMED_PLANS, named_plans
from ebbtide.orchestration.handover import conclude, publishing
from ebbtide.orchestration.house import Priority, Purpose, asking, like
from ebbtide.orchestration.pool import SPARK_POOL

EXECUTE = "execute"
PLAN_ID = like(
    "^[a-z_]+-[0-9]{8}-[0-9a-f]{8}$", "the id of a plan, such as clean_log-20261122-5f0c1a2b"
)


@dag(
    schedule=None,
    is_paused_upon_creation=False,  # the night triggers it
    **asking(__doc__, Purpose.APPROVAL),
    params={
        "plans": Param(
            [],
            type="array",
            items={"type": "string", **PLAN_ID},
            minItems=1,
            title="Plans",
            description="One plan id a line; they are approved or rejected together.",
        ),
    },
)
def approve_plan() -> None:
    jobs = named_plans()
    execute = ExecutionOperator.partial(
        task_id=EXECUTE,
        approval=APPROVE,
        pool=SPARK_POOL,  # of a mapped task, only what is said here counts
        priority_weight=Priority.APPROVED,
        max_active_tis_per_dagrun=1,
        map_index_template="{{ task.job }}",
    ).expand(job=jobs)
    judged = conclude(
        [execute],
        publishes=publishing(EXECUTE),
        stages=[EXECUTE],
        plans=NAMED_PLANS,
        approval=APPROVE,
    )
    ask = approval(NAMED_PLANS, execution=EXECUTE)
    chain(jobs, ask, [execute, rejections(jobs)], judged)


approve_plan()
