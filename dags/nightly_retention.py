"""Apply Kafka's log retention to every topic of the lake, every night.

Each stage runs one Spark application for a group of topics, or none if no topic has work. If a
topic fails in a stage, its later stages are skipped and all other topics continue. `report_run`
names each failure.

| stage | does |
|---|---|
| mark_tombstones | marks the records that are tombstones |
| clean_log | runs one round of Kafka's log cleaner on each partition that needs it |
| expire_segments | advances the log start offset by the topic's retention limits |
| delete_records | asks every replica to advance its log start offset too |
| expire_snapshots | expires old snapshots, and deletes the files that only they needed |

Removed records are out of the tables after their stage. They are off the disk once
`expire_snapshots` has replaced their files and then expired the snapshots that have them. If a
guard such as ebbtide.max.delete.ratio stops a stage on a topic, nothing is removed there. The run
stores a plan and does not wait; `approve_plan` asks whether to execute it. A run starts at 02:00
UTC, or as EBBTIDE_NIGHTLY_SCHEDULE says: by a cron expression, or after each ingest if its value is
`ingested`.

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
