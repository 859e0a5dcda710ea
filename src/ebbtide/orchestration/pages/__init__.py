"""The pages in Airflow's UI: a FastAPI application, its views (data) and its templates.

Every task of every DAG loads the plugins, so this module imports nothing heavy.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

PREFIX = "ebbtide"
AIRFLOW_APP = "airflow_app"  # key in a request's scope: Airflow's own application
_FRAMED = {"icon": f"{PREFIX}/static/icon.svg", "icon_dark_mode": f"{PREFIX}/static/icon-dark.svg"}
# Airflow replaces the names in braces by the ids of the DAG or run that the user opens.
VIEWS: tuple[dict[str, Any], ...] = (
    {
        "name": "Retention",
        "href": f"{PREFIX}/",
        "destination": "nav",
        "category": "browse",
        "url_route": PREFIX,
        **_FRAMED,
    },
    {
        "name": "Retention",
        "href": f"{PREFIX}/dags/{{DAG_ID}}",
        "destination": "dag",
        "url_route": f"{PREFIX}_dag",
        **_FRAMED,
    },
    {
        "name": "Retention",
        "href": f"{PREFIX}/runs/{{RUN_ID}}?dag={{DAG_ID}}",
        "destination": "dag_run",
        "url_route": f"{PREFIX}_run",
        **_FRAMED,
    },
)


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with ebbtide's application. The first request builds it."""
    await _app()({**scope, AIRFLOW_APP: scope.get("app")}, receive, send)


@cache
def _app() -> FastAPI:
    from ebbtide.orchestration.pages.app import build_app

    return build_app()
