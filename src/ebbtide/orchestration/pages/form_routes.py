"""Forms that start DAGs by Airflow's own API, with the rights of the user who sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.datastructures import FormData

from ebbtide import open_lake
from ebbtide.errors import AccessDeniedError, EbbtideError, MissingPageError, UnavailableError
from ebbtide.orchestration.pages import answers
from ebbtide.orchestration.pages.airflow_api import AirflowApi, Api, Reply
from ebbtide.orchestration.pages.forms import SECTIONS, check_params, form_page
from ebbtide.orchestration.pages.same_origin import require_same_origin
from ebbtide.specs.all_specs import FORMS
from ebbtide.specs.filled import Filled
from ebbtide.specs.job_spec import FormSpec

UNPAUSE = "unpause"  # a box


async def _posted(request: Request) -> FormData:
    return await request.form()


def add_forms(app: FastAPI) -> None:
    """Add the page of each form, and what it is sent to."""

    @app.get("/forms")
    def forms(request: Request) -> Response:
        return answers.page(request, "forms.html", sections=SECTIONS)

    @app.get("/forms/{dag}")
    async def form(request: Request, dag: str, api: Api) -> Response:
        filled = Filled.of(request.query_params.multi_items())
        return await _form(request, api, _form_of(dag), filled)

    @app.post("/forms/{dag}", dependencies=[Depends(require_same_origin)])
    async def send(request: Request, dag: str, api: Api) -> Response:
        form, filled = _form_of(dag), Filled.of((await _posted(request)).multi_items())
        try:
            params = form.read(filled)
            if api.may_trigger(dag):  # else Airflow refuses, whatever was filled in
                await _check(api, dag, params)
        except (AccessDeniedError, UnavailableError):
            raise
        except EbbtideError as error:
            return await _form(request, api, form, filled, str(error), 400)
        reply = await start(api, dag, params, unpause=filled.is_checked(UNPAUSE))
        if not reply.is_good:
            return await _form(request, api, form, filled, reply.problem, reply.status)
        run_id = quote(reply.value["dag_run_id"], safe="")
        return answers.go_to(request, f"runs/{run_id}?dag={dag}")


async def _check(api: AirflowApi, dag: str, params: Mapping[str, Any]) -> None:
    """Raise EbbtideError for Params that the lake's state shows to be wrong."""
    details = await api.get("dags", dag, "details")
    defaults = _defaults(details.value["params"]) if details.is_good else {}

    def check() -> None:
        with open_lake() as lake:
            check_params(lake, dag, params, defaults)

    await run_in_threadpool(check)


async def start(api: AirflowApi, dag: str, params: dict[str, Any], *, unpause: bool) -> Reply:
    """Start a run of a DAG, and unpause the DAG first where that was asked for."""
    if unpause:
        reply = await api.patch("dags", dag, body={"is_paused": False})
        if not reply.is_good:
            return reply
    return await api.post("dags", dag, "dagRuns", body={"logical_date": None, "conf": params})


def _form_of(dag: str) -> FormSpec:
    if dag not in FORMS:
        raise MissingPageError(f"expected a form of {', '.join(FORMS)}, found {dag}")
    return FORMS[dag]


async def _form(
    request: Request,
    api: AirflowApi,
    form: FormSpec,
    filled: Filled,
    problem: str | None = None,
    status_code: int = 200,
) -> Response:
    """Show a form, and why it cannot be sent where that is so."""
    dag = await api.get("dags", form.name, "details")
    connections = await _connections(api)
    given = {
        "problem": problem,
        "is_paused": dag.is_good and dag.value["is_paused"],
        "defaults": _defaults(dag.value["params"]) if dag.is_good else {},
    }

    def read() -> Any:
        with open_lake() as lake:
            why_not = _why_not(api, form, dag)
            return form_page(lake, form, filled, connections, why_not=why_not, **given)

    shown = await run_in_threadpool(read)
    answer = answers.page(request, "form.html", page=shown, status_code=status_code)
    return answers.unkept(answer)


def _why_not(api: AirflowApi, form: FormSpec, dag: Reply) -> str | None:
    if not dag.is_good:
        return f"Airflow does not know the DAG {form.name}: {dag.problem}"
    if not api.may_trigger(form.name):
        return (
            f"{api.user_name} may look, and may not start runs of {form.name}. Airflow gives that "
            "right by roles; ask whoever administers it."
        )
    return None


def _defaults(params: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the defaults of a DAG's Params that a field of one line can show."""
    values = {name: of.get("value") for name, of in (params or {}).items()}
    return {
        name: str(value)
        for name, value in values.items()
        if isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    }


async def _connections(api: AirflowApi) -> list[str]:
    """Return the connections to Kafka that the user may see."""
    reply = await api.get("connections", limit=100, order_by="connection_id")
    listed = reply.value["connections"] if reply.is_good else []
    return [of["connection_id"] for of in listed if of["conn_type"] == "kafka"]
