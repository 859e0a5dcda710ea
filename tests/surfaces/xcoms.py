"""Names and shapes of the XComs and asset events of DAG runs with a fake spark-submit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ebbtide.errors import SafetyError
from ebbtide.iceberg.commits import Step
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.runner.undo_points import append_point
from tests.dags.answers import run_and_answer
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import run_dag
from tests.lake_sandbox import state_of
from tests.surfaces.stored import shape, shape_of_all

EXPIRING = {"kafka.cleanup.policy": "compact,delete", "kafka.retention.ms": "1"}
POINT = {"point_id": "p", "run_id": "run-0", "job": "clean_log", "topic": "log.a"}
# Airflow stores more: keys that begin with these.
OF_AIRFLOW = ("skipmixin_key", "trigger_", "_link_")


def collect(spark: FakeSpark) -> dict[str, Any]:
    """Return the shapes by run, Airflow task and key."""
    to_mark_and_clean = state_of(first_unmarked_offset=0, cleaned_end_offset=0)
    spark.lake.topic("log.a", {0: to_mark_and_clean}, EXPIRING)
    point = UndoPoint(**POINT, at=datetime.now(UTC))  # type: ignore[arg-type]
    append_point(spark.lake.session, point, Step.UNDO_POINT)
    spark.totals["undo_run"] = {"topic": {"undone_run": "run-0"}}
    spark.failures["expire_segments", "log.a"] = [SafetyError("more than half")]
    runs = {
        "delete_records": run_and_answer("delete_records", topic="log.a", offsets={"0": 5}).run,
        "undo_run": run_and_answer("undo_run", topic="log.a", run="run-0").run,
        "nightly_retention, stopped by a guard": run_dag("nightly_retention"),
        "ingest_segments": run_dag("ingest_segments"),
    }
    return {
        name: {"xcoms": xcoms_of(run), "asset events": events_of(run)} for name, run in runs.items()
    }


def xcoms_of(run: Any) -> dict[str, dict[str, Any]]:
    """Return the shapes of a run's values; those of mapped tasks merge."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    found: dict[str, dict[str, list[Any]]] = {}
    with create_session() as session:
        for xcom in session.query(XComModel).filter(XComModel.run_id == run.run_id):
            if not xcom.key.startswith(OF_AIRFLOW):
                value = XComModel.deserialize_value(xcom)
                found.setdefault(xcom.task_id, {}).setdefault(xcom.key, []).append(value)
    return {
        task: {key: shape_of_all(values)[0] for key, values in by_key.items()}
        for task, by_key in found.items()
    }


def events_of(run: Any) -> dict[str, Any]:
    """Return the shapes of what a run tells with its assets, by URI."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetEvent).filter(AssetEvent.source_run_id == run.run_id)
        return {event.asset.uri: shape(event.extra) for event in events}
