"""Apply Kafka's log retention to every topic of the lake, every night.

Each stage is one Spark application for a group of topics; a stage whose topics have nothing to do
starts none. If a topic fails, its later stages are skipped, all other topics go on, and
`report_run` names each failure.

| stage | does |
|---|---|
| mark_tombstones | finds the records that are tombstones |
| clean_log | one round of Kafka's log cleaner for each partition that needs it |
| expire_segments | moves the log start offset by the topic's retention limits |
| delete_records | asks for the new log start offsets at every replica |
| expire_snapshots | frees on disk what no kept snapshot needs |

Data is out of the tables after its stage, and off the disk when `expire_snapshots` has dropped its
file and has then passed the age that the table keeps snapshots for. A topic that trips a guard,
such as ebbtide.max.delete.ratio, is left as it is, and `approve_plan` asks for its plan: the night
does not wait. EBBTIDE_NIGHTLY_SCHEDULE may hold another cron expression, or `ingested`: then each
ingest is followed by a night.

[Its form](plugin/ebbtide/ebbtide/forms/nightly_retention) suggests the lake's topics.
"""

from airflow.sdk import chain, dag

from ebbtide.orchestration.handover import GROUP_TOPICS, conclude, group_topics, publishing, stage
from ebbtide.orchestration.house import house_of, night_schedule
from ebbtide.orchestration.job_chains import ask_for, find_open_plans
from ebbtide.orchestration.night import NIGHT
from ebbtide.specs.retention import NIGHTLY_RETENTION


@dag(**{**house_of(NIGHTLY_RETENTION, __doc__), "schedule": night_schedule()})
def nightly_retention() -> None:
    groups, plans = group_topics(), find_open_plans()
    jobs = [
        stage("mark_tombstones", groups),
        stage("clean_log", groups, after="mark_tombstones"),
        stage("expire_segments", groups, after="clean_log"),
        stage("delete_records", groups, after="expire_segments", request_from="expire_segments"),
        stage("expire_snapshots", groups, after="delete_records"),
    ]
    chain(groups, *jobs)
    judged = conclude(
        jobs,
        plans,
        publishes=publishing(NIGHT[-1], "delete_records"),
        stages=NIGHT,
        groups=GROUP_TOPICS,
    )
    chain(plans, ask_for(plans), judged)


nightly_retention()
