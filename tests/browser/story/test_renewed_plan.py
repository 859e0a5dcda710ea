"""A plan is made anew under an open question: an answer to what was on the screen executes nothing.

Once from our page, and once from Airflow's own page of required actions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from ebbtide.lake.reader import open_lake
from tests.browser.running_airflow import Person
from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import submit
from tests.services.airflow_api import AirflowApi
from tests.services.airflow_services import LOGIN

pytestmark = [pytest.mark.browser, pytest.mark.long]

FLIGHTS, PARTITION = "sample.flights", 1
DAG = "delete_records"


def start_and_rows(lake: LakeSandbox) -> tuple[int, int]:
    """The log start offset of the partition, and its records."""
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        state = opened.topic(FLIGHTS).partitions[PARTITION]
        return state.log_start_offset, opened.live_rows(FLIGHTS)[PARTITION]


def delete_meanwhile(lake: LakeSandbox, before: int) -> None:
    """Another process removes some of what the plan would remove: a new plan is another one."""
    partitions = [{"partition": PARTITION, "offset": before}]
    do(
        lake,
        DAG,
        "--request",
        json.dumps({"topics": [{"topic": FLIGHTS, "partitions": partitions}]}),
    )


def do(lake: LakeSandbox, job: str, *arguments: str) -> None:
    """Run a job without Airflow."""
    done = submit(lake, job, *arguments, "--now", datetime.now(UTC).isoformat())
    assert done.returncode == 0, done.stdout[-2000:]


def answer_on_our_page(bob: Person, run: str) -> Callable[[], Any]:
    """Open the run's page; what approves there."""
    page = bob.open(run)
    page.get_by_label("Note").fill("as on the screen")  # once the page takes an answer
    hear_nothing(page)
    return lambda: bob.press("Approve")


def answer_on_airflows_page(bob: Person, run: str) -> Callable[[], Any]:
    """Open the question as Airflow shows it; what approves there."""
    address = f"/dags/{DAG}/runs/{run_id_of(run)}/tasks/approve/required_actions"
    bob.page.goto(address, wait_until="load")
    approve = bob.page.get_by_role("button", name="Approve", exact=True)
    approve.wait_for()
    hear_nothing(bob.page)
    return lambda: approve.click()


def hear_nothing(page: Any) -> None:
    """Let the page stay as it is: it can send something, and gets nothing new."""

    def answer(route: Any) -> None:
        request = route.request
        is_look = request.method == "GET" and request.resource_type in ("fetch", "xhr")
        route.abort() if is_look else route.continue_()

    page.route("**/*", answer)


def run_id_of(run: str) -> str:
    """The id of a run that a page of ours has in its address."""
    parts = urlsplit(run)
    assert parse_qs(parts.query)["dag"] == [DAG]
    return unquote(parts.path.rpartition("/")[2])


@pytest.mark.parametrize(
    ("answer_on", "offset"),
    [
        pytest.param(answer_on_our_page, 400, id="our page"),
        pytest.param(answer_on_airflows_page, 800, id="Airflow's page"),
    ],
)
def test_an_answer_to_a_plan_that_was_made_anew_executes_nothing(
    running: tuple[str, LakeSandbox],
    person: Callable[[str], Person],
    answer_on: Callable[[Person, str], Callable[[], Any]],
    offset: int,
) -> None:
    url, lake = running
    api, (ann, bob) = AirflowApi(url, *LOGIN), (person("ann"), person("bob"))
    start, _ = start_and_rows(lake)
    assert start < offset - 200
    policy = "kafka.cleanup.policy=compact,delete"  # Kafka deletes no records of compacted topics
    do(lake, "configure_topic", "--topic", FLIGHTS, "--set", policy)
    asked = f"topic={FLIGHTS}&partition={PARTITION}&offset={offset}"
    ann.open(f"forms/{DAG}?{asked}")
    page = ann.press("Plan, then ask for approval")
    run = page.url.rpartition("/ebbtide/")[2]
    ann.wait_for("so a second user must approve it")
    approve = answer_on(bob, run)

    delete_meanwhile(lake, offset - 100)
    before = start_and_rows(lake)
    assert before[0] == offset - 100
    clear = {
        "dry_run": False,
        "dag_run_id": run_id_of(run),
        "task_ids": ["plan"],
        "include_downstream": True,
        "only_failed": False,
    }
    api.read("POST", f"/api/v2/dags/{DAG}/clearTaskInstances", clear)
    assert api.wait(DAG, run_id_of(run)) == "failed"
    approve()
    assert api.wait(DAG, run_id_of(run)) == "failed"
    assert start_and_rows(lake) == before

    # The page says why, and how the new plan is asked for.
    shown = bob.open(run).inner_text("main")
    assert "the plans were made again after the question" in shown
    ann.open(run)
    ann.press("Ask for approval")
    assert "dag=approve_plan" in ann.page.url
    again = ann.page.url.rpartition("/ebbtide/")[2]
    ann.wait_for("so a second user must approve it")
    bob.page.unroute_all()
    bob.open(again)
    bob.press("Approve")
    bob.wait_for("success triggered by ann")
    log_start, rows = start_and_rows(lake)
    assert log_start == offset
    assert rows < before[1]
