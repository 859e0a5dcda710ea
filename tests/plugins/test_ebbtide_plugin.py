"""The pages through Airflow's own application, as a browser asks for them."""

import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.orchestration.pages import VIEWS
from ebbtide.orchestration.pages.app import render
from tests.airflow_env import ROOT
from tests.lake_sandbox import LakeSandbox, partition_result, state_of
from tests.orchestration.pages.test_history import summary
from tests.plugins.html import text_of

NIGHT = datetime.now(UTC).replace(microsecond=0) - timedelta(days=2)
NO_STATIC_FILES = ["../app.py", "..%2Fapp.py", "vendor", "vendor/htmx.LICENSE"]
FASTAPIS_OWN = ["/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"]


def row_names(html: str) -> list[str]:
    """The topics of the overview's table, in order."""
    return re.findall(r'<th scope="row">\s*<a href="[^"]*">([^<]+)</a>', html)


def test_every_route_asks_for_a_login(anonymous: Any) -> None:
    from ebbtide.orchestration.pages.app import build_app

    asked = []
    for route in build_app().routes:
        path = re.sub(r"{[^}]*}", "any", route.path)  # type: ignore[attr-defined]
        asked += [(path, method) for method in route.methods]  # type: ignore[attr-defined]
    assert ("/", "GET") in asked
    assert ("/keys", "POST") in asked
    asked += [(path, "GET") for path in [*FASTAPIS_OWN, "/static/page.css", "/no/such/page"]]
    answers = {
        (path, method): anonymous.request(method, f"/ebbtide{path}").status_code
        for path, method in asked
    }
    assert set(answers.values()) == {401}, answers


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        *((path, 404, "No such page") for path in ["/no/such/page", *FASTAPIS_OWN]),
        ("/", 200, "No topic yet"),
        ("/topics/log.none", 404, "expected a table for topic log.none, found an empty lake"),
        ("/topics/%3Cimg src=x onerror=alert(1)%3E.a", 400, "&lt;img src=x"),
        ("/runs/none", 404, "<h2>No results</h2>"),
        ("/runs/none?dag=nightly_retention", 404, "<h2>No results</h2>"),
        ("/plans/none", 404, "No such plan"),
        ("/dags/other", 200, "DAGs that are not ebbtide's never do"),
        *((f"/static/{name}", 404, "") for name in NO_STATIC_FILES),
    ],
)
def test_what_is_not_there_says_so(
    viewer: Any, lake: LakeSandbox, path: str, status: int, said: str
) -> None:
    answer = viewer.get(f"/ebbtide{path}")
    assert answer.status_code == status
    assert said in answer.text
    assert "<img" not in answer.text


def test_the_pages_need_nothing_from_elsewhere(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.a")
    for path in ("", "topics/log.a", "keys"):
        answer = viewer.get(f"/ebbtide/{path}")
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert not re.findall(r"https?://", answer.text)
        for asset in re.findall(r'(?:src|href)="(/ebbtide/static/[^"]+)"', answer.text):
            assert viewer.get(asset).status_code == 200, asset
    assert 'href="/ebbtide/topics/log.a"' in viewer.get("/ebbtide/").text
    moved = render("problem.html", "/air/ebbtide", title="t", text="x")
    assert 'href="/air/ebbtide/"' in moved


def test_a_lake_that_is_not_configured_says_so(
    viewer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    answer = viewer.get("/ebbtide/")
    assert answer.status_code == 500
    expected = "expected the directory of spark-defaults.conf in SPARK_CONF_DIR, found none"
    assert expected in answer.text


# What pages say of a topic whose night has failed, and of the run.
SAID = {
    "": (
        "Needs attention",
        "log.a expire_segments: ConfigurationError: no open the run 2 d ago",
        "log.a delete_records: RequestError: expected x, found y",
        "Last nightly run removed 3",
    ),
    "topics/log.a": (
        "cleanup.policy compact",
        "3 records were removed from the table on ",
        "Partition 0: producer 7 waits.",
        "2 segments 5 delete records of partition 0 4 100 100 2 1 ",
        "2026-09-21",  # the horizon
        "superseded by a newer record of the key clean_log 3",
    ),
    "runs/run-1?dag=nightly_retention": (
        "nightly_retention run-1",
        "clean_log succeeded 0.0 s",
        "expire_segments failed",
        "ConfigurationError: no",
        "Partition superseded Log start Low watermark Log end Reason 0 3 5 4 100",
    ),
}


def test_a_night_with_failures_and_its_run(viewer: Any, lake: LakeSandbox) -> None:
    a_night_with_failures(lake)
    pages = {path: text_of(viewer.get(f"/ebbtide/{path}").text) for path in SAID}
    for path, said in SAID.items():
        assert [words for words in said if words not in pages[path]] == [], path
    assert "delete_records" not in pages["runs/run-1?dag=nightly_retention"]  # of another DAG
    tab = text_of(viewer.get("/ebbtide/dags/nightly_retention").text)
    assert re.search(r"run-1 \d{4}-\d\d-\d\d \d\d:\d\d 1 1 3 0.0", tab)


def a_night_with_failures(lake: LakeSandbox) -> None:
    """A topic with a row of each kind: a night whose second stage failed, and later runs."""
    state = state_of(log_start_offset=5, next_clean_ms=1_790_000_000_000)
    lake.topic("log.a", {0: state}, {"kafka.cleanup.policy": "compact"})
    lake.records("log.a", [(0, 7)])
    numbers = partition_result(log_start_offset=5, low_watermark=4, superseded=3)
    result = {0: {**numbers, "note": "producer 7 waits"}}
    lake.run("log.a", "clean_log", now=NIGHT, partitions=result, rows_removed=3)
    lake.run("log.a", "expire_segments", now=NIGHT, error=ConfigurationError("no"))
    later = NIGHT + timedelta(hours=1)
    refused = RequestError("expected x, found y")
    lake.run("log.a", "delete_records", dag="delete_records", now=later, error=refused)
    lake.run("log.a", "export_segments", dag="export_segments", now=later + timedelta(hours=1))


def test_a_kept_plan(viewer: Any, lake: LakeSandbox) -> None:
    plan = lake.plan("log.a", "delete_records", requested_by="ann")
    text = text_of(viewer.get(f"/ebbtide/plans/{plan.plan_id}").text)
    assert f"delete_records {plan.plan_id}" in text
    assert "Status open Requested by ann" in text
    assert "delete_records log.a: a plan" in text
    assert "Ask for approval" in text
    assert "No answer yet." in text
    assert plan.digest in text


def test_topics_are_searched_sorted_and_filtered_by_links(viewer: Any, lake: LakeSandbox) -> None:
    for name in ("log.a", "log.b", "eu.b"):
        lake.topic(name)
    lake.run("log.b", "clean_log", now=NIGHT, rows_removed=7)
    lake.run("eu.b", "clean_log", now=NIGHT, rows_removed=9, error=ConfigurationError("no"))

    def shown(query: str) -> list[str]:
        return row_names(viewer.get(f"/ebbtide/{query}").text)

    assert shown("") == ["eu.b", "log.a", "log.b"]
    assert shown("?search=.B") == ["eu.b", "log.b"]
    assert shown("?sort=removed") == ["eu.b", "log.b", "log.a"]
    assert shown("?sort=removed&order=up") == ["log.b", "eu.b", "log.a"]
    assert shown("?only=failed") == ["eu.b"]
    assert shown("?sort=nonsense&only=nonsense&page=-3") == ["eu.b", "log.a", "log.b"]


def test_the_oldest_event_is_that_of_the_newest_job_that_knows_it(
    viewer: Any, lake: LakeSandbox
) -> None:
    for name, oldest_ms, records in (("log.a", 86_400_000, 1), ("log.b", 0, 1), ("log.c", 1, 0)):
        lake.topic(name)
        known = summary(5, oldest_event_ms=oldest_ms)
        lake.run(name, "clean_log", now=NIGHT, summary=known)
        later = replace(known, oldest_event_ms=None, records=records)
        lake.run(name, "expire_snapshots", now=NIGHT + timedelta(hours=1), summary=later)
    html = viewer.get("/ebbtide/?sort=oldest").text
    assert row_names(html) == ["log.b", "log.a", "log.c"]
    assert re.findall(r'<time datetime="([^"]*)"', html) == [
        "1970-01-01T00:00:00+00:00",
        "1970-01-02T00:00:00+00:00",
    ]


def test_many_topics_come_by_the_page(
    viewer: Any, lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebbtide.orchestration.pages import overview

    monkeypatch.setattr(overview, "TOPICS_A_PAGE", 1)
    for name in ("log.a", "log.b", "log.c"):
        lake.topic(name)
    html = viewer.get("/ebbtide/?page=2").text
    assert row_names(html) == ["log.b"]
    assert 'rel="prev" href="/ebbtide/"' in html
    assert 'rel="next" href="/ebbtide/?page=3"' in html
    assert row_names(viewer.get("/ebbtide/?page=99").text) == ["log.c"]


def test_a_topic_that_cannot_be_read_hides_no_other(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.bad", config={"kafka.retention.ms": "soon"})
    lake.topic("log.good")
    html = viewer.get("/ebbtide/").text
    assert row_names(html) == ["log.bad", "log.good"]
    assert "unreadable log.bad expected an integer in [-1, " in text_of(html)
    answer = viewer.get("/ebbtide/topics/log.bad")
    assert answer.status_code == 500
    assert "A setting is wrong" in answer.text
    assert "kafka.retention.ms" in answer.text
    lake.run("log.bad", "clean_log", error=ConfigurationError("expected an integer"))
    run = viewer.get("/ebbtide/runs/run-1?topic=log.bad")
    assert (run.status_code, "expected an integer" in run.text) == (200, True)


def test_a_key_is_asked_for_in_the_body(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.a")
    asked = {"topic": "log.a", "key": "k-secret", "encoding": "utf-8"}
    answer = viewer.post("/ebbtide/keys", data=asked)
    assert answer.status_code == 200
    assert "No record in log.a" in answer.text
    assert "k-secret" not in answer.text + str(answer.url)
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"topic": "log.a", "key": "x", "encoding": "hex"}, "expected a key in hex in line 1"),
        ({"topic": "log.a", "encoding": "utf-8"}, "expected a key, found an empty text"),
        ({"topic": "log.b", "key": "x", "encoding": "utf-8"}, "expected a table for topic log.b"),
    ],
)
def test_a_key_that_cannot_be_looked_up_says_why(
    viewer: Any, lake: LakeSandbox, asked: dict[str, str], problem: str
) -> None:
    lake.topic("log.a")
    answer = viewer.post("/ebbtide/keys", data=asked)
    assert answer.status_code == 400
    assert problem in answer.text
    assert f'value="{asked["topic"]}"' in answer.text


def test_airflow_shows_a_tab_of_each_dag_and_run(viewer: Any, lake: LakeSandbox) -> None:
    answer = viewer.get("/api/v2/plugins").json()
    (plugin,) = (entry for entry in answer["plugins"] if entry["name"] == "ebbtide")
    shown = {view["destination"]: view["href"] for view in plugin["external_views"]}
    assert set(shown) == {"nav", "dag", "dag_run"}
    a_night_with_failures(lake)
    for href in shown.values():
        path = href.replace("{DAG_ID}", "nightly_retention").replace("{RUN_ID}", "run-1")
        assert viewer.get(f"/{path}").status_code == 200
    for view in VIEWS:
        assert viewer.get(f"/{view['icon']}").headers["content-type"] == "image/svg+xml"


def test_only_the_file_that_registers_is_executed(tmp_path: Path) -> None:
    """Airflow runs every other .py in the folder under its bare name, over whatever has it."""
    from airflow._shared.module_loading import find_path_from_directory

    plugins = tmp_path / "plugins"
    shutil.copytree(ROOT / "plugins", plugins, ignore=shutil.ignore_patterns("__pycache__"))
    (plugins / "package").mkdir()
    for other in ("types.py", "package/types.py"):
        (plugins / other).touch()
    paths = find_path_from_directory(str(plugins), ".airflowignore", "glob")
    assert [Path(path).name for path in paths] == ["ebbtide_plugin.py"]


def test_loading_the_plugin_imports_no_web_framework() -> None:
    """Every task of every DAG loads it."""
    import subprocess
    import sys

    code = "import sys, ebbtide.orchestration.pages; print('fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
