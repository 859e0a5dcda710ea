"""Defaults shared by the DAGs: how they run, and their Params as the specs declare them."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Asset, Param

from ebbtide.orchestration.timetable import NextTickTimetable
from ebbtide.specs.job_spec import FormSpec, Frame, Purpose

# An ingest of any topic tells this asset.
INGESTED = Asset(name="ebbtide_ingested", uri="ebbtide://ingested/")


class Priority:
    """Which task gets a free Spark slot: the one with the highest number.

    Airflow's own rule counts the tasks behind one, so that a plan would come before a hold.
    """

    HOLD = 4  # acts at once
    APPROVED = 3  # somebody has asked for it and another has answered
    NIGHT = 2
    PLAN = 1  # removes nothing


# Arguments of @dag. One run at a time: two would only wait for each other's commits.
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
    """Return the arguments of @dag; the first sentence of `doc` is its description."""
    text = (doc or "").strip()
    summary = " ".join(text.partition("\n\n")[0].split())
    described = {"doc_md": text, "description": summary, "tags": ["ebbtide", str(purpose)]}
    return {**HOUSE, **described}


def house_of(spec: FormSpec, doc: str | None) -> dict[str, Any]:
    """Return the arguments of @dag for a DAG that has a form.

    A run that waits for its answer must not keep other runs waiting.
    """
    asking = {"max_active_runs": 100} if spec.frame is Frame.ASKING else {}
    times = {"schedule": schedule(spec.schedule) if spec.schedule else None}
    return {**house(doc, spec.purpose), **asking, **times, "params": params_of(spec)}


def params_of(spec: FormSpec) -> dict[str, Param]:
    """Return the Params as Airflow shows them; a section that is folded has a heading."""
    params = {}
    for legend, of_section, _, is_open in spec.sections:
        heading = {} if is_open else {"section": legend}
        for param in of_section:
            schema = {**param.json_schema, "title": param.label, **heading}
            params[param.name] = Param(param.first_value, description=param.help, **schema)
    return params


def schedule(variable: str) -> NextTickTimetable | None:
    """Return the cron schedule of an environment variable, in UTC; None if unset or empty."""
    cron = os.environ.get(variable)
    return NextTickTimetable(cron, timezone="UTC") if cron else None


def night_schedule() -> NextTickTimetable | list[Asset]:
    """Return EBBTIDE_NIGHTLY_SCHEDULE: a cron expression, or `ingested` for after each ingest."""
    if os.environ.get("EBBTIDE_NIGHTLY_SCHEDULE") == "ingested":
        return [INGESTED]
    return schedule("EBBTIDE_NIGHTLY_SCHEDULE") or NextTickTimetable("0 2 * * *", timezone="UTC")
