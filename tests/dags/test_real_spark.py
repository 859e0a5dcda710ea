"""The DAGs with the real spark-submit and the real jobs, on one topic of the sample log."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.report import render_run
from tests.dags.runs import asset_events, run_dag
from tests.lake_sandbox import ROOT, LakeSandbox

SAMPLE = ROOT / "sample" / "log"
TOPIC = "log.audit"


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


def end_of(log: Path) -> datetime:
    """When the broker last appended to the log."""
    last_append_ms = json.loads((log / "ebbtide-manifest.json").read_text())["last_append_ms"]
    return datetime.fromtimestamp(last_append_ms / 1000, UTC)
