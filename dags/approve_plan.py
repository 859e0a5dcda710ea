"""Ask for the approval of stored plans, and execute the plans that are approved.

A nightly run never waits for an answer. If a guard stops a stage on a topic, the nightly run stores
a plan instead of removing records, and a run of this DAG asks whether to execute it. Without an
answer, the next nightly run replaces the plan. You can also name plans that a run with `plan_only`
has stored.

[Its form](plugin/ebbtide/ebbtide/forms/approve_plan) suggests plans that wait.
"""

from airflow.sdk import chain, dag

from ebbtide.orchestration.dags import APPROVE, approval, rejections
from ebbtide.orchestration.handover import conclude, publishing
from ebbtide.orchestration.house import Priority, house_of
from ebbtide.orchestration.job_chains import LOAD_PLANS, ExecutionOperator, load_plans
from ebbtide.orchestration.pool import SPARK_POOL
from ebbtide.specs.retention import APPROVE_PLAN

EXECUTE = "execute_plans"


# Not paused: nightly_retention triggers it.
@dag(is_paused_upon_creation=False, **house_of(APPROVE_PLAN, __doc__))
def approve_plan() -> None:
    jobs = load_plans()
    execute = ExecutionOperator.partial(
        task_id=EXECUTE,
        approval=APPROVE,
        pool=SPARK_POOL,  # a mapped task ignores the operator's own default
        priority_weight=Priority.APPROVED,
        max_active_tis_per_dagrun=1,
        map_index_template="{{ task.job }}",
    ).expand(job=jobs)
    judged = conclude(
        [execute],
        publishes=publishing(EXECUTE),
        stages=[EXECUTE],
        plans=LOAD_PLANS,
        approval=APPROVE,
    )
    ask = approval(LOAD_PLANS, execution=EXECUTE)
    chain(jobs, ask, [execute, rejections(jobs)], judged)


approve_plan()
