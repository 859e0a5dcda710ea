"""Bring the replicas of topics up to their primaries.

`ebbtide.replicas` of a topic names them. Each gets the records and batches that it lacks, the
primary's settings and its log start offsets; tombstones and markers that a replica has not reached
are held back at the primary until then, so run this more often than `delete.retention.ms` passes.
Topics without replicas, and those whose replicas hold everything, start no Spark. Scheduled when
EBBTIDE_REPLICATE_SCHEDULE holds a cron expression.

[Its form](plugin/ebbtide/ebbtide/forms/replicate_log) suggests the lake's topics.
"""

from airflow.sdk import chain, dag

from ebbtide.orchestration.handover import GROUP_TOPICS, group_topics, stage, verdict
from ebbtide.orchestration.house import Purpose, house, schedule, topics, topics_per_application

JOB = "replicate_log"


@dag(
    schedule=schedule("EBBTIDE_REPLICATE_SCHEDULE"),
    **house(__doc__, Purpose.RETENTION),
    params={
        "topics": topics("all that are enabled"),
        "topics_per_application": topics_per_application(),
    },
)
def replicate_log() -> None:
    groups = group_topics()
    chain(groups, stage(JOB, groups), verdict([JOB], GROUP_TOPICS))


replicate_log()
