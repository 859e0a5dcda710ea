"""The DAGs: how they run, their Params and their Airflow tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from unittest.mock import patch

from tests.dags.runs import dag_bag

# Texts of a Param, and what only orders its form.
TEXTS = {"title", "description", "description_md", "section", "examples"}
CRON = {
    f"EBBTIDE_{name}_SCHEDULE": f"{number} {number} * * *"
    for number, name in enumerate("NIGHTLY INGEST INGEST_TOPIC INGEST_TABLE REPLICATE".split(), 1)
}
DEFAULTS = {
    f"EBBTIDE_{name}": name.lower().replace("_", "-")
    for name in "INGEST_SOURCE INGEST_CLUSTER INGEST_TOPIC_CONNECTION INGEST_TOPIC_CLUSTER "
    "INGEST_TOPIC_PATTERN".split()
}
AFTER_INGESTS = {"EBBTIDE_NIGHTLY_SCHEDULE": "ingested"}


def collect() -> dict[str, Any]:
    """Return all DAGs without variables of the environment, and what the variables change."""
    plain = _dags({})
    return {
        "dags": plain,
        "with variables": _changed(plain, _dags(CRON | DEFAULTS)),
        "after ingests": _changed(plain, _dags(AFTER_INGESTS)),
    }


def _dags(variables: Mapping[str, str]) -> dict[str, Any]:
    unrelated = {n: value for n, value in os.environ.items() if not n.startswith("EBBTIDE_")}
    with patch.dict(os.environ, {**unrelated, **variables}, clear=True):
        bag = dag_bag()
    assert bag.import_errors == {}
    return {dag_id: _dag(dag) for dag_id, dag in bag.dags.items()}


def _dag(dag: Any) -> dict[str, Any]:
    schedule = dag.schedule
    if schedule is not None:
        is_by_assets = isinstance(schedule, list)
        schedule = _names(schedule) if is_by_assets else dag.timetable.summary
    params = {name: dag.params.get_param(name) for name in dag.params}
    return {
        "schedule": schedule,
        "is_paused_upon_creation": dag.is_paused_upon_creation,
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "start_date": dag.start_date.isoformat(),
        "tags": sorted(dag.tags),
        "params": {name: _param(param) for name, param in params.items()},
        "tasks": {task.task_id: _task(task) for task in dag.tasks},
    }


def _param(param: Any) -> dict[str, Any]:
    schema = {name: rule for name, rule in param.schema.items() if name not in TEXTS}
    return {"schema": schema, "default": param.value}


def _task(task: Any) -> dict[str, Any]:
    """Return the facts of an Airflow task. Lists that are empty are left out."""
    facts = {
        "pool": task.pool,
        "trigger_rule": task.trigger_rule.value,
        "retries": task.retries,
        "upstream": sorted(task.upstream_task_ids),
        "is_mapped": task.is_mapped,
        "outlets": _names(task.outlets),
        "inlets": _names(task.inlets),
    }
    return {name: fact for name, fact in facts.items() if fact or name == "retries"}


def _names(assets: Iterable[Any]) -> list[str]:
    return sorted(getattr(asset, "uri", None) or f"alias {asset.name}" for asset in assets)


def _changed(before: Any, after: Any) -> Any:
    """Return what of `after` differs, below the keys that lead to it."""
    if isinstance(before, dict) and isinstance(after, dict):
        both = {key: _changed(before.get(key), value) for key, value in after.items()}
        return {key: value for key, value in both.items() if value not in ({}, None)}
    return None if before == after else after
