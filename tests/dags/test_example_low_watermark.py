"""The example: what an asset event of a night triggers, with the low watermarks in it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import asset_extra, run_dag, unpause
from tests.dags.test_nightly_retention import LIMITED, WORK
from tests.lake_sandbox import LakeSandbox

DAG = "example_low_watermark"


@pytest.fixture
def low_watermark() -> int:
    """What the replica of log.flights answers."""
    return 3


@pytest.fixture
def night(lake: LakeSandbox, spark_submit: FakeSpark, low_watermark: int) -> Any:
    """A night in which a replica of log.flights was asked where it starts."""
    unpause(DAG)
    lake.topic("log.flights", WORK, {**LIMITED, "ebbtide.replicas": "lake.copy"})
    lake.topic("log.other", WORK)
    spark_submit.low_watermarks = {"delete_records": low_watermark}
    return run_dag("nightly_retention")


def test_a_night_triggers_who_waits_for_the_topic(night: Any) -> None:
    from airflow.models.asset import AssetDagRunQueue
    from airflow.utils.session import create_session

    with create_session() as session:
        queue = session.query(AssetDagRunQueue).filter(AssetDagRunQueue.target_dag_id == DAG)
        assert [queued.asset.uri for queued in queue] == ["ebbtide://lake/log/flights"]
    expected = {"cluster": "log", "topic": "flights", "page": "/ebbtide/topics/log.flights"}
    assert asset_extra("ebbtide://lake/log/flights") == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("low_watermark", "told", "said"),
    [(3, {"0": 3}, "log.flights partition 0: no replica has a record below 3"), (-1, {}, "")],
)
def test_the_triggered_run_sees_the_low_watermarks_that_are_known(
    night: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: dict[str, int],
    said: str,
) -> None:
    monkeypatch.setattr(
        "airflow.models.dagrun.get_or_create_dagrun", consuming_events_of(night.run_id)
    )
    run = run_dag(DAG)
    assert run.state == "success"
    (ti,) = run.get_task_instances()
    assert ti.xcom_pull(task_ids="print_low_watermarks") == told
    assert said in capsys.readouterr().out


def consuming_events_of(run_id: str) -> Any:
    """What the scheduler does: a new DAG run consumes the events that triggered it."""
    from airflow.models import dagrun
    from airflow.models.asset import AssetEvent

    create = dagrun.get_or_create_dagrun

    def created(**given: Any) -> Any:
        run, session = create(**given), given["session"]
        events = session.query(AssetEvent).filter(AssetEvent.source_run_id == run_id)
        run.consumed_asset_events.extend(e for e in events if e.asset.uri.endswith("log/flights"))
        session.commit()
        return run

    return created
