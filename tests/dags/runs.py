"""Running a DAG in this process, as `airflow dags test` does, and looking at what came of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock
from typing import Any
from unittest.mock import patch

from tests.airflow_env import ROOT

# Held while `dag.test` reads and writes states, and free while it waits.
BETWEEN_LOOKS = Lock()
_SLEEP = time.sleep
# What tells our DAGs apart, as Airflow's database of this process has them; None before it does.
_written: Mapping[str, str] | None = None


def dag_bag(dag_id: str | None = None) -> Any:
    """Our DAG files, or one, parsed now: a run writes its conf into the Params of its DAG."""
    from airflow.dag_processing.dagbag import DagBag

    dags = ROOT / "dags"
    return DagBag(str(dags if dag_id is None else dags / f"{dag_id}.py"))


@contextmanager
def _written_once() -> Iterator[None]:
    """Keep `dag.test` from writing all DAGs to the database again, a third of what a run costs.

    They depend on their files, and on variables of ours that a test may set.
    """
    global _written
    told = {n: v for n, v in os.environ.items() if n.startswith("EBBTIDE_") and n not in _OF_A_LAKE}
    if told != _written:
        yield
        _written = told
        return
    bags = "airflow.dag_processing.dagbag"
    with patch(f"{bags}.BundleDagBag"), patch(f"{bags}.sync_bag_to_db"):
        yield


# Each test has these of its own, and no DAG reads them when it is parsed.
_OF_A_LAKE = {"EBBTIDE_HOME", "EBBTIDE_ROOT"}


def _sleep(seconds: float) -> None:
    """Let `dag.test` look again for what it waits for after 50 ms; it would after a second."""
    if sys._getframe(1).f_globals["__name__"] != "airflow.sdk.definitions.dag":
        _SLEEP(seconds)
        return
    BETWEEN_LOOKS.release()
    try:
        _SLEEP(0.05)
    finally:
        BETWEEN_LOOKS.acquire()


def run_dag(dag_id: str, **conf: Any) -> Any:
    """The finished DAG run, without the wait between retries."""
    dag = dag_bag(dag_id).dags[dag_id]
    for task in dag.tasks:
        if hasattr(task, "partial_kwargs"):
            task.partial_kwargs["retry_delay"] = timedelta(0)
        else:
            task.retry_delay = timedelta(0)
    with _written_once(), patch("time.sleep", _sleep), BETWEEN_LOOKS:
        return dag.test(run_conf=conf)


def run_failed_again(run: Any) -> Any:
    """The run once its failed tasks alone were cleared and run, as Airflow's page offers."""
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session

    def cleared(**given: Any) -> Any:
        dag = SerializedDagModel.get_dag(run.dag_id, session=given["session"])
        dag.clear(run_id=run.run_id, only_failed=True, session=given["session"])
        again = given["session"].get(DagRun, run.id)
        again.state, again.dag = "running", given["dag"]
        return again

    with patch("airflow.models.dagrun.get_or_create_dagrun", cleared), create_session():
        return run_dag(run.dag_id)


def know_dags() -> None:
    """Write our DAGs to Airflow's database, as the DAG processor does."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    (bundle,) = manager.get_all_dag_bundles()
    bundle.initialize()
    bag = BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    assert not bag.import_errors
    sync_bag_to_db(bag, bundle.name, bundle.version)


def unpause(dag_id: str) -> None:
    """Run the DAG and unpause it: only one that Airflow knows and runs is triggered."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    run_dag(dag_id)
    with create_session() as session:
        session.query(DagModel).filter(DagModel.dag_id == dag_id).update({"is_paused": False})


def states(run: Any) -> dict[str, str]:
    """The state of each task; a mapped one as task[index]."""
    return {
        ti.task_id + (f"[{ti.map_index}]" if ti.map_index >= 0 else ""): str(ti.state)
        for ti in run.get_task_instances()
    }


def asset_events(run: Any) -> dict[str, dict[str, Any]]:
    """What a run told its assets, by URI, but for the topics' policies and dates."""
    return {
        uri: {name: value for name, value in extra.items() if name != "retention"}
        for uri, extra in _event_extras(run).items()
    }


def retention_told(run: Any) -> dict[str, dict[str, Any]]:
    """The policy and the next dates of each topic in a run's asset events, by URI."""
    return {
        uri: extra["retention"] for uri, extra in _event_extras(run).items() if "retention" in extra
    }


def asset_extra(uri: str) -> dict[str, Any]:
    """The extra of an asset as Airflow has stored it."""
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        extra: dict[str, Any] = session.query(AssetModel).filter_by(uri=uri).one().extra
        return extra


def _event_extras(run: Any) -> dict[str, dict[str, Any]]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetEvent).filter(AssetEvent.source_run_id == run.run_id)
        return {event.asset.uri: event.extra for event in events}


def note(run: Any) -> str | None:
    """The run's note as the database has it."""
    from airflow.models.dagrun import DagRunNote
    from airflow.utils.session import create_session

    with create_session() as session:
        written = session.get(DagRunNote, run.id)
        return None if written is None else written.content


def xcoms(run: Any) -> str:
    """All that the run's tasks handed on, as the database keeps it."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(XComModel).filter(XComModel.run_id == run.run_id)
        return str([xcom.value for xcom in rows])


def rendered(run: Any) -> str:
    """The templates of the run's tasks as they were filled in."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session

    with create_session() as session:
        query = session.query(RenderedTaskInstanceFields)
        rows = query.filter(RenderedTaskInstanceFields.run_id == run.run_id)
        return str([fields.rendered_fields for fields in rows])
