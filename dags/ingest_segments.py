"""Bring what is new in a broker's log directory into the lake.

Only what is below the source's high watermark and not held yet is read; a run that finds nothing
new changes nothing. A foreign, truncated or corrupt log is refused and named by `verdict`, the
other topics are ingested. Scheduled when EBBTIDE_INGEST_SCHEDULE holds a cron expression.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_segments) suggests clusters and topics.
"""

import os

from airflow.sdk import Param, dag

from ebbtide.log.settings.credentials import WITHOUT_CREDENTIALS
from ebbtide.orchestration.handover import conclude, publishing
from ebbtide.orchestration.house import Purpose, cluster, house, like, now, schedule, topics
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "ingest_segments"


@dag(
    schedule=schedule("EBBTIDE_INGEST_SCHEDULE"),
    **house(__doc__, Purpose.INGEST),
    params={
        "source": Param(
            os.environ.get("EBBTIDE_INGEST_SOURCE", "sample/log"),
            type="string",
            minLength=1,
            **like(WITHOUT_CREDENTIALS, "a path or URI without a user's name or password"),
            title="Source",
            description="A broker's log directory, or a copy of one: a path or a URI Spark reads.",
        ),
        "cluster": cluster("EBBTIDE_INGEST_CLUSTER"),
        "topics": topics("all in the source", section="Choice"),
        "accept_gap": Param(
            False,
            type="boolean",
            title="Accept gaps",
            description="Record missing offsets of a topic that is not compacted, not refuse them.",
            section="Choice",
        ),
        "now": now("When the records count as received", section="Choice"),
    },
)
def ingest_segments() -> None:
    ingest = EbbtideJobOperator(
        task_id=JOB,
        job=JOB,
        options={
            "source": "--source",
            "cluster": "--cluster",
            "topics": "--topic",
            "accept_gap": "--accept-gap",
        },
    )
    conclude([ingest], publishes=publishing(JOB, is_ingest=True), stages=[JOB])


ingest_segments()
