"""Answer one topic's part of a DeleteRecords request."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.commits import refusal_of
from ebbtide.iceberg.topics import find
from ebbtide.log.delete_answers import ErrorCode, refused, way_out
from ebbtide.log.requests.delete_request import TIMEOUT_MS, TopicRequest
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.delete_records.primary import execute_delete, numbers_of, plan_delete
from ebbtide.stages.delete_records.requested_offsets import resolve_offsets
from ebbtide.stages.unfinished import settle


def answer_request(
    spark: SparkSession,
    name: TopicName,
    asked: TopicRequest,
    now_ms: int,
    timeout_ms: int = TIMEOUT_MS,
    *,
    plan_only: bool = False,
) -> JobOutcome:
    """Truncate the topic's partitions, or only plan it; one bad partition stops no other.

    What the catalog or its file system forbids is TOPIC_AUTHORIZATION_FAILED.
    """
    try:
        topic = find(spark, name)
        if topic is None:
            return _refuse(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic = settle(topic, "delete_records", is_plan_only=plan_only)
        requested = resolve_offsets(topic, asked, now_ms)
        plan = plan_delete(topic, requested.offsets, now_ms)
        return requested.add_to(plan.outcome() if plan_only else execute_delete(plan, timeout_ms))
    except Py4JJavaError as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        return _refuse(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED, refusal)


def _refuse(asked: TopicRequest, error: ErrorCode, note: str = "") -> JobOutcome:
    """Refuse every named partition of a topic that cannot be read."""
    note = note or way_out(error)
    numbers = numbers_of(refused(error, note=note))
    return JobOutcome(
        partitions={partition: dict(numbers) for partition in asked.partitions},
        topic={"error_code": int(error), "error_name": error.name},
        error=RequestError(f"every partition: {error.name}: {note}"),
    )
