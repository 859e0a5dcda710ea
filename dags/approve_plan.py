"""Ask for plans that wait for an approval, and execute them once somebody has given it.

A night never waits. A topic that trips one of its guards is left as it is, its plan is kept, and a
run of this DAG asks whether it may be executed after all; the next night replaces a plan that
nobody has answered. Or name plans yourself: those that a run with `plan_only` has kept.

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


# The night triggers it.
@dag(is_paused_upon_creation=False, **house_of(APPROVE_PLAN, __doc__))
def approve_plan() -> None:
    jobs = load_plans()
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
        plans=LOAD_PLANS,
        approval=APPROVE,
    )
    ask = approval(LOAD_PLANS, execution=EXECUTE)
    chain(jobs, ask, [execute, rejections(jobs)], judged)


approve_plan()
