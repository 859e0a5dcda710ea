"""Bring what is new in live topics into the lake, read from their brokers.

The log is taken up to where the brokers have it when they are asked, once and exactly, whatever
stops a run. A topic's table is made by its first run, with the brokers' segment sizes; settings
that remove are only reported, and taken over by `configure_topic` once somebody confirms them.
Scheduled when EBBTIDE_INGEST_TOPIC_SCHEDULE holds a cron expression. The form then shows
EBBTIDE_INGEST_TOPIC_CONNECTION, EBBTIDE_INGEST_TOPIC_CLUSTER and EBBTIDE_INGEST_TOPIC_PATTERN.

[Its form](plugin/ebbtide/ebbtide/forms/ingest_topic) suggests connections, clusters and topics.
"""

import os

from airflow.sdk import Param, dag

from ebbtide.orchestration.handover import conclude, publishing
from ebbtide.orchestration.house import Purpose, cluster, house, now, schedule, topics
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "ingest_topic"


@dag(
    schedule=schedule("EBBTIDE_INGEST_TOPIC_SCHEDULE"),
    **house(__doc__, Purpose.INGEST),
    params={
        "connection": Param(
            os.environ.get("EBBTIDE_INGEST_TOPIC_CONNECTION", "kafka_default"),
            type="string",
            minLength=1,
            title="Connection",
            description="The Airflow connection of type kafka; its extra is librdkafka's settings.",
        ),
        "cluster": cluster("EBBTIDE_INGEST_TOPIC_CLUSTER"),
        "topics": topics("those of the pattern"),
        "pattern": Param(
            os.environ.get("EBBTIDE_INGEST_TOPIC_PATTERN") or None,
            type=["null", "string"],
            minLength=1,
            title="Pattern",
            description="A regular expression for whole names of topics at the brokers.",
        ),
        "isolation": Param(
            "read_committed",
            type="string",
            enum=["read_committed", "read_uncommitted"],
            title="Isolation",
            description="Whether records of aborted and open transactions are left out.",
            section="Choice",
        ),
        "accept_gap": Param(
            False,
            type="boolean",
            title="Accept gaps",
            description="Go on without offsets that the brokers removed before they were taken.",
            section="Choice",
        ),
        "now": now("When the records count as received", section="Choice"),
    },
)
def ingest_topic() -> None:
    ingest = EbbtideJobOperator(
        task_id=JOB,
        job=JOB,
        is_live=True,
        options={
            "connection": "--connection",
            "cluster": "--cluster",
            "topics": "--topic",
            "pattern": "--topics-pattern",
            "isolation": "--isolation",
            "accept_gap": "--accept-gap",
        },
    )
    conclude([ingest], publishes=publishing(JOB, is_ingest=True), stages=[JOB])


ingest_topic()
