"""clean_log: one cleaner round on each log that is due for one (KIP-534)."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ebbtide.jobs.clean_log.choice import bounds_of_plan
from ebbtide.jobs.clean_log.stage import CleanPlan, execute_clean, plan_clean
from ebbtide.jobs.unfinished import load_settled
from ebbtide.runner.job import Job, PlanRequest
from ebbtide.settings.names import TopicName


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> CleanPlan:
    topic = load_settled(spark, name, "clean_log", request)
    bounds, keeps_offsets = bounds_of_plan(request.bounds), request.keeps_offsets
    return plan_clean(topic, request.now_ms, bounds, keeps_offsets=keeps_offsets)


CLEAN_LOG = Job("clean_log", _plan, execute_clean)
