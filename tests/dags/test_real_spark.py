"""The DAGs with the real spark-submit and the real jobs, on one topic of the sample log."""

import json
import os
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.lake.own_tables import read_holds
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.holds import Hold, Kind
from ebbtide.orchestration.report import render_run
from tests.dags.answers import run_and_answer
from tests.dags.runs import asset_events, note, run_dag
from tests.lake_sandbox import ROOT, LakeSandbox

SAMPLE = ROOT / "sample" / "log"
TOPIC = "log.audit"
HELD = "lake.log_held.audit"


@pytest.fixture
def real_spark(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> LakeSandbox:
    lake.package()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return lake


@pytest.mark.airflow
def test_a_night_after_an_ingest(real_spark: LakeSandbox) -> None:
    ingested = run_dag("ingest_segments", source=str(SAMPLE), topics=[TOPIC])
    assert ingested.state == "success"
    # All but its active segment is old by then: more than a night may remove unless told so.
    real_spark.session.sql(
        "ALTER TABLE lake.log.audit SET TBLPROPERTIES ('ebbtide.max.delete.ratio' = '1')"
    )
    now = end_of(SAMPLE) + timedelta(days=40)
    night = run_dag("nightly_retention", now=now.isoformat(), allow_future_now=True)
    assert night.state == "success"

    with open_lake() as opened:
        runs = opened.runs(run_id=night.run_id)
        state = opened.topic(TOPIC).partitions[0]
        report = render_run(opened, night.run_id, runs)
    assert {run.topic for run in runs} == {TOPIC}
    assert {run.status for run in runs} == {"succeeded"}
    assert [run.job for run in runs if run.rows_removed] == ["expire_segments"]
    assert state.log_start_offset > 0
    assert asset_events(night) == {
        "ebbtide://lake/log/audit": {"low_watermarks": {"0": state.log_start_offset}}
    }
    assert f"{state.log_start_offset:,}" in report
    assert max(map(len, report.splitlines())) <= 160


@pytest.mark.long
@pytest.mark.airflow
def test_nobody_executes_a_plan_of_their_own_and_another_does(
    real_spark: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four eyes, which the job itself asks for, by whatever way it was approved.

    What a hold covers is kept as it goes.
    """
    run_dag("ingest_segments", source=str(SAMPLE), topics=[TOPIC])
    hold = hold_by_form()
    monkeypatch.setenv("EBBTIDE_FOUR_EYES", "true")
    form = {"topic": TOPIC, "offsets": {"0": 100}}
    refused = run_and_answer("delete_records", by="dag_test", **form)
    assert refused.run.state == "failed"
    assert "found one by dag_test, who asked for the plan" in (note(refused.run) or "")
    with open_lake() as opened:
        (plan,) = opened.plans(job="delete_records")
        assert opened.topic(TOPIC).partitions[0].log_start_offset == 0
        assert opened.plan_events(plan_id=plan.plan_id) == []
    assert f"digest `{plan.digest[:12]}`" in refused.body
    assert "| 0 | 100 | " in refused.body

    run = run_and_answer("approve_plan", by="ben", note="7", plans=[plan.plan_id]).run
    assert run.state == "success"
    assert note(run) == f"Approved by ben (7).\n{plan.plan_id} of {TOPIC}"
    with open_lake() as opened:
        assert opened.topic(TOPIC).partitions[0].log_start_offset == 100
        events = opened.plan_events(plan_id=plan.plan_id)
    assert [(str(event.event), event.by) for event in events] == [
        ("approved", "ben"),
        ("executed", "ben"),
    ]
    assert events[0].note == "7"
    assert {event.digest for event in events} == {plan.digest}
    assert asset_events(run) == {"ebbtide://lake/log/audit": {"low_watermarks": {"0": 100}}}
    kept = real_spark.session.sql(f"SELECT offset, hold_id FROM {HELD} ORDER BY offset").collect()
    assert [tuple(row) for row in kept] == [(offset, hold.hold_id) for offset in range(97, 100)]


def hold_by_form() -> Hold:
    """A hold that a run of `hold_records` has made, as the table has it; nobody was asked."""
    covered = {"partition": 0, "first_offset": 97, "end_offset": 103}
    why = {"case_id": "4711", "reason": "asked by a court", "owner": "legal"}
    form = {"action": "make", "topic": TOPIC, **covered, **why, "review_date": "2999-01-31"}
    run = run_dag("hold_records", **form)
    assert run.state == "success"
    with open_lake() as opened:
        (standing,) = read_holds(opened, datetime.now(UTC), TOPIC)
    hold = standing.hold
    assert (hold.run_id, hold.by, hold.kind) == (run.run_id, "dag_test", Kind.KEEP)
    assert {name: getattr(hold, name) for name in covered | why} == covered | why
    assert (hold.review_date, hold.event_time_from, hold.key_hashes) == (
        date(2999, 1, 31),
        None,
        None,
    )
    return hold


def end_of(log: Path) -> datetime:
    """When the broker last appended to the log."""
    last_append_ms = json.loads((log / "ebbtide-manifest.json").read_text())["last_append_ms"]
    return datetime.fromtimestamp(last_append_ms / 1000, UTC)
