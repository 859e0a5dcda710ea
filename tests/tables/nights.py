"""The stages of a night, called as the jobs call them, without Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, compare_and_set, load
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.delete_records.stage import delete_parameters, execute_request, propose_delete
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.jobs.mark_tombstones import execute_mark, plan_mark
from ebbtide.jobs.quarantine import RunOf
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.job import PlanRequest
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.delete_request import TIMEOUT_MS, TopicRequest
from ebbtide.specs.erase_request import FromOffset

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# These logs are small, and retention removes most of them.
ANY_SHARE = {"ebbtide.max.delete.ratio": "1"}


def set_properties(spark: SparkSession, name: str, changes: PropertyChanges) -> None:
    """Settings and state as they are asked for, without any check."""
    compare_and_set(load(spark, TopicName.parse(name)), Step.CONFIGURE_TOPIC, lambda _: changes)


def at(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)


def source_of(directory: Path, now_ms: int, *, accept_gap: bool = False) -> Source:
    uri = str(directory)
    return Source.of_uri(uri, at(now_ms), accept_gap=accept_gap, settings=ANY_SHARE)


def ingest(
    spark: SparkSession, name: str, directory: Path, now_ms: int, *, accept_gap: bool = False
) -> JobOutcome:
    """Ingest one topic; raises what a job would report."""
    source = source_of(directory, now_ms, accept_gap=accept_gap)
    outcome = ingest_segments(spark, TopicName.parse(name), source)
    if outcome.error is not None:
        raise outcome.error
    return outcome


def mark(
    spark: SparkSession, name: str, again: Sequence[FromOffset] = (), now_ms: int = 0
) -> JobOutcome:
    topic = load(spark, TopicName.parse(name))
    return execute_mark(plan_mark(topic, again), RunOf("run", at(now_ms)))


def clean(spark: SparkSession, name: str, now_ms: int) -> JobOutcome:
    topic = settle(load(spark, TopicName.parse(name)), "clean_log")
    return execute_clean(plan_clean(topic, now_ms))


def answer_request(
    spark: SparkSession,
    name: TopicName,
    asked: TopicRequest,
    now_ms: int,
    timeout_ms: int = TIMEOUT_MS,
    *,
    plan_only: bool = False,
) -> JobOutcome:
    """Answer a topic's part of a DeleteRecords request, as the job does without a kept plan."""
    parameters = delete_parameters(name, asked, timeout_ms)
    plan = propose_delete(spark, name, PlanRequest(now_ms, parameters, is_plan_only=plan_only))
    if isinstance(plan, JobOutcome):
        return plan
    return plan.outcome() if plan_only else execute_request(plan)


def expire(spark: SparkSession, name: str, now_ms: int) -> JobOutcome:
    """Whatever a guard would say."""
    topic = settle(load(spark, TopicName.parse(name)), "expire_segments")
    return execute_expire(plan_expire(topic, now_ms))


def night(spark: SparkSession, name: str, now_ms: int) -> dict[str, JobOutcome]:
    """Mark, clean and expire, in the order of the DAG."""
    return {
        "mark_tombstones": mark(spark, name),
        "clean_log": clean(spark, name, now_ms),
        "expire_segments": expire(spark, name, now_ms),
    }
