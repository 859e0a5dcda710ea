"""The FastAPI application behind the pages. Every route needs a login, also unknown paths."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi import Form as FormField
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData

from ebbtide import __version__, open_lake
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
from ebbtide.lake.own_tables import (
    StandingPlan,
    UndoableRun,
    find_certificate,
    find_plan,
    plans_of_run,
    undoable_runs,
)
from ebbtide.lake.reader import Lake
from ebbtide.lake.runs import by_run
from ebbtide.ledger.plans import FOUR_EYES_OF_ALL, needs_four_eyes
from ebbtide.moments import beyond, minute, second, to_datetime
from ebbtide.orchestration.approval import NOTE, SHOWN
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.orchestration.driver import CAUSE
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.pages.airflow_api import AirflowApi, Api, Reply
from ebbtide.orchestration.pages.erasures import erasures_page
from ebbtide.orchestration.pages.forms import SECTIONS, check_params, form_page
from ebbtide.orchestration.pages.key import key_page
from ebbtide.orchestration.pages.overview import (
    COLUMNS,
    FILTERS,
    Histories,
    OverviewQuery,
    overview,
    questions,
    unreadable,
)
from ebbtide.orchestration.pages.run import (
    Progress,
    Question,
    Task,
    progress_of,
    question_of,
    run_page,
)
from ebbtide.orchestration.pages.topic import refuses, topic_page
from ebbtide.specs.all_specs import FORMS
from ebbtide.specs.erase_request import Encoding
from ebbtide.specs.filled import Filled
from ebbtide.specs.job_spec import FormSpec
from ebbtide.text import NOTHING, number, seconds, size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# No scripts, styles, fonts or pictures from other sites, and only Airflow may frame the pages.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_LONGEST = 15  # digits of a time or a size; a longer value means "no limit"
_CODE = re.compile("`([^`]*)`")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000))


@cache
def environment() -> Environment:
    """Build the templates' environment. It escapes all values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from ebbtide.orchestration.approval import report_of
    from ebbtide.orchestration.pages.holds import hold_form

    made = Environment(
        loader=PackageLoader("ebbtide.orchestration.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "size": size,
        "moment": minute,
        "second": second,
        "seconds": seconds,
        "share": share,
        "relative": relative,
        "iso": iso,
        "segment": lambda text: quote(text, safe=""),
        "query": query,
        "cause": cause_of,
        "with_code": with_code,
        "report": report_of,
        "value_in_words": value_in_words,
        "hold_form": hold_form,
    }
    made.globals |= {"version": __version__}
    return made


def render(template: str, root: str, **values: Any) -> str:
    """Return a page's HTML.

    `root` is the path at which the plugin is mounted, without a trailing slash. Its parent is
    Airflow's own path.
    """
    clock_ms = int(datetime.now(UTC).timestamp() * 1000)
    airflow = root.rpartition("/")[0]
    page = environment().get_template(template)
    return page.render(root=root, airflow=airflow, clock_ms=clock_ms, **values)


def share(value: float | None) -> str:
    """Format a ratio in [0, 1] in percent."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def value_in_words(text: str, name: str) -> str:
    """Return a time or size setting in a readable unit, or an empty text for any other value."""
    if not text.isdecimal() or len(text) > _LONGEST:
        return ""
    if name.endswith((".ms", "-ms")):
        units = (f"{int(text) / length:g} {unit}" for unit, length in _UNITS if int(text) >= length)
        return next(units, "")
    return size(int(text)) if name.endswith("bytes") and int(text) >= 1000 else ""


def relative(ms: int | None, clock_ms: int) -> str:
    """Say how far from now a time is, in its largest unit, or return "" if there is no time."""
    if ms is None or ms < 0 or beyond(ms):
        return ""
    distance = abs(ms - clock_ms)
    for unit, length in _UNITS:
        if distance >= length:
            text = f"{round(distance / length)} {unit}"
            return f"in {text}" if ms > clock_ms else f"{text} ago"
    return "now"


def iso(ms: int) -> str:
    """Return a time as ISO 8601, for the `datetime` attribute of a `time` element."""
    return to_datetime(ms).isoformat(timespec="seconds")


def with_code(text: str) -> Markup:
    """Return the text as escaped HTML, with `code` elements for the parts in backticks."""
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def query(values: dict[str, Any]) -> str:
    """Return the values that are not empty as a query string, with its question mark."""
    given = {
        name: value
        for name, value in values.items()
        if value is not False and value not in (None, "")
    }
    return f"?{urlencode(given)}" if given else ""


def answer_page(
    request: Request, template: str, *, status_code: int = 200, **values: Any
) -> Response:
    """Return the response for a page made from a template."""
    html = render(template, root_of(request), **values)
    return HTMLResponse(html, status_code, headers=SECURITY_HEADERS)


def unkept(answer: Response) -> Response:
    """Forbid browsers to store the answer, and return it."""
    answer.headers["Cache-Control"] = "no-store"
    return answer


def go_to(request: Request, path: str) -> Response:
    """Redirect the browser to one of ebbtide's pages after a form was posted."""
    return RedirectResponse(f"{root_of(request)}/{path}", 303, headers=SECURITY_HEADERS)


def root_of(request: Request) -> str:
    """Return the path at which the plugin is mounted, below Airflow's own base path."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


# Only ebbtide's own pages may change anything: a request of another site with a user's login is
# refused (CSRF). Airflow's cookie is SameSite=Lax, so sites of the same domain could still post.


def require_same_origin(request: Request) -> None:
    """Raise 403 unless the browser reports that a page of this origin made the request.

    A request with a bearer token passes: no other site can make a browser send one.
    """
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    if not _is_of_own_page(request):
        raise HTTPException(
            403, "expected a form sent from one of these pages, found one sent from another site"
        )


def _is_of_own_page(request: Request) -> bool:
    """Check Sec-Fetch-Site, or Origin without it: browsers send Sec-Fetch-Site only over https."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", "")).netloc
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").netloc
    return bool(origin) and origin in {request.headers.get("host"), base}


UNPAUSE = "unpause"  # the name of a checkbox


async def _posted(request: Request) -> FormData:
    return await request.form()


def add_forms(app: FastAPI) -> None:
    """Add the routes that show a form and receive it."""

    @app.get("/forms")
    def forms(request: Request) -> Response:
        return answer_page(request, "forms.html", sections=SECTIONS)

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
        return go_to(request, f"runs/{run_id}?dag={dag}")


async def _check(api: AirflowApi, dag: str, params: Mapping[str, Any]) -> None:
    """Raise EbbtideError if the lake's state shows that a Param is wrong."""
    details = await api.get("dags", dag, "details")
    defaults = _defaults(details.value["params"]) if details.is_good else {}

    def check() -> None:
        with open_lake() as lake:
            check_params(lake, dag, params, defaults)

    await run_in_threadpool(check)


async def start(api: AirflowApi, dag: str, params: dict[str, Any], *, unpause: bool) -> Reply:
    """Start a run of a DAG. With `unpause`, unpause the DAG first."""
    if unpause:
        reply = await api.patch("dags", dag, body={"is_paused": False})
        if not reply.is_good:
            return reply
    return await api.post("dags", dag, "dagRuns", body={"logical_date": None, "conf": params})


def _form_of(dag: str) -> FormSpec:
    if dag not in FORMS:
        raise MissingPageError(f"expected one of the forms {', '.join(FORMS)}, found {dag}")
    return FORMS[dag]


async def _form(
    request: Request,
    api: AirflowApi,
    form: FormSpec,
    filled: Filled,
    problem: str | None = None,
    status_code: int = 200,
) -> Response:
    """Show a form, with the reason if the user cannot send it."""
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
    answer = answer_page(request, "form.html", page=shown, status_code=status_code)
    return unkept(answer)


def _why_not(api: AirflowApi, form: FormSpec, dag: Reply) -> str | None:
    if not dag.is_good:
        return f"Airflow does not know the DAG {form.name}: {dag.problem}"
    if not api.may_trigger(form.name):
        return (
            f"{api.user_name} may read this page, but not start runs of {form.name}. Ask an "
            "administrator of Airflow for a role that may."
        )
    return None


def _defaults(params: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the defaults of a DAG's Params that fit into a field of one line."""
    values = {name: param.get("value") for name, param in (params or {}).items()}
    return {
        name: str(value)
        for name, value in values.items()
        if isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    }


async def _connections(api: AirflowApi) -> list[str]:
    """Return the connections to Kafka that the user may see."""
    reply = await api.get("connections", limit=100, order_by="connection_id")
    listed = reply.value["connections"] if reply.is_good else []
    return [
        connection["connection_id"] for connection in listed if connection["conn_type"] == "kafka"
    ]


LOG_LINES = 60
CAUSES_SHOWN = 5
UNDO = "undo_run"
APPROVE_PLAN = "approve_plan"
MADE_ANEW = (
    "Your answer was not recorded: the task was cleared, so the run makes a new plan. Nothing was "
    "changed. Read the new plan when the run asks again."
)
SETTLES = "Airflow is still registering the question. You can answer it in a few seconds."


def add_runs(app: FastAPI) -> None:
    """Add the routes of a run: its page, the answer to its question, and its tasks' logs."""

    @app.get("/runs/{run_id}")
    async def run(
        request: Request, api: Api, run_id: str, dag: str = "", topic: str = "", page: int = 1
    ) -> Response:
        return await _run(request, api, run_id, dag, topic=topic, page=page)

    @app.post("/runs/{run_id}/answer", dependencies=[Depends(require_same_origin)])
    async def answer(request: Request, api: Api, run_id: str, dag: str) -> Response:
        filled = Filled.of((await request.form()).multi_items())
        path = _task_path(dag, run_id, filled.text("task") or "", filled.number("map_index") or 0)
        question = await _question(api, path)
        if question is not None and not question.stands:
            return await _run(request, api, run_id, dag, MADE_ANEW, 409)
        if question is not None and not question.is_settled:
            return await _run(request, api, run_id, dag, SETTLES, 409)
        reply = await api.patch(
            *path,
            "hitlDetails",
            body={
                "chosen_options": [filled.text("answer") or ""],
                "params_input": {NOTE: filled.text(NOTE), SHOWN: filled.text(SHOWN)},
            },
        )
        if not reply.is_good:
            return await _run(request, api, run_id, dag, reply.problem, reply.status)
        return go_to(request, f"runs/{quote(run_id, safe='')}?dag={quote(dag, safe='')}")

    @app.get("/runs/{run_id}/log")
    async def log(
        request: Request,
        api: Api,
        run_id: str,
        dag: str,
        task: str,
        attempt: int = 1,
        map_index: int = -1,
    ) -> Response:
        path = ("dags", dag, "dagRuns", run_id, "taskInstances", task, "logs", str(attempt))
        reply = await api.get(*path, full_content="true", map_index=map_index)
        lines = log_lines(reply.value["content"]) if reply.is_good else []
        return answer_page(
            request,
            "log.html",
            run_id=run_id,
            dag=dag,
            task=task,
            attempt=attempt,
            lines=lines[-LOG_LINES:],
            left_out=max(len(lines) - LOG_LINES, 0),
            problem=None if reply.is_good else reply.problem,
            status_code=200 if reply.is_good else reply.status,
        )


async def _run(
    request: Request,
    api: AirflowApi,
    run_id: str,
    dag: str,
    problem: str | None = None,
    status_code: int = 200,
    topic: str = "",
    page: int = 1,
) -> Response:
    progress = await read_progress(api, dag, run_id) if dag else None
    asking = await runs_that_ask(api)

    def read() -> dict[str, Any]:
        with open_lake() as lake:
            named = progress.plans if progress else ()
            plans = plans_of_run(lake, run_id, dag or None, named, datetime.now(UTC))
            shown = run_page(lake, run_id, dag or None, topic or None, page)
            return {
                "page": shown,
                "plans": plans,
                "undoable": undoable(lake, shown),
                "why_not": _why_not_run_routes(lake, api, dag, progress, plans),
                "may_ask": bool(plans) and api.may_trigger("approve_plan"),
            }

    shown = await run_in_threadpool(read)
    if status_code == 200 and not (progress or shown["page"]["first"] or shown["plans"]):
        status_code = 404  # neither Airflow nor the lake knows the run
    return answer_page(
        request,
        "run.html",
        progress=progress,
        problem=problem,
        note=NOTE,
        asking={plan: asking_run for plan, asking_run in asking.items() if asking_run != run_id},
        page_link=lambda number: query({"dag": dag, "page": number}),
        status_code=status_code,
        **shown,
    )


async def read_progress(api: AirflowApi, dag: str, run_id: str) -> Progress | None:
    """Return a run's progress in Airflow, or None if the user cannot see such a run."""
    run = await api.get("dags", dag, "dagRuns", run_id)
    tasks = await api.get("dags", dag, "dagRuns", run_id, "taskInstances", limit=100)
    if not (run.is_good and tasks.is_good):
        return None
    of_dag = await api.get("dags", dag, "tasks")
    listed = of_dag.value["tasks"] if of_dag.is_good else []
    following = {dag_task["task_id"]: dag_task["downstream_task_ids"] or () for dag_task in listed}
    progress = progress_of(run.value, tasks.value["task_instances"], following)
    progress = replace(progress, tasks=await _with_causes(api, dag, run_id, progress.tasks))
    for task in progress.waits_for:
        path = _task_path(dag, run_id, task.task, task.map_index)
        if question := await _question(api, path):
            return replace(progress, question=question)
    return progress


async def runs_that_ask(api: AirflowApi) -> dict[str, str]:
    """Return the queued or running run of approve_plan for each plan, by the plan's id."""
    states = ["queued", "running"]
    reply = await api.get("dags", APPROVE_PLAN, "dagRuns", state=states, limit=100)
    asking = {}
    for run in reply.value["dag_runs"] if reply.is_good else ():
        for plan in (run["conf"] or {}).get("plans") or ():
            asking[str(plan)] = str(run["dag_run_id"])
    return asking


async def _with_causes(api: AirflowApi, dag: str, run_id: str, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks, with a cause for each of the first failed ones."""
    explained = list(tasks)
    failed = [place for place, task in enumerate(tasks) if task.has_failed]
    for place in failed[:CAUSES_SHOWN]:
        task = tasks[place]
        path = ("dags", dag, "dagRuns", run_id, "taskInstances", task.task, "xcomEntries", CAUSE)
        cause = await api.get(*path, map_index=task.map_index)
        if cause.is_good:
            explained[place] = replace(task, cause=str(cause.value["value"]))
    return explained


async def _question(api: AirflowApi, path: tuple[str, ...]) -> Question | None:
    """Return a task's open question, or None if it has none."""
    detail = await api.get(*path, "hitlDetails")
    if not detail.is_good:
        return None
    health = await api.get("monitor", "health")
    heartbeat = health.value["scheduler"]["latest_scheduler_heartbeat"] if health.is_good else None
    return question_of(detail.value, datetime.fromisoformat(heartbeat) if heartbeat else None)


def log_lines(content: Sequence[Any]) -> list[str]:
    """Return the lines of a log, without empty lines and Airflow's group markers (`::group::`)."""
    texts = [entry if isinstance(entry, str) else str(entry.get("event", "")) for entry in content]
    lines = [line for text in texts for line in text.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("::")]


def undoable(lake: Lake, page: Mapping[str, Any]) -> UndoableRun | None:
    """Return the run as undoable on the only topic of its page, or None if it is not undoable."""
    if not page["stages"]:
        return None
    name = page["topics"][0].last.topic
    try:
        if refuses(lake.topic(name), UNDO):
            return None
        runs = undoable_runs(lake, name, datetime.now(UTC))
    except EbbtideError:  # dropped, or with a wrong setting: the topic's own page says so
        return None
    return next((run for run in runs if run.run_id == page["run_id"]), None)


def _why_not_run_routes(
    lake: Lake,
    api: AirflowApi,
    dag: str,
    progress: Progress | None,
    plans: Sequence[StandingPlan],
) -> str | None:
    """Say why the user cannot answer the run's question, or return None if the user can."""
    if progress is None or progress.question is None:
        return None
    if not api.may_answer(dag):
        return (
            f"{api.user_name} may read this page, but not answer. Ask an administrator of Airflow "
            "for a role that may."
        )
    if progress.user == api.user_name and any(_has_four_eyes(lake, plan) for plan in plans):
        return (
            f"{api.user_name} requested this plan, so a second user must approve it (four eyes). "
            "To reject it, use Airflow's own page."
        )
    return None if progress.question.is_settled else SETTLES


def _has_four_eyes(lake: Lake, stored: StandingPlan) -> bool:
    properties = lake.records(stored.plan.topic).properties
    return needs_four_eyes(properties, os.environ.get(FOUR_EYES_OF_ALL))


def _task_path(dag: str, run_id: str, task: str, map_index: int) -> tuple[str, ...]:
    return ("dags", dag, "dagRuns", run_id, "taskInstances", task, str(map_index))


MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The title and HTTP status of an error's page. Any other error has status 500.
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
# URLs of static files contain the version.
A_DAY = "private, max-age=86400"


def build_app() -> FastAPI:
    """Build the application.

    Airflow checks no access to a plugin, so each route does. The last route answers all unknown
    paths, also those of FastAPI's own pages.
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
    _add_erasures(app)
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
        asked = OverviewQuery.of(search, only, sort, order, page)
        asking = await api.open_questions()
        waiting = (
            questions(asking.value["hitl_details"], FORMS)
            if asking.is_good
            else [unreadable(f"Airflow does not list open approvals: {asking.problem}")]
        )

        def read() -> dict[str, Any]:
            clock_ms = int(datetime.now(UTC).timestamp() * 1000)
            with open_lake() as lake:
                return overview(lake, histories.read_on(lake), asked, clock_ms, waiting)

        shown = await run_in_threadpool(read)
        root = root_of(request)
        return answer_page(
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
        return answer_page(
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
        return answer_page(request, "plan.html", page=shown, asking=asking)

    @app.get("/dags/{dag_id}")
    def dag(request: Request, dag_id: str) -> Response:
        with open_lake() as lake:
            runs = by_run(lake.attempts(datetime.now(UTC) - HISTORY, dag=dag_id))
        newest = sorted(runs, key=lambda run: run.ended, reverse=True)[:RUNS_SHOWN]
        return answer_page(request, "dag.html", dag=dag_id, runs=newest, has_form=dag_id in FORMS)


def _add_keys(app: FastAPI) -> None:
    @app.get("/keys")
    def form(request: Request, topic: str = "") -> Response:
        with open_lake() as lake:
            return _keys(request, lake.topic_names(), topic, Encoding.UTF_8)

    @app.post("/keys")
    def keys(
        request: Request,
        topic: Annotated[str, FormField()],
        encoding: Annotated[str, FormField()],
        key: Annotated[str, FormField()] = "",
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
    answer = answer_page(
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
    return unkept(answer)


def _add_erasures(app: FastAPI) -> None:
    @app.get("/erasures")
    def erasures(request: Request, topic: str = "") -> Response:
        with open_lake() as lake:
            values = erasures_page(lake, topic, datetime.now(UTC))
        return answer_page(request, "erasures.html", **values)

    @app.get("/certificates/{name}")
    def certificate(name: str) -> Response:
        return _download(name, "application/json", ".json", "envelope")

    @app.get("/certificates/{name}/public_key")
    def public_key(name: str) -> Response:
        return _download(name, "application/x-pem-file", ".pem", "public_key")


def _download(name: str, media_type: str, suffix: str, column: str) -> Response:
    """Return a column of a certificate as a file."""
    with open_lake() as lake:
        found = find_certificate(lake, name)
    headers = {"Content-Disposition": f'attachment; filename="{found.certificate}{suffix}"'}
    return Response(
        getattr(found, column), headers=SECURITY_HEADERS | headers, media_type=media_type
    )


def _static(name: str) -> Response:
    media_type = MEDIA_TYPES.get(name.rpartition(".")[2])
    # Compare with the existing names, so that no name leads out of the folder.
    resource = _static_files().get(name)
    if resource is None or media_type is None:
        return Response(status_code=404)
    headers = SECURITY_HEADERS | {"Cache-Control": A_DAY}
    return Response(resource.read_bytes(), headers=headers, media_type=media_type)


@cache
def _static_files() -> dict[str, Traversable]:
    """Return the static files by name. Third-party files are below `vendor/`."""
    static = files("ebbtide.orchestration.pages") / "static"
    resources = {resource.name: resource for resource in static.iterdir()}
    vendored = resources.pop("vendor").iterdir()
    return resources | {f"vendor/{resource.name}": resource for resource in vendored}


def _missing(request: Request) -> Response:
    return answer_page(
        request,
        "problem.html",
        title="No such page",
        text="expected the path of one of ebbtide's pages, found an unknown path",
        status_code=404,
    )


def _problem(request: Request, error: Exception) -> Response:
    title, status_code = next(
        (answer for kind, answer in PROBLEMS.items() if isinstance(error, kind)),
        ("The lake cannot be read", 500),
    )
    return answer_page(
        request, "problem.html", title=title, text=str(error), status_code=status_code
    )
