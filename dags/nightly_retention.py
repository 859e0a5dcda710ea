"""Apply Kafka's log retention to every topic of the lake, every night.

Each stage is one Spark application for a group of topics; a stage whose topics have nothing to do
starts none. A topic that fails stays behind, the others go on, and `verdict` names every failure.

| stage | does |
|---|---|
| mark_tombstones | finds the records that are tombstones |
| clean_log | one round of Kafka's log cleaner for each partition that needs it |
| expire_segments | moves the log start offset by the topic's retention limits |
| delete_records | asks for the new log start offsets at every replica |
| expire_snapshots | frees on disk what no kept snapshot needs |

Data is out of the tables after its stage, and off the disk when `expire_snapshots` has passed the
age that the table keeps snapshots for.
"""

from datetime import datetime, timedelta

from airflow.sdk import Param, chain, dag

from ebbtide.orchestration.handover import (
    GROUP_TOPICS,
    group_topics,
    publish_low_watermarks,
    stage,
    verdict,
)
from ebbtide.orchestration.stages import NIGHT

ACCEPT_PLAN = {"accept_plan": "--accept-plan"}


@dag(
    schedule="0 2 * * *",
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
            section="Clock and size",
        ),
        "now": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Now",
            description="The clock of the whole run; empty means when the run was due.",
            section="Clock and size",
        ),
        "allow_future_now": Param(
            False,
            type="boolean",
            title="Allow a future now",
            description="For rehearsals on copies only: removes what may not go before then.",
            section="Clock and size",
        ),
        "accept_plan": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": "^[0-9a-f]{12}$"},
            title="Accept plan",
            description="Ids of plans that may pass ebbtide.max.delete.ratio, from their refusals.",
        ),
    },
)
def nightly_retention() -> None:
    groups = group_topics()
    chain(
        groups,
        stage("mark_tombstones", groups),
        stage("clean_log", groups, after="mark_tombstones"),
        stage("expire_segments", groups, after="clean_log", options=ACCEPT_PLAN),
        stage("delete_records", groups, after="expire_segments", request_from="expire_segments"),
        stage("expire_snapshots", groups, after="delete_records"),
        publish_low_watermarks(NIGHT[-1], said_by="delete_records"),
        verdict(NIGHT, GROUP_TOPICS),
    )


nightly_retention()
