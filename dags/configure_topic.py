"""Set a topic's retention configuration; every value is checked before anything changes.

Names and ranges are Kafka's, and without an explicit limit nothing is ever removed. With
`plan_only`, the task's log shows what the next night would remove and nothing is set. Every other
property goes into the two lists: `kafka.*` are Kafka's configurations, `ebbtide.*` are ours, and
one is Iceberg's, `history.expire.max-snapshot-age-ms`.
"""

from airflow.sdk import Param, chain, dag

from ebbtide.log.state.properties import MAX_SNAPSHOT_AGE
from ebbtide.orchestration.handover import verdict
from ebbtide.orchestration.house import HOUSE, topic
from ebbtide.orchestration.operator import EbbtideJobOperator

JOB = "configure_topic"
NAME = r"((kafka|ebbtide)\.[^=\s]+|" + MAX_SNAPSHOT_AGE.replace(".", r"\.") + ")"


def lines(title: str, description: str, pattern: str) -> Param:
    """Return a Param of any number of lines."""
    return Param(
        None,
        type=["null", "array"],
        items={"type": "string", "pattern": pattern},
        title=title,
        description=description,
    )


@dag(
    schedule=None,
    doc_md=__doc__,
    **HOUSE,
    params={
        "topic": topic(),
        "set": lines(
            "Set",
            "One NAME=VALUE a line, such as kafka.cleanup.policy=compact,delete.",
            f"^{NAME}=.*$",
        ),
        "unset": lines(
            "Unset",
            "One NAME a line: back to the default.",
            f"^{NAME}$",
        ),
        "from_source": Param(
            False,
            type="boolean",
            title="From source",
            description="Take over every setting that the topic's brokers have differently.",
        ),
        "plan_only": Param(
            True,
            type="boolean",
            title="Plan only",
            description="Show what would change and what the next night would remove.",
        ),
    },
)
def configure_topic() -> None:
    chain(
        EbbtideJobOperator(
            task_id=JOB,
            job=JOB,
            is_live=True,
            topics=["{{ params.topic }}"],
            options={
                "set": "--set",
                "unset": "--unset",
                "from_source": "--from-source",
                "plan_only": "--plan-only",
            },
        ),
        verdict([JOB]),
    )


configure_topic()
