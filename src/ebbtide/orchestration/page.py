"""The page in Airflow's UI: every topic's low watermarks, next horizons, last run, deletions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ebbtide.errors import EbbtideError
from ebbtide.log.delete_records import INVALID_LOW_WATERMARK
from ebbtide.orchestration.deletions import newest_deletion
from ebbtide.orchestration.outcome import cause_of
from ebbtide.tables.reader import Lake, Run, Topic, open_lake

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """The application, built when first asked.

    Every task of every DAG loads the plugins, and what the application imports costs seconds.
    """
    await build_app()(scope, receive, send)


@cache
def build_app() -> FastAPI:
    """The application; Airflow authenticates nobody for a plugin, so this one asks itself."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view
    from fastapi import Depends, FastAPI
    from fastapi.responses import HTMLResponse

    app = FastAPI(title="ebbtide", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return (files("ebbtide.orchestration") / "page.html").read_text()

    @app.get("/api/topics")
    def topics() -> dict[str, Any]:
        try:
            with open_lake() as lake:
                return {"topics": describe(lake), "problem": None}
        except EbbtideError as error:
            return {"topics": [], "problem": str(error)}

    return app


def describe(lake: Lake) -> list[dict[str, Any]]:
    """Every topic as the page shows it; one that cannot be read says why instead."""
    runs = lake.runs()
    described = []
    for name in lake.topic_names():
        own = [run for run in runs if run.topic == name]
        try:
            described.append(describe_topic(lake, lake.topic(name), own))
        except EbbtideError as error:
            described.append({"name": name, "problem": str(error)})
    return described


def describe_topic(lake: Lake, topic: Topic, runs: Sequence[Run]) -> dict[str, Any]:
    """One topic; `runs` are its own, oldest first."""
    deletion = newest_deletion(topic, runs)
    sizes = lake.batch_bytes(topic)
    watermarks = low_watermarks(runs)
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
                "size_bytes": sizes[partition],
                "next_horizon_ms": state.next_horizon_ms,
                "waits_for_round": state.next_clean_ms == 0,
            }
            for partition, state in topic.partitions.items()
        ],
        "last_run": describe_run(runs[-1]) if runs else None,
        "deletion": deletion.in_words() if deletion else "Nothing was deleted so far.",
    }


def low_watermarks(runs: Sequence[Run]) -> dict[int, int]:
    """The newest low watermark of each partition that a job reported."""
    return {
        partition: said["low_watermark"]
        for run in runs
        for partition, said in run.partitions.items()
        if said.get("low_watermark", INVALID_LOW_WATERMARK) != INVALID_LOW_WATERMARK
    }


def describe_run(run: Run) -> dict[str, Any]:
    """A topic's newest attempt of any job, and the DAG run it belongs to."""
    return {
        "run_id": run.run_id,
        "dag": run.dag,
        "job": run.job,
        "status": run.status,
        "error": None if run.succeeded else cause_of(run),
        "ended_ms": int(run.ended.timestamp() * 1000),
        "now_ms": int(run.now.timestamp() * 1000),
        "rows_removed": run.rows_removed,
    }
