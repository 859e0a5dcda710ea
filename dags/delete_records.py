"""Delete the records of partitions below an offset, in the lake and in every replica.

What Kafka's DeleteRecords does (KIP-107): the log start offset moves up, never down, and the
answer is the low watermark, the least log start offset over all replicas. Say up to where in one
of four ways. The records leave the tables at once, and the disk when `expire_snapshots` has passed
the age that the table keeps snapshots for.
"""

from typing import Any

from airflow.sdk import Param, chain, dag, get_current_context, task

from ebbtide.orchestration.driver.causes import explained
from ebbtide.orchestration.handover import publish_low_watermarks, verdict
from ebbtide.orchestration.house import HOUSE, TOPIC_PATTERN, optional
from ebbtide.orchestration.operator import EbbtideJobOperator
from ebbtide.orchestration.outcome import delete_request

JOB = "delete_records"
CHOICE = "Up to where: exactly one of these"


@task(retries=0)
def build_request() -> dict[str, Any]:
    """Return the request as the job takes it."""
    context = get_current_context()
    with explained(context):
        return delete_request(context["params"])


@dag(
    schedule=None,
    doc_md=__doc__,
    **HOUSE,
    params={
        "topic": optional(
            "string",
            "Topic",
            "<cluster>.<topic>; empty when the offsets below name several topics.",
            pattern=TOPIC_PATTERN,
        ),
        "offsets": optional(
            "object",
            "Offsets",
            'By partition, {"0": 1200, "1": -1}, where -1 is the high watermark; or by topic, '
            '{"demo.audit": {"0": 1200}}, when no topic is given.',
            section=CHOICE,
        ),
        "timestamp": optional(
            "string",
            "Time",
            "In every partition, up to the first record at or after this time.",
            format="date-time",
            pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$",
            section=CHOICE,
        ),
        "age": optional(
            "string",
            "Age",
            "The same, as an ISO 8601 duration before the run's time, such as P30D.",
            pattern="^P.+$",
            section=CHOICE,
        ),
        "groups": optional(
            "array",
            "Consumer groups",
            "One a line: in every partition, up to the least offset that they have committed.",
            items={"type": "string", "minLength": 1},
            section=CHOICE,
        ),
        "connection": optional(
            "string",
            "Connection of the groups",
            "An Airflow connection of type kafka; empty when ebbtide.replicas names one.",
        ),
        "timeout_ms": Param(
            30_000,
            type="integer",
            minimum=1,
            maximum=3_600_000,
            title="Timeout (ms)",
            description="How long a replica may take before its partition answers -1.",
        ),
    },
)
def delete_records() -> None:
    chain(
        EbbtideJobOperator(task_id=JOB, job=JOB, request=build_request()),
        publish_low_watermarks(JOB),
        verdict([JOB]),
    )


delete_records()
