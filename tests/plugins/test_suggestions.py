"""What forms suggest: the lake as it is when somebody looks, and the user's own connections."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.specs.all_specs import FORMS
from ebbtide.specs.params import Suggestions
from tests.lake_sandbox import LakeSandbox, state_of

pytestmark = pytest.mark.usefixtures("known_dags")

SignedIn = Callable[[str, str], Any]
# Forms that suggest partitions, and how.
OF_PARTITIONS = {
    "delete_records": 'name="offset.1"',
    "mark_tombstones": 'name="offset.1"',
    "hold_records": '<option value="1" label="1: offsets 0 to 100">',
    "export_segments": '<option value="1">1 (offsets 0 to 100)</option>',
    "repair_state": "Available: 0 (offsets 5 to 100), 1 (offsets 0 to 100).",
}
OF_CONNECTIONS = ("delete_records", "erase_keys", "ingest_topic")


@pytest.fixture
def topic(lake: LakeSandbox) -> str:
    lake.topic("log.a", {0: state_of(log_start_offset=5), 1: state_of()})
    return "log.a"


def test_forms_suggest_the_topics_that_the_lake_has_now(viewer: Any, lake: LakeSandbox) -> None:
    shown = [dag for dag, form in FORMS.items() if Suggestions.TOPICS in form.suggested]
    assert set(FORMS) - set(shown) == {"approve_plan", "adopt_table"}
    for topic in ("log.a", "eu.b"):
        lake.topic(topic)
        for dag in shown:
            assert f'<option value="{topic}">' in viewer.get(f"/ebbtide/forms/{dag}").text, dag
    html = viewer.get("/ebbtide/forms/ingest_topic").text
    assert re.search(r'<datalist id="list-clusters">.*"eu".*"log".*</datalist>', html)


@pytest.mark.parametrize("dag", OF_PARTITIONS)
def test_forms_suggest_a_topics_partitions(viewer: Any, topic: str, dag: str) -> None:
    assert OF_PARTITIONS[dag] in viewer.get(f"/ebbtide/forms/{dag}?topic={topic}").text


def test_forms_suggest_the_connections_that_the_user_may_see(
    signed_in: SignedIn, topic: str
) -> None:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        session.query(Connection).filter_by(conn_id="kafka_a").delete()
        session.add(Connection(conn_id="kafka_a", conn_type="kafka", host="secret-host"))
    op, user = signed_in("opal", "OP"), signed_in("bob", "USER")
    for dag in OF_CONNECTIONS:
        html = op.get(f"/ebbtide/forms/{dag}?topic={topic}").text
        assert '<datalist id="list-connections"><option value="kafka_a"></datalist>' in html, dag
        assert "secret-host" not in html
        assert "kafka_a" not in user.get(f"/ebbtide/forms/{dag}?topic={topic}").text
    suggesting = [d for d, form in FORMS.items() if Suggestions.CONNECTIONS in form.suggested]
    assert sorted(suggesting) == sorted(OF_CONNECTIONS)


def test_forms_suggest_tables_holds_and_plans(viewer: Any, lake: LakeSandbox, topic: str) -> None:
    lake.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.raw")
    lake.session.sql("CREATE TABLE lake.raw.t (id bigint) USING iceberg")
    html = viewer.get("/ebbtide/forms/adopt_table").text
    assert '<datalist id="list-tables"><option value="raw.t"></datalist>' in html
    lake.hold(topic)
    html = viewer.get(f"/ebbtide/forms/hold_records?topic={topic}").text
    assert '<option value="h-1" label="h-1: C-7: partition 0, from offset 20' in html
    plan = lake.plan(topic, "clean_log")
    erasure = lake.plan(topic, "erase_keys")
    old = lake.plan(topic, "clean_log", expires_at=datetime.now(UTC) - timedelta(hours=1))
    html = viewer.get(f"/ebbtide/forms/approve_plan?plans={old.plan_id}").text
    assert f'<option value="{plan.plan_id}">{plan.plan_id} (clean_log on log.a, ' in html
    assert f'<option value="{old.plan_id}" selected>' in html  # the run says that it has expired
    assert erasure.plan_id not in html


def test_an_empty_field_shows_what_the_dag_takes_for_it(viewer: Any, topic: str) -> None:
    html = viewer.get("/ebbtide/forms/ingest_topic").text
    assert re.search(r'name="connection"[^>]*placeholder="kafka_default"', html)
