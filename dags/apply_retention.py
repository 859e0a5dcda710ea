"""Apply retention to chosen topics now, in chosen stages, after an approval.

The run first marks tombstones, which removes nothing, and then plans all stages with one `now`.
`approve` shows the records that each rule would remove, and asks. After an approval the stages run
in the order of `nightly_retention`, each within its plan. After `expire_segments` the run asks
every replica to advance its log start offsets too.

[Its form](plugin/ebbtide/ebbtide/forms/apply_retention) suggests the lake's topics.
"""

from airflow.sdk import TriggerRule, chain, dag

from ebbtide.orchestration.dags import (
    APPROVE,
    PLAN,
    approval,
    choose_stages,
    choose_topics,
    rejections,
)
from ebbtide.orchestration.handover import conclude, publishing
from ebbtide.orchestration.house import Priority, house_of
from ebbtide.orchestration.job_chains import ExecutionOperator, PlanOperator
from ebbtide.orchestration.night import NIGHT
from ebbtide.orchestration.operator import EbbtideJobOperator
from ebbtide.orchestration.pool import SPARK_POOL
from ebbtide.specs.retention import APPLY_RETENTION, STAGES


def execution(stage: str) -> ExecutionOperator:
    """Return the task that executes a stage's plans, even if the stage before it had none."""
    is_first = stage == STAGES[0]
    rule = TriggerRule.ALL_SUCCESS if is_first else TriggerRule.ALL_DONE
    return ExecutionOperator(
        task_id=stage,
        job=stage,
        approval=APPROVE,
        trigger_rule=rule,
        priority_weight=Priority.APPROVED,
    )


@dag(**house_of(APPLY_RETENTION, __doc__))
def apply_retention() -> None:
    chosen, stages = choose_topics(), choose_stages()
    mark = EbbtideJobOperator(task_id="mark_tombstones", job="mark_tombstones", topics=chosen)
    plan = PlanOperator.partial(
        task_id=PLAN,
        topics=chosen,
        pool=SPARK_POOL,  # a mapped task ignores the operator's own default
        priority_weight=Priority.PLAN,
        map_index_template="{{ task.job }}",
    ).expand(job=stages)
    clean_log, expire_segments, expire_snapshots = map(execution, STAGES)
    delete_records = EbbtideJobOperator(
        task_id="delete_records",
        job="delete_records",
        topics=chosen,
        after="expire_segments",
        request_from="expire_segments",
        trigger_rule=TriggerRule.ALL_DONE,
        priority_weight=Priority.APPROVED,
    )
    reject = rejections(stages)
    chain(mark, plan, approval(PLAN, execution=STAGES[0]), [clean_log, reject])
    jobs = [clean_log, expire_segments, delete_records, expire_snapshots]
    chain(*jobs)
    judged = conclude(
        [mark, *jobs],
        publishes=publishing("expire_segments", "delete_records"),
        stages=NIGHT,
        plans=PLAN,
        approval=APPROVE,
    )
    chain(reject, judged)


apply_retention()
