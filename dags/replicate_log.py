"""Bring the replicas of topics up to their primaries.

`ebbtide.replicas` of a topic names them. Each gets the records and batches that it lacks, the
primary's settings and its log start offsets; tombstones and markers that a replica has not reached
are held back at the primary until then, so run this more often than `delete.retention.ms` passes.
Topics without replicas, and those whose replicas hold everything, start no Spark. Scheduled when
EBBTIDE_REPLICATE_SCHEDULE holds a cron expression.
"""

import os
from datetime import datetime, timedelta

from airflow.sdk import Param, chain, dag

from ebbtide.orchestration.handover import GROUP_TOPICS, group_topics, stage, verdict

JOB = "replicate_log"


@dag(
    schedule=os.environ.get("EBBTIDE_REPLICATE_SCHEDULE"),
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["ebbtide"],
    doc_md=__doc__,
    params={
        "topics": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": r"^[^.]+\..+$"},
            minItems=1,
            title="Topics",
            description="One <cluster>.<topic> a line; empty means all that are enabled.",
        ),
        "topics_per_application": Param(
            50,
            type="integer",
            minimum=1,
            maximum=1000,
            title="Topics per Spark application",
            description="Starting Spark costs over ten seconds, so topics share an application.",
        ),
    },
)
def replicate_log() -> None:
    groups = group_topics()
    chain(groups, stage(JOB, groups), verdict([JOB], GROUP_TOPICS))


replicate_log()
