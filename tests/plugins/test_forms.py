"""Forms start DAGs by Airflow's own API, with the rights of the user who sends them."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.ledger.erasure_secrets import SECRETS
from ebbtide.ledger.holds import Kind as HoldKind
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.runner.undo_points import append_point
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import FORMS
from ebbtide.specs.filled import Filled
from tests import lake_sandbox
from tests.dags.runs import dag_bag
from tests.jobs.erase_keys.erased import note_erased
from tests.lake_sandbox import LakeSandbox, state_of
from tests.plugins.html import text_of

pytestmark = pytest.mark.usefixtures("known_dags")

SignedIn = Callable[[str, str], Any]
KEY = "k-secret-7"
COLUMNS = ("partition", "offset", "timestamp", "key", "value")
SENT: dict[str, dict[str, Any]] = {
    "delete_records": {"topic": "log.a", "offset.0": "40", "offset.1": "", "go": "ask"},
    "apply_retention": {"topics": ["log.a"], "stages": ["clean_log"], "go": "plan"},
    "configure_topic": {
        "topic": "log.a",
        "value.kafka.cleanup.policy": "compact,delete",
        "was.kafka.cleanup.policy": "compact",
        "new_name": ["kafka.retention.ms", ""],
        "new_value": ["86400000", ""],
        "go": "plan",
    },
    "erase_keys": {
        "topic": "log.a",
        "keys": f"{KEY}\nother",
        "requested_by": "ann",
        "reason": "7",
        "encoding": "utf-8",
        "go": "plan",
    },
    "certify_erasure": {
        "topic": "log.a",
        "keys": KEY,
        "encoding": "utf-8",
        "partition": "0",
        "first_offset": "5",
        "end_offset": "9",
        "go": "start",
    },
    "hold_records": {
        "topic": "log.a",
        "action": "make",
        "partition": "1",
        "first_offset": "20",
        "event_time_from": "2026-11-24T10:00",
        "keys": KEY,
        "encoding": "utf-8",
        "case_id": "C-7",
        "reason": "lawsuit",
        "owner": "legal",
        "review_date": "2027-01-31",
        "go": "ask",
    },
    "undo_run": {"topic": "log.a", "run": "run-1", "go": "ask"},
    "approve_plan": {"plans": "clean_log-20261122-5f0c1a2b", "go": "ask"},
    "mark_tombstones": {"topic": "log.a", "offset.0": "", "offset.1": "100", "go": "plan"},
    "ingest_topic": {
        "connection": "kafka_a",
        "topics": ["log.a"],
        "new_topics": "log.b\n",
        "isolation": "read_uncommitted",
        "go": "start",
    },
    "ingest_segments": {"source": "/log", "cluster": "log", "new_topics": "log.b", "go": "start"},
    "ingest_table": {"source": "raw.t", "new_topics": "log.b", "go": "plan"},
    "nightly_retention": {"topics": ["log.a"], "topics_per_application": "7", "go": "start"},
    "replicate_log": {"topics": ["log.a"], "go": "start"},
    "export_segments": {"topic": "log.a", "partitions": ["1"], "target": "/to", "go": "start"},
    "adopt_table": {"topic": "raw.t", "key_column": "k", "set": "", "go": "plan"},
    "abandon_table": {"topic": "log.a", "go": "ask"},
    "repair_state": {"topic": "log.a", "log_start_offset": "0=5\n1=0", "go": "ask"},
}
STARTED = {
    "delete_records": {"topic": "log.a", "offsets": {"0": 40}, "plan_only": False},
    "apply_retention": {"topics": ["log.a"], "stages": ["clean_log"], "plan_only": True},
    "configure_topic": {
        "topic": "log.a",
        "set": ["kafka.cleanup.policy=compact,delete", "kafka.retention.ms=86400000"],
        "plan_only": True,
    },
    "erase_keys": {"topic": "log.a", "keys": [KEY, "other"], "reason": "7", "plan_only": True},
    "certify_erasure": {
        "topic": "log.a",
        "keys": [KEY],
        "partition": 0,
        "first_offset": 5,
        "end_offset": 9,
    },
    "hold_records": {
        "topic": "log.a",
        "action": "make",
        "partition": 1,
        "first_offset": 20,
        "event_time_from": "2026-11-24T10:00:00Z",
        "keys": [KEY],
        "case_id": "C-7",
        "review_date": "2027-01-31",
        "plan_only": False,
    },
    "undo_run": {"topic": "log.a", "run": "run-1", "plan_only": False},
    "approve_plan": {"plans": ["clean_log-20261122-5f0c1a2b"]},
    "mark_tombstones": {"topic": "log.a", "from_offset": ["1:100"], "plan_only": True},
    "ingest_topic": {
        "connection": "kafka_a",
        "topics": ["log.a", "log.b"],
        "isolation": "read_uncommitted",
        "accept_gap": False,
    },
    "ingest_segments": {"source": "/log", "cluster": "log", "topics": ["log.b"]},
    "ingest_table": {"source": "raw.t", "topics": ["log.b"], "plan_only": True},
    "nightly_retention": {"topics": ["log.a"], "topics_per_application": 7},
    "replicate_log": {"topics": ["log.a"]},
    "export_segments": {"topic": "log.a", "partitions": [1], "target": "/to"},
    "adopt_table": {"topic": "raw.t", "key_column": "k", "set": None, "plan_only": True},
    "abandon_table": {"topic": "log.a", "plan_only": False},
    "repair_state": {"topic": "log.a", "log_start_offset": ["0=5", "1=0"], "plan_only": False},
}
# What SENT leaves empty, so that both together fill all fields in.
ALSO_FILLED: dict[str, list[dict[str, Any]]] = {
    "delete_records": [
        {"topic": "log.a", "timestamp": "2026-11-24T10:00"},
        {"topic": "log.a", "age": "P1D", "timeout_ms": "7"},
        {"topic": "log.a", "groups": "g", "connection": "kafka_a"},
    ],
    "apply_retention": [{"stages": ["clean_log"], "now": "2026-11-24T10:00"}],
    "configure_topic": [{"unset.kafka.retention.ms": "1", "from_source": "1"}],
    "erase_keys": [
        {"keys_file": "/keys", "connection": "kafka_a", "append": "1", "timeout_ms": "7"}
    ],
    "certify_erasure": [{"topic": "log.a", "keys_file": "/keys", "erasure": "run-1"}],
    "hold_records": [
        {"action": "end", "hold": "h-1", "end_offset": "9", "event_time_until": "2026-11-24T10:00"},
        {"action": "end", "hold": "h-1", "keys_file": "/keys"},
    ],
    "ingest_topic": [{"cluster": "log", "pattern": "a.*", "now": "2026-11-24T10:00"}],
    "ingest_segments": [{"now": "2026-11-24T10:00"}],
    "ingest_table": [
        {f"{part}_column": "c" for part in (*COLUMNS, "headers")},
        {"source_topic": "t", "tombstone": "c=d", "now": "2026-11-24T10:00"},
    ],
    "nightly_retention": [{"now": "2026-11-24T10:00"}],
    "replicate_log": [{"topics_per_application": "7"}],
    "adopt_table": [{f"{part}_column": "c" for part in (*COLUMNS, "topic")} | {"tombstone": "c=d"}],
    "repair_state": [{"max_event_time_ms": "0=7"}],
}


@pytest.fixture
def topic(lake: LakeSandbox) -> str:
    states = {0: state_of(log_start_offset=5), 1: state_of()}
    lake.topic("log.a", states, {"kafka.cleanup.policy": "compact,delete"})
    return "log.a"


def removed(lake: LakeSandbox) -> None:
    """A run that can be undone."""
    point = UndoPoint(
        point_id="p",
        run_id="run-1",
        job="clean_log",
        topic="log.a",
        at=datetime.now(UTC),
        states={0: state_of()},
    )
    append_point(lake.session, point, Step.UNDO_POINT)


def table(lake: LakeSandbox) -> None:
    """A table of another owner."""
    lake.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.raw")
    lake.session.sql("CREATE TABLE lake.raw.t (id bigint) USING iceberg")


# What the lake has besides log.a, so that a form may be sent.
NEEDED: dict[str, Callable[[LakeSandbox], Any]] = {
    "undo_run": removed,
    "adopt_table": table,
    "ingest_table": table,
    "approve_plan": lambda lake: lake.plan("log.a", "clean_log"),
}


def runs_of(dag: str) -> list[Any]:
    from airflow.models.dagrun import DagRun

    return list(DagRun.find(dag_id=dag))


def test_a_form_reaches_every_param_of_its_dag() -> None:
    dags = dag_bag().dags
    for dag, form in FORMS.items():
        filled = [SENT[dag], *ALSO_FILLED.get(dag, [])]
        reached = {name for values in filled for name in form.read(filled_in(values))}
        assert reached == set(dags[dag].params), dag


def filled_in(values: dict[str, Any]) -> Filled:
    """What a browser sends of these fields."""
    lists = {
        name: content if isinstance(content, list) else [content]
        for name, content in values.items()
    }
    return Filled.of((name, text) for name, texts in lists.items() for text in texts)


@pytest.mark.parametrize("dag", FORMS)
def test_a_form_starts_a_run_in_the_users_name(
    signed_in: SignedIn,
    topic: str,
    lake: LakeSandbox,
    dag: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = signed_in("bob", "USER")
    (plan_id,) = STARTED["approve_plan"]["plans"]
    monkeypatch.setattr(lake_sandbox, "new_plan_id", lambda *_: plan_id)
    NEEDED.get(dag, lambda _: None)(lake)
    answer = client.post(f"/ebbtide/forms/{dag}", data=SENT[dag])
    assert answer.status_code == 303, text_of(answer.text)
    match = re.fullmatch(rf"/ebbtide/runs/([^?]+)\?dag={dag}", answer.headers["location"])
    assert match, answer.headers["location"]
    (run,) = [run for run in runs_of(dag) if run.run_id == unquote(match[1])]
    assert run.triggering_user_name == "bob"
    assert str(run.triggered_by) in ("ui", "DagRunTriggeredByType.UI")
    assert STARTED[dag].items() <= run.conf.items()
    shown = client.get(answer.headers["location"])
    assert shown.status_code == 200
    assert "queued triggered by bob" in text_of(shown.text)
    assert 'hx-trigger="every 4s"' in shown.text


@pytest.mark.parametrize("dag", FORMS)
def test_a_viewer_sees_the_form_and_why_it_cannot_be_sent(
    viewer: Any, topic: str, dag: str
) -> None:
    before = len(runs_of(dag))
    shown = viewer.get(f"/ebbtide/forms/{dag}?topic={topic}")
    assert shown.status_code == 200
    assert f"ann may read this page, but not start runs of {dag}." in text_of(shown.text)
    assert len(re.findall("<button[^>]* disabled", shown.text)) == len(FORMS[dag].buttons)
    sent = viewer.post(f"/ebbtide/forms/{dag}", data=SENT[dag])
    assert sent.status_code == 403
    assert len(runs_of(dag)) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": None, "origin": "https://evil.example"},
        {"sec-fetch-site": None, "origin": "null"},
        {"sec-fetch-site": None},
        {"sec-fetch-site": "cross-site", "authorization": "Basic YTpi"},
    ],
    ids=str,
)
def test_another_sites_form_starts_nothing(
    signed_in: SignedIn, topic: str, headers: dict[str, str | None]
) -> None:
    client = signed_in("bob", "ADMIN")
    del client.headers["sec-fetch-site"]
    client.headers.update({name: value for name, value in headers.items() if value is not None})
    before = len(runs_of("delete_records"))
    answer = client.post("/ebbtide/forms/delete_records", data=SENT["delete_records"])
    assert answer.status_code == 403
    assert len(runs_of("delete_records")) == before


def test_all_that_is_posted_and_changes_something_is_of_the_same_origin(
    signed_in: SignedIn,
) -> None:
    from ebbtide.orchestration.pages.app import build_app

    client = signed_in("bob", "ADMIN")
    client.headers["sec-fetch-site"] = "same-site"
    posted = {
        route.path  # type: ignore[attr-defined]
        for route in build_app().routes
        if "POST" in route.methods  # type: ignore[attr-defined]
    }
    assert {"/forms/{dag}", "/runs/{run_id}/answer"} < posted
    for path in posted - {"/keys", "/{path:path}"}:  # neither changes anything
        address = re.sub(r"{[^}]*}", "delete_records", path)
        answer = client.post(f"/ebbtide{address}?dag=delete_records", data={"answer": "Approve"})
        assert answer.status_code == 403, path


def test_a_browser_without_fetch_metadata_is_known_by_its_origin(
    signed_in: SignedIn, topic: str
) -> None:
    client = signed_in("bob", "USER")
    del client.headers["sec-fetch-site"]
    client.headers["origin"] = "http://testserver"
    answer = client.post("/ebbtide/forms/delete_records", data=SENT["delete_records"])
    assert answer.status_code == 303


def test_the_form_is_filled_in_from_where_one_came(viewer: Any, topic: str) -> None:
    path = f"/ebbtide/forms/delete_records?topic={topic}&partition=1&offset=60"
    html = viewer.get(path).text
    assert re.search(r'name="offset.1"[^>]*value="60"', html)
    assert re.search(r'name="offset.0"[^>]*value=""', html)
    assert "0 5 100 1 0 100" in text_of(html)  # partition, log start, log end
    assert '<option value="log.a">' in html


def test_a_topic_is_chosen_before_its_partitions_are_shown(viewer: Any, topic: str) -> None:
    html = viewer.get("/ebbtide/forms/delete_records").text
    assert "Show the form" in html
    assert "offset.0" not in html


@pytest.mark.parametrize(
    ("dag", "change", "problem"),
    [
        ("delete_records", {"offset.0": ""}, "expected exactly one of offsets, timestamp"),
        ("delete_records", {"age": "P1D"}, "expected exactly one of offsets, timestamp"),
        ("delete_records", {"offset.0": "x"}, "expected a whole number for offset.0, found 'x'"),
        ("apply_retention", {"stages": []}, "expected at least one stage"),
        ("configure_topic", {"new_value": ["1", "2"]}, "expected a setting's name for '2'"),
        ("configure_topic", {"new_name": ["kafka retention", ""]}, "found 'kafka retention'"),
        ("hold_records", {"owner": ""}, "expected owner of a new hold, found none"),
        ("erase_keys", {"reason": ""}, "Invalid input for param reason"),
    ],
)
def test_what_is_wrong_is_said_above_the_form(
    signed_in: SignedIn, topic: str, dag: str, change: dict[str, Any], problem: str
) -> None:
    before = len(runs_of(dag))
    answer = signed_in("bob", "USER").post(f"/ebbtide/forms/{dag}", data={**SENT[dag], **change})
    assert answer.status_code == 400
    assert problem in text_of(answer.text)
    assert len(runs_of(dag)) == before


NO_RANGE = {"partition": "", "first_offset": "", "end_offset": ""}
# Of each form, what its state alone shows to be wrong, and the words.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("delete_records", {"topic": "log.no"}, "expected a table for topic log.no, found none"),
    ("delete_records", {"topic": "orders"}, "expected <cluster>.<topic>, found 'orders'"),
    ("delete_records", {"offset.0": "101"}, "the log has offsets 5 to 100; request 0 to 100"),
    ("delete_records", {"more_offsets": "7: 1"}, "log.a partition 7: UNKNOWN_TOPIC_OR_PARTITION"),
    ("apply_retention", {"topics": ["log.no"]}, "expected topics that have a table, found log.no"),
    ("nightly_retention", {"topics": ["log.off"]}, "found log.off with ebbtide.enabled=false"),
    ("replicate_log", {"topics": ["log.no"]}, "found log.no. The lake has log.a, log.off"),
    ("configure_topic", {"new_value": ["soon", ""]}, "kafka.retention.ms, found 'soon'"),
    ("erase_keys", {"topic": "log.no"}, "expected a table for topic log.no, found none"),
    ("erase_keys", {"keys_file": "/keys"}, "expected either keys or a file of keys, found both"),
    ("erase_keys", {"encoding": "hex"}, "expected a key in hex in line 1"),
    ("certify_erasure", {"erasure": "run-9"}, "found run-9, which erased no key"),
    ("certify_erasure", {"keys_file": "/keys"}, "expected either keys or a file of keys"),
    ("certify_erasure", {"end_offset": "5"}, "first_offset=5, end_offset=5"),
    ("certify_erasure", {"keys": "", **NO_RANGE}, "or a range of offsets, found none"),
    ("hold_records", {"action": "end", "hold": "h-9"}, "expected a hold h-9 in force on log.a"),
    ("hold_records", {"partition": "7"}, "expected partitions of log.a, 0, 1, found 7"),
    ("hold_records", {"end_offset": "9"}, "expected first_offset before end_offset"),
    ("undo_run", {"run": "run-9"}, "run-9"),
    ("approve_plan", {"plans": "clean_log-20260101-00000000"}, "(unknown). Make new plans"),
    ("mark_tombstones", {"offset.1": "101"}, "found 101"),
    ("ingest_topic", {"cluster": "eu"}, "expected topics of cluster eu, found log.a, log.b"),
    ("ingest_topic", {"new_topics": "eu.b"}, "expected topics of cluster log, found eu.b"),
    ("ingest_segments", {"new_topics": "orders"}, "expected <cluster>.<topic>, found 'orders'"),
    ("ingest_table", {"source": "raw.no"}, "expected a table for topic raw.no, found none"),
    ("ingest_table", {"new_topics": ""}, "expected one topic for the rows of raw.t"),
    ("export_segments", {"partitions": ["7"]}, "expected partitions of log.a, 0, 1, found 7"),
    ("adopt_table", {"topic": "raw.no"}, "expected a table for topic raw.no, found none"),
    ("abandon_table", {"topic": "raw.no"}, "expected a table for topic raw.no, found none"),
    ("repair_state", {"log_start_offset": "0:5"}, "expected PARTITION=NUMBER for log_start_offset"),
]


def test_what_the_state_shows_to_be_wrong_starts_no_run(
    signed_in: SignedIn, topic: str, lake: LakeSandbox
) -> None:
    lake.topic("log.off", config={"ebbtide.enabled": "false"})
    client, started = signed_in("bob", "USER"), {dag: len(runs_of(dag)) for dag in FORMS}
    assert {dag for dag, *_ in WRONG} == set(FORMS)
    for dag, change, problem in WRONG:
        answer = client.post(f"/ebbtide/forms/{dag}", data={**SENT[dag], **change})
        assert (answer.status_code, problem in text_of(answer.text)) in ((400, True), (404, True))
    assert {dag: len(runs_of(dag)) for dag in FORMS} == started


def test_keys_of_an_erasure_are_compared_if_the_secret_is_here(
    signed_in: SignedIn,
    topic: str,
    lake: LakeSandbox,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The job compares them in any case."""
    note_erased(lake.session, TopicName.parse(topic), "another key", 0)
    client, sent = signed_in("bob", "USER"), {**SENT["certify_erasure"], "erasure": "r"}
    answer = client.post("/ebbtide/forms/certify_erasure", data=sent)
    assert "found 1 keys, of which it erased 0" in text_of(answer.text)
    monkeypatch.setenv(SECRETS, str(tmp_path))
    assert client.post("/ebbtide/forms/certify_erasure", data=sent).status_code == 303


def test_a_pause_is_named_with_its_way_out(
    signed_in: SignedIn, topic: str, lake: LakeSandbox
) -> None:
    until = datetime.now(UTC) + timedelta(days=7)
    only = {"first_offset": None, "end_offset": None, "case_id": None, "reason": "run x was undone"}
    lake.hold(topic, kind=HoldKind.PAUSE, ends_at=until, **only)
    client = signed_in("bob", "USER")
    answer = client.post("/ebbtide/forms/delete_records", data=SENT["delete_records"])
    assert answer.status_code == 400
    assert (
        f"log.a partition 0: POLICY_VIOLATION (hold h-1 blocks removals until "
        f"{until:%Y-%m-%d %H:%M} UTC: run x was undone. To remove records before then, end h-1 "
        "with hold_records)"
    ) in text_of(answer.text)
    other = {**SENT["delete_records"], "offset.0": "", "offset.1": "40"}
    assert client.post("/ebbtide/forms/delete_records", data=other).status_code == 303


def test_a_key_is_in_no_address_no_page_and_no_log(
    signed_in: SignedIn, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    client = signed_in("bob", "USER")
    wrong = client.post("/ebbtide/forms/erase_keys", data={**SENT["erase_keys"], "reason": ""})
    assert KEY not in wrong.text
    assert wrong.headers["cache-control"] == "no-store"
    sent = client.post("/ebbtide/forms/erase_keys", data=SENT["erase_keys"])
    assert KEY not in sent.headers["location"]
    assert KEY not in client.get(sent.headers["location"]).text
    assert KEY not in caplog.text
    with create_session() as session:
        logged = [str(entry.extra) for entry in session.query(Log).filter_by(dag_id="erase_keys")]
    assert any("requested_by" in extra for extra in logged)
    assert KEY not in json.dumps(logged)


def test_a_paused_dag_is_unpaused_if_that_is_wanted(signed_in: SignedIn, topic: str) -> None:
    from airflow.models.dag import DagModel

    client = signed_in("bob", "USER")
    assert (
        "Unpause the DAG delete_records"
        in client.get(f"/ebbtide/forms/delete_records?topic={topic}").text
    )
    client.post("/ebbtide/forms/delete_records", data={**SENT["delete_records"], "unpause": "1"})
    assert DagModel.get_current("delete_records").is_paused is False
    assert "Unpause the DAG" not in client.get("/ebbtide/forms/delete_records?topic=log.a").text
