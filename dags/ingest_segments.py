"""Bring what is new in a broker's log directory into the lake.

Only what is below the source's high watermark and not held yet is read; a run that finds nothing
new changes nothing. A foreign, truncated or corrupt log is refused and named by `verdict`, the
other topics are ingested. Scheduled when EBBTIDE_INGEST_SCHEDULE holds a cron expression.
"""

import os
from datetime import datetime, timedelta

from airflow.sdk import Param, chain, dag

from ebbtide.orchestration.handover import publish_low_watermarks, verdict
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "ingest_segments"


@dag(
    schedule=os.environ.get("EBBTIDE_INGEST_SCHEDULE"),
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["ebbtide"],
    doc_md=__doc__,
    params={
        "source": Param(
            os.environ.get("EBBTIDE_INGEST_SOURCE", "sample/log"),
            type="string",
            minLength=1,
            title="Source",
            description="A broker's log directory, or a copy of one: a path or a URI Spark reads.",
        ),
        "cluster": Param(
            os.environ.get("EBBTIDE_INGEST_CLUSTER", "log"),
            type="string",
            pattern=r"^[A-Za-z0-9_-]+$",
            title="Cluster",
            description="Namespace of the topics' tables; without a dot.",
        ),
        "topics": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": r"^[^.]+\..+$"},
            minItems=1,
            title="Topics",
            description="One <cluster>.<topic> a line; empty means all in the source.",
            section="Choice",
        ),
        "accept_gap": Param(
            False,
            type="boolean",
            title="Accept gaps",
            description="Record missing offsets of a topic that is not compacted, not refuse them.",
            section="Choice",
        ),
        "now": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Now",
            description="When the records count as received; empty means when the run was due.",
            section="Choice",
        ),
    },
)
def ingest_segments() -> None:
    chain(
        EbbtideJobOperator(
            task_id=JOB,
            job=JOB,
            options={
                "source": "--source",
                "cluster": "--cluster",
                "topics": "--topic",
                "accept_gap": "--accept-gap",
            },
        ),
        publish_low_watermarks(JOB),
        verdict([JOB]),
    )


ingest_segments()
