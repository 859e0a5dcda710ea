"""The page in Airflow's UI: every topic's low watermarks, next horizons, last night, deletions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ebbtide.errors import EbbtideError
from ebbtide.lake.reader import Lake, LakeTopic, Run, newest, open_lake
from ebbtide.log.delete_answers import INVALID_LOW_WATERMARK
from ebbtide.orchestration.deletions import HISTORY, NIGHTLY, newest_deletion
from ebbtide.orchestration.outcome import cause_of

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

TOPICS_A_PAGE = 25


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with the application, which is built at the first one.

    Every task of every DAG loads the plugins, and what the application imports costs seconds.
    """
    await build_app()(scope, receive, send)


@cache
def build_app() -> FastAPI:
    """Build the application, which checks access itself: Airflow checks none for a plugin."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view
    from fastapi import Depends, FastAPI
    from fastapi.responses import HTMLResponse

    app = FastAPI(title="ebbtide", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return (files("ebbtide.orchestration") / "page.html").read_text()

    @app.get("/api/topics")
    def topics(offset: int = 0, limit: int = TOPICS_A_PAGE) -> dict[str, Any]:
        try:
            with open_lake() as lake:
                return {**describe(lake, max(0, offset), limit), "problem": None}
        except EbbtideError as error:
            return {"topics": [], "total": 0, "problem": str(error)}

    return app


def describe(lake: Lake, offset: int = 0, limit: int = TOPICS_A_PAGE) -> dict[str, Any]:
    """Describe some of the topics for the page; one that cannot be read shows why instead."""
    names = lake.topic_names()
    shown = names[offset : offset + limit]
    clock = datetime.now(UTC)
    runs = lake.runs(clock - HISTORY, topic=shown) if shown else []
    described = []
    for name in shown:
        of_topic = [run for run in runs if run.topic == name]
        try:
            described.append(describe_topic(lake, lake.topic(name), of_topic, clock))
        except EbbtideError as error:
            described.append({"name": name, "problem": str(error)})
    return {"topics": described, "total": len(names)}


def describe_topic(
    lake: Lake, topic: LakeTopic, runs: Sequence[Run], clock: datetime
) -> dict[str, Any]:
    """Return one topic; `runs` are its own, oldest first."""
    deletion = newest_deletion(topic, runs, clock)
    sizes = lake.file_bytes(topic.name)
    watermarks = low_watermarks(runs)
    night = last_night(runs)
    return {
        "name": topic.name,
        "problem": None,
        "cleanup_policy": ", ".join(sorted(topic.config.cleanup_policy or ())) or "not set",
        "is_enabled": topic.config.is_enabled,
        "partitions": [
            {
                "partition": partition,
                "log_start_offset": state.log_start_offset,
                "low_watermark": watermarks.get(
                    partition, None if topic.has_replicas else state.log_start_offset
                ),
                "log_end_offset": state.log_end_offset,
                "size_bytes": sizes.get(partition, 0),
                "next_horizon_ms": state.next_horizon_ms,
                "waits_for_round": topic.config.is_compacted and state.next_clean_ms == 0,
            }
            for partition, state in topic.partitions.items()
        ],
        "last_night": describe_night(night) if night else None,
        "failures": [describe_failure(run) for run in failures(runs) if run not in night],
        "deletion": deletion.in_words()
        if deletion
        else f"Nothing was deleted in the last {HISTORY.days} days.",
    }


def last_night(runs: Sequence[Run]) -> list[Run]:
    """Return the newest attempt of each stage of the newest run of nightly_retention."""
    nights = [run for run in runs if run.dag == NIGHTLY]
    return list(newest(run for run in nights if run.run_id == nights[-1].run_id).values())


def failures(runs: Sequence[Run]) -> list[Run]:
    """Return each job's newest attempt if it failed, whatever other jobs have done since."""
    newest_of_job = {(run.dag, run.job): run for run in runs}
    return [run for run in newest_of_job.values() if not run.succeeded]


def low_watermarks(runs: Sequence[Run]) -> dict[int, int]:
    """Return the newest low watermark of each partition that a job reported."""
    return {
        partition: numbers["low_watermark"]
        for run in runs
        for partition, numbers in run.partitions.items()
        if numbers.get("low_watermark", INVALID_LOW_WATERMARK) != INVALID_LOW_WATERMARK
    }


def describe_night(night: Sequence[Run]) -> dict[str, Any]:
    """Return a night of one topic: failed if any of its stages did."""
    failed = [run for run in night if not run.succeeded]
    return {
        "run_id": night[-1].run_id,
        "status": "failed" if failed else "succeeded",
        "errors": [f"{run.job}: {cause_of(run)}" for run in failed],
        "ended_ms": max(int(run.ended.timestamp() * 1000) for run in night),
        "now_ms": int(night[-1].now.timestamp() * 1000),
        "rows_removed": sum(run.rows_removed for run in night),
    }


def describe_failure(run: Run) -> dict[str, Any]:
    """Return a failed attempt outside the last night."""
    return {
        "run_id": run.run_id,
        "dag": run.dag,
        "job": run.job,
        "error": cause_of(run),
        "ended_ms": int(run.ended.timestamp() * 1000),
    }
