"""The plugin: its routes, what it adds to Airflow's pages, and the fields of its forms."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from ebbtide.lake.catalog_settings import catalog_settings, read_defaults
from ebbtide.state.topic_state import sealed, to_properties
from tests.lake_sandbox import ROOT, LakeSandbox, state_of

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

CHOSEN = "topic=log.a&plans=clean_log-20260101-0123abcd"
# Airflow's API as the pages ask it: each DAG is paused, and run `r` waits for an answer.
NOTHING = dict.fromkeys("start_date end_date note triggering_user_name rendered_map_index".split())
TASK = {**NOTHING, "task_id": "approve", "map_index": -1, "state": "awaiting_input"}
TASK["try_number"] = 1
QUESTION = {"options": ["Approve", "Reject"], "subject": "?", "assigned_users": [], "params": {}}
RUN = "dags/{dag}/dagRuns/{run}"
AIRFLOW: dict[str, dict[str, Any]] = {
    "connections": {"connections": []},
    "dags/{dag}/details": {"is_paused": True, "params": {}},
    "dags/{dag}/tasks": {"tasks": []},
    RUN: {**NOTHING, "state": "running", "conf": {}},
    f"{RUN}/taskInstances": {"task_instances": [TASK]},
    f"{RUN}/taskInstances/approve/-1/hitlDetails": {
        **QUESTION,
        "task_instance": TASK,
        "response_received": False,
    },
    "dags/~/dagRuns/~/hitlDetails": {"hitl_details": []},
}


def collect(lake: LakeSandbox) -> dict[str, Any]:
    """Return routes and forms, of a lake with one topic of two partitions."""
    from ebbtide.orchestration.pages.app import build_app

    fill(lake)
    plugin = runpy.run_path(str(ROOT / "plugins" / "ebbtide_plugin.py"))["EbbtidePlugin"]
    routes: dict[str, dict[str, list[str]]] = {}
    listed: list[Any] = build_app().routes
    for route in listed:
        query = sorted(param.name for param in route.dependant.query_params)
        routes.setdefault(route.path, {}).update(dict.fromkeys(route.methods, query))
    with client_of(plugin.fastapi_apps) as client:
        links = re.findall(r'href="/ebbtide(/forms/\w+)"', client.get("/ebbtide/forms").text)
        forms = Forms()
        for page in (
            "/?",
            "/keys?",
            "/runs/r?dag=delete_records&",
            *(f"{link}?" for link in links),
        ):
            answer = client.get(f"/ebbtide{page}{CHOSEN}")
            assert answer.status_code == 200, page
            forms.feed(answer.text)
    views = [{key: view[key] for key in view.keys() - {"name"}} for view in plugin.external_views]
    return {
        "plugin": [plugin.name, *(app["url_prefix"] for app in plugin.fastapi_apps)],
        "external views": views,
        "timetables": [kind.__name__ for kind in plugin.timetables],
        "query parameters by route and method": routes,
        "forms": {form: forms.in_lines(form) for form in forms.fields},
    }


def fill(lake: LakeSandbox) -> None:
    """Make the tables of a topic by pyiceberg: no page here reads their rows."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema

    settings = catalog_settings(read_defaults(lake.home / "conf" / "spark-defaults.conf"))
    catalog = SqlCatalog("lake", **settings)
    state = to_properties(0, state_of(log_start_offset=5)) | to_properties(1, state_of())
    tables = {"log": {"kafka.cleanup.policy": "compact"}, "log_state": sealed(state)}
    for namespace, properties in {**tables, "log_batches": {}}.items():
        catalog.create_namespace(namespace)
        catalog.create_table((namespace, "a"), Schema(), properties=properties)
    catalog.engine.dispose()


def client_of(apps: list[dict[str, Any]]) -> TestClient:
    """Return a client of the plugin's applications in a small Airflow, logged in."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    airflow = FastAPI()
    for path, answer in AIRFLOW.items():
        airflow.get(f"/api/v2/{path}")(returning(answer))
    for app in apps:
        airflow.mount(app["url_prefix"], app["app"])
    user = SimpleAuthManagerUser(username="ann", role="ADMIN")
    return TestClient(airflow, cookies={"_token": create_auth_manager().generate_jwt(user)})


def returning(answer: Any) -> Callable[[], Any]:
    """Return a function without arguments, which FastAPI would take from the request."""
    return lambda: answer


class Forms(HTMLParser):
    """Finds by form the kind of each field, and the values that the field offers."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, dict[str, list[str]]] = {}
        self._of_form: dict[str, list[str]] = {}
        self._of_select: list[str] | None = None
        self._is_value = False  # the text to come, of an option without a value

    def in_lines(self, form: str) -> dict[str, str]:
        return {name: " | ".join(words) for name, words in self.fields[form].items()}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            form = f"{given.get('method', 'get')} {given['action'].partition('?')[0]}"
            self._of_form = self.fields.setdefault(form, {})
        elif tag == "option" and self._of_select is not None:
            self._is_value = "value" not in given
            self._of_select += [given["value"]] if "value" in given else []
        elif tag in ("input", "select", "textarea", "button") and "name" in given:
            kind = given.get("type", "text") if tag == "input" else tag
            words = " ".join([kind, *(flag for flag in ("multiple", "required") if flag in given)])
            field = self._of_form.setdefault(given["name"], [words])
            field += [given["value"]] if kind in ("button", "checkbox", "radio") else []
            self._of_select = field if tag == "select" else self._of_select

    def handle_data(self, data: str) -> None:
        if self._is_value and self._of_select is not None:
            self._of_select.append(data)
        self._is_value = False

    def handle_endtag(self, tag: str) -> None:
        self._of_select = None if tag == "select" else self._of_select
