"""Defaults of all DAGs: arguments of @dag, priorities, schedules, and Params from the specs."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Asset, Param

from ebbtide.orchestration.timetable import NextTickTimetable
from ebbtide.specs.job_spec import FormSpec, Frame, Purpose

# Every ingest emits an event of this asset.
INGESTED = Asset(name="ebbtide_ingested", uri="ebbtide://ingested/")


class Priority:
    """Priorities for a free Spark slot. The task with the highest number gets it.

    Airflow's default counts downstream tasks, so a plan would come before a hold.
    """

    HOLD = 4  # takes effect immediately
    APPROVED = 3  # one user has requested it and another has answered
    NIGHT = 2
    PLAN = 1  # removes nothing


# Arguments of @dag. One run at a time: two runs would only wait for each other's commits.
HOUSE: dict[str, Any] = {
    "start_date": datetime(2025, 1, 1),
    "catchup": False,
    "max_active_runs": 1,
    "default_args": {
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "weight_rule": "absolute",
        "priority_weight": Priority.NIGHT,
    },
}


def house(doc: str | None, purpose: Purpose) -> dict[str, Any]:
    """Return the arguments of @dag. The first paragraph of `doc` is the DAG's description."""
    text = (doc or "").strip()
    summary = " ".join(text.partition("\n\n")[0].split())
    described = {"doc_md": text, "description": summary, "tags": ["ebbtide", str(purpose)]}
    return {**HOUSE, **described}


def house_of(spec: FormSpec, doc: str | None) -> dict[str, Any]:
    """Return the arguments of @dag for a DAG that has a form.

    A DAG that asks may have many runs at a time: a run that waits for an answer blocks no other.
    """
    asking = {"max_active_runs": 100} if spec.frame is Frame.ASKING else {}
    times = {"schedule": schedule(spec.schedule) if spec.schedule else None}
    return {**house(doc, spec.purpose), **asking, **times, "params": params_of(spec)}


def params_of(spec: FormSpec) -> dict[str, Param]:
    """Return the Params for Airflow's own form. A section that starts closed gets a heading."""
    params = {}
    for legend, of_section, _, is_open in spec.sections:
        heading = {} if is_open else {"section": legend}
        for param in of_section:
            schema = {**param.json_schema, "title": param.label, **heading}
            params[param.name] = Param(param.first_value, description=param.help, **schema)
    return params


def schedule(variable: str) -> NextTickTimetable | None:
    """Return the cron schedule in an environment variable, in UTC, or None if unset or empty."""
    cron = os.environ.get(variable)
    return NextTickTimetable(cron, timezone="UTC") if cron else None


def night_schedule() -> NextTickTimetable | list[Asset]:
    """Return the schedule in EBBTIDE_NIGHTLY_SCHEDULE: a cron expression, or `ingested`.

    `ingested` means after each ingest. Default: 02:00 UTC.
    """
    if os.environ.get("EBBTIDE_NIGHTLY_SCHEDULE") == "ingested":
        return [INGESTED]
    return schedule("EBBTIDE_NIGHTLY_SCHEDULE") or NextTickTimetable("0 2 * * *", timezone="UTC")
