"""The application behind the pages; every answer needs a login, also about what is not there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Form, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from ebbtide import open_lake
from ebbtide.errors import (
    AccessDeniedError,
    ConfigurationError,
    EbbtideError,
    MissingPageError,
    PlanError,
    RequestError,
    StateError,
    UnavailableError,
    UnknownTopicError,
)
from ebbtide.lake.key_records import SHA256
from ebbtide.lake.runs import by_run
from ebbtide.lake.standing_plans import StandingPlan, find_plan
from ebbtide.log.requests.erase_request import Encoding
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.orchestration.pages import answers
from ebbtide.orchestration.pages.airflow_api import Api
from ebbtide.orchestration.pages.answers import root_of
from ebbtide.orchestration.pages.form_routes import add_forms
from ebbtide.orchestration.pages.rendering import SECURITY_HEADERS, query
from ebbtide.orchestration.pages.run_routes import add_runs, runs_that_ask
from ebbtide.orchestration.pages.views.key import key_page
from ebbtide.orchestration.pages.views.overview.history import Histories
from ebbtide.orchestration.pages.views.overview.needs import questions, unreadable
from ebbtide.orchestration.pages.views.overview.page import (
    COLUMNS,
    FILTERS,
    Asked,
    overview,
)
from ebbtide.orchestration.pages.views.topic.page import topic_page
from ebbtide.specs.all_specs import FORMS

MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The title and status of an error's page; of all others it is 500.
PROBLEMS: dict[type[EbbtideError], tuple[str, int]] = {
    UnknownTopicError: ("No such topic", 404),
    PlanError: ("No such plan", 404),
    MissingPageError: ("No such page", 404),
    RequestError: ("No such page", 400),
    AccessDeniedError: ("The lake cannot be read", 503),
    UnavailableError: ("The lake cannot be read", 503),
    ConfigurationError: ("A setting is wrong", 500),
    StateError: ("The state of a topic is wrong", 500),
}
RUNS_SHOWN = 30  # of a DAG
# Addresses of static files carry the version.
A_DAY = "private, max-age=86400"


def build_app() -> FastAPI:
    """Build the application: Airflow checks no access for a plugin, so each route does.

    The last route catches what is not there, FastAPI's own pages too.
    """
    app = FastAPI(
        title="ebbtide",
        dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.exception_handler(EbbtideError)(_problem)
    _add_topics(app)
    add_runs(app)
    _add_plans(app)
    _add_keys(app)
    add_forms(app)
    app.get("/static/{name:path}")(_static)
    app.api_route("/{path:path}", methods=["GET", "POST"])(_missing)
    return app


def _add_topics(app: FastAPI) -> None:
    histories = Histories()

    @app.get("/")
    async def topics(
        request: Request,
        api: Api,
        search: str = "",
        only: str = "",
        sort: str = "",
        order: str = "",
        page: int = 1,
    ) -> Response:
        asked = Asked.of(search, only, sort, order, page)
        asking = await api.open_questions()
        waiting = (
            questions(asking.value["hitl_details"], FORMS)
            if asking.is_good
            else [unreadable(f"Airflow does not say what runs ask: {asking.problem}")]
        )

        def read() -> dict[str, Any]:
            clock_ms = int(datetime.now(UTC).timestamp() * 1000)
            with open_lake() as lake:
                return overview(lake, histories.read_on(lake), asked, clock_ms, waiting)

        shown = await run_in_threadpool(read)
        root = root_of(request)
        return answers.page(
            request,
            "overview.html",
            page=shown,
            columns=COLUMNS,
            filters=FILTERS,
            page_link=lambda number: f"{root}/{query(shown['asked'].query(page=number))}",
        )

    @app.get("/topics/{name}")
    def topic(request: Request, name: str, page: int = 1) -> Response:
        with open_lake() as lake:
            shown = topic_page(lake, name, page)
        return answers.page(
            request,
            "topic.html",
            page=shown,
            page_link=lambda number: f"{query({'page': number})}#partitions",
        )


def _add_plans(app: FastAPI) -> None:
    @app.get("/plans/{plan_id}")
    async def plan(request: Request, api: Api, plan_id: str) -> Response:
        asking = await runs_that_ask(api)

        def read() -> StandingPlan:
            with open_lake() as lake:
                return find_plan(lake, plan_id, datetime.now(UTC))

        shown = await run_in_threadpool(read)
        return answers.page(request, "plan.html", page=shown, asking=asking)

    @app.get("/dags/{dag_id}")
    def dag(request: Request, dag_id: str) -> Response:
        with open_lake() as lake:
            runs = by_run(lake.attempts(datetime.now(UTC) - HISTORY, dag=dag_id))
        newest = sorted(runs, key=lambda run: run.ended, reverse=True)[:RUNS_SHOWN]
        return answers.page(request, "dag.html", dag=dag_id, runs=newest, has_form=dag_id in FORMS)


def _add_keys(app: FastAPI) -> None:
    @app.get("/keys")
    def form(request: Request, topic: str = "") -> Response:
        with open_lake() as lake:
            return _keys(request, lake.topic_names(), topic, Encoding.UTF_8)

    @app.post("/keys")
    def keys(
        request: Request,
        topic: Annotated[str, Form()],
        encoding: Annotated[str, Form()],
        key: Annotated[str, Form()] = "",
    ) -> Response:
        shown, problem = None, None
        with open_lake() as lake:
            names = lake.topic_names()
            try:
                clock_ms = int(datetime.now(UTC).timestamp() * 1000)
                shown = key_page(lake, topic, key, encoding, clock_ms)
            except EbbtideError as error:
                problem = str(error)
        return _keys(request, names, topic, encoding, shown, problem)


def _keys(
    request: Request,
    names: list[str],
    topic: str,
    encoding: str,
    page: Mapping[str, Any] | None = None,
    problem: str | None = None,
) -> Response:
    answer = answers.page(
        request,
        "keys.html",
        page=page,
        names=names,
        topic=topic,
        encoding=encoding,
        encodings=[*Encoding, SHA256],
        problem=problem,
        status_code=200 if problem is None else 400,
    )
    return answers.unkept(answer)


def _static(name: str) -> Response:
    media_type = MEDIA_TYPES.get(name.rpartition(".")[2])
    # Compared with the names that there are, so that no name leads out of the folder.
    resource = _static_files().get(name)
    if resource is None or media_type is None:
        return Response(status_code=404)
    headers = SECURITY_HEADERS | {"Cache-Control": A_DAY}
    return Response(resource.read_bytes(), headers=headers, media_type=media_type)


@cache
def _static_files() -> dict[str, Traversable]:
    """Return the static files by name; those that others wrote are below `vendor/`."""
    static = files("ebbtide.orchestration.pages") / "static"
    resources = {resource.name: resource for resource in static.iterdir()}
    vendored = resources.pop("vendor").iterdir()
    return resources | {f"vendor/{resource.name}": resource for resource in vendored}


def _missing(request: Request) -> Response:
    return answers.page(
        request,
        "problem.html",
        title="No such page",
        text="expected the address of a page of ebbtide, found another one",
        status_code=404,
    )


def _problem(request: Request, error: Exception) -> Response:
    title, status_code = next(
        (answer for kind, answer in PROBLEMS.items() if isinstance(error, kind)),
        ("The lake cannot be read", 500),
    )
    return answers.page(
        request, "problem.html", title=title, text=str(error), status_code=status_code
    )
