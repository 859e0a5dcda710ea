"""Tables of a real Connect sink and of Redpanda's shape: adopted by form, and cleaned by night.

Both are written all the while. The DAGs run in a real Airflow; their forms are Airflow's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.browser.running_airflow import Person
from tests.fresh_seed import FRESH_SEED
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox
from tests.services.airflow_api import AirflowApi
from tests.services.airflow_services import LOGIN, Airflow
from tests.services.postgresql import PostgreSql
from tests.writers.connect_sink import ConnectSink, sink_settings
from tests.writers.nights import SETTINGS, Writers, compare
from tests.writers.producing import Producing
from tests.writers.shapes import CONNECT_FLAT, REDPANDA, WrittenTable
from tests.writers.streaming import Streaming

pytestmark = pytest.mark.services

ORDERS = WrittenTable("raw.orders", CONNECT_FLAT, 3)
CLICKS = WrittenTable("raw.clicks", REDPANDA, 2, "hours(redpanda.timestamp)")
TABLES = (ORDERS, CLICKS)


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[tuple[Airflow, LakeSandbox]]:
    """An Airflow on an empty lake, to which one person logs in."""
    lake, server = LakeSandbox(tmp_path / "home"), PostgreSql(tmp_path)
    try:
        with server, Airflow(lake, server, {}) as running:
            yield running, lake
    finally:
        server.remove()


def test_tables_are_adopted_by_form_and_cleaned_while_they_are_written(
    chromium: Any,
    airflow: tuple[Airflow, LakeSandbox],
    broker: KafkaBroker,
    topic: str,
    connect_jars: Path,
    tmp_path: Path,
    pictures: Path,
) -> None:
    running, lake = airflow
    spark, server = lake.session, broker.bootstrap_servers
    for table in TABLES:
        table.create(spark)
    defaults = lake.home / "conf" / "spark-defaults.conf"
    settings = sink_settings(defaults, topic, [ORDERS.name], is_nested=False)
    writers = Writers(spark, TABLES)
    with (
        Producing(broker, topic, FRESH_SEED) as producing,
        ConnectSink(tmp_path / "connect", server, settings) as sink,
        Streaming(tmp_path / "stream", server, lake, topic, {CLICKS.table: "redpanda"}) as stream,
    ):
        writers.wait_for_commits(1)
        api = running.api()
        person = Person(chromium, running.url, LOGIN[0], password=LOGIN[1]).log_in()
        adopt_by_form(person, api, ORDERS, {"key_column": "id"}, pictures / "adopt-light.png")
        adopt_by_form(person, api, CLICKS, {}, pictures / "adopt-redpanda-light.png")
        nights = [a_night(api, number) for number in (1, 2)]
        writers.wait_for_commits(1)
        records = producing.stop()
        writers.wait_for_rows(records)
        stream.end()
        nights.append(a_night(api, 3))
        assert sink.states() == ["RUNNING", "RUNNING"]
        assert sink.failures() == []
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_CONF_DIR", str(lake.home / "conf"))
        compare(spark, TABLES, records, nights)


def adopt_by_form(
    person: Person, api: AirflowApi, table: WrittenTable, choices: dict[str, str], picture: Path
) -> None:
    """Fill in the form of adopt_table, as Airflow shows it, and wait for the run."""
    page = person.page
    before = api.runs("adopt_table")
    page.goto("/dags/adopt_table")
    page.get_by_test_id("trigger-dag-button").first.click()
    settings = "\n".join(map("=".join, SETTINGS.items()))
    for name, text in {"topic": table.name, "set": settings}.items():
        page.locator(f"[id='element_{name}']").fill(text)
    page.locator("[id='switch:element_plan_only'] [data-part='control']").click()
    if choices:  # their section is closed, and opening it closes the first one
        page.get_by_role("button", name="Columns", exact=True).click()
    for name, text in choices.items():
        page.locator(f"[id='element_{name}']").fill(text)
    page.screenshot(path=picture)
    page.get_by_test_id("trigger-dag-submit").click()
    run_id = api.wait_for_a_run("adopt_table", before)
    state = api.wait("adopt_table", run_id)
    assert state == "success", api.log("adopt_table", run_id, "adopt_table")


def a_night(api: AirflowApi, number: int) -> str:
    """A run of nightly_retention that many days from now; its id."""
    now = datetime.now(UTC) + timedelta(days=number)
    names = [table.name for table in TABLES]
    conf = {"now": now.isoformat(), "topics": names, "allow_future_now": True}
    return api.must_succeed("nightly_retention", conf)
