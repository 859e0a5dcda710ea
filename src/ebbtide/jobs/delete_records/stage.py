"""Answer one topic's part of a DeleteRecords request."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.commits import refusal_of
from ebbtide.iceberg.topics import find
from ebbtide.jobs.delete_records.primary import (
    DeletePlan,
    execute_delete,
    numbers_of,
    plan_delete,
    resolve_offsets,
)
from ebbtide.jobs.table_layout import ObservedLog, layout_of
from ebbtide.jobs.unfinished import settle, settle_adopted
from ebbtide.kafka.low_watermarks import ErrorCode, refused, way_out
from ebbtide.runner.job import Job, Parameters, PlanRequest
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.delete_request import DeleteRequest, TopicRequest, parse_request_object

R = TypeVar("R")


def delete_parameters(name: TopicName, asked: TopicRequest, timeout_ms: int) -> dict[str, Any]:
    """Return one topic's request in the form that a plan stores: a request for it alone."""
    return {"request": {"topics": [asked.to_object(name)], "timeout_ms": timeout_ms}}


def propose_delete(
    spark: SparkSession, name: TopicName, request: PlanRequest
) -> DeletePlan | JobOutcome:
    """Plan the request on one topic. A refused partition does not affect the other partitions.

    If the catalog or its file system denies access, the answer is TOPIC_AUTHORIZATION_FAILED.
    """
    delete_request = parse_request_object(request.parameters["request"])
    asked = delete_request.topics[name]

    def plan() -> DeletePlan | JobOutcome:
        topic = find(spark, name)
        if topic is None:
            return _refuse(asked.partitions, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.is_adopted:
            topic = settle_adopted(topic, request.now_ms, is_plan_only=request.is_plan_only)
        else:
            topic = settle(topic, "delete_records", is_plan_only=request.is_plan_only)
        log = layout_of(topic).observe(request.now_ms) or ObservedLog(topic)
        topic = log.observed
        requested = resolve_offsets(log, topic, asked, request.now_ms)
        if request.bounds is not None:
            requested = requested.within(topic, {p: b["offset"] for p, b in request.bounds.items()})
        planned = plan_delete(topic, requested.offsets, request.now_ms, delete_request.timeout_ms)
        return replace(planned, more_numbers=requested.more_numbers, log=log)

    return _unless_forbidden(asked.partitions, plan)


def _asked(args: Namespace) -> dict[TopicName, Parameters]:
    """Return each topic's request in the form that a plan stores: a request for it alone."""
    asked: DeleteRequest = args.request
    return {
        name: delete_parameters(name, asked.topics[name], asked.timeout_ms)
        for name in sorted(asked.topics)
    }


def execute_request(plan: DeletePlan) -> JobOutcome:
    """Execute the plan. If access is denied, the answer is TOPIC_AUTHORIZATION_FAILED."""
    return _unless_forbidden(plan.requested, lambda: execute_delete(plan))


DELETE_RECORDS = Job(
    "delete_records", propose_delete, execute_request, asked=_asked, is_by_hand=lambda _: True
)


def _unless_forbidden(partitions: Iterable[int], work: Callable[[], R]) -> R | JobOutcome:
    try:
        return work()
    except Py4JJavaError as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        return _refuse(partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED, refusal)


def _refuse(partitions: Iterable[int], error: ErrorCode, note: str = "") -> JobOutcome:
    """Refuse every named partition of a topic that cannot be read."""
    note = note or way_out(error)
    numbers = numbers_of(refused(error, note=note))
    return JobOutcome(
        partitions={partition: dict(numbers) for partition in partitions},
        topic={"error_code": int(error), "error_name": error.name},
        error=RequestError(f"every partition: {error.name}: {note}"),
    )
