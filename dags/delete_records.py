"""Delete the records of partitions below an offset, in the lake and in every replica.

What Kafka's DeleteRecords does (KIP-107): the log start offset moves up, never down, and the
answer is the low watermark, the least log start offset over all replicas. Say up to where in one
of four ways. `approve` then shows what would go and asks: without an approval nothing does. The
records leave the tables at once, and the disk when `expire_snapshots` has passed the age that the
table keeps snapshots for.

[Its form](plugin/ebbtide/ebbtide/forms/delete_records) suggests topics, partitions and connections.
"""

from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from ebbtide.orchestration.approval.chains import plan_and_approve
from ebbtide.orchestration.driver.causes import explained
from ebbtide.orchestration.house import TOPIC, Purpose, asking, like, optional, plan_only
from ebbtide.orchestration.outcome import delete_request


@task(retries=0)
def build_request() -> dict[str, Any]:
    """Return the request as the job takes it."""
    context = get_current_context()
    with explained(context):
        return delete_request(context["params"])


@dag(
    schedule=None,
    **asking(__doc__, Purpose.REMOVE),
    params={
        "topic": optional(
            "string",
            "Topic",
            "<cluster>.<topic>; empty when the offsets below name several topics.",
            **TOPIC,
        ),
        "offsets": optional(
            "object",
            "Up to where: offsets",
            'By partition, {"0": 1200, "1": -1}, where -1 is the high watermark; or by topic, '
            '{"demo.audit": {"0": 1200}}, when no topic is given.',
        ),
        "timestamp": optional(
            "string",
            "Or: time",
            "In every partition, up to the first record at or after this time.",
            format="date-time",
            **like(
                r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$",
                "a time with its zone, such as 2026-11-24T10:00:00Z",
            ),
        ),
        "age": optional(
            "string",
            "Or: age",
            "The same, as an ISO 8601 duration before the run's time, such as P30D.",
            **like("^P.+$", "an ISO 8601 duration, such as P30D"),
        ),
        "groups": optional(
            "array",
            "Or: consumer groups",
            "One a line: in every partition, up to the least offset that they have committed.",
            items={"type": "string", "minLength": 1},
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
        "plan_only": plan_only(),
    },
)
def delete_records() -> None:
    plan_and_approve("delete_records", asked={"request": build_request()}, publishes=True)


delete_records()
