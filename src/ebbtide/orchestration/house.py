"""Defaults shared by the DAGs: how they run, and the Params that several forms show."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow.sdk import Asset, Param

from ebbtide.orchestration.timetable import NextTickTimetable


def like(pattern: str, words: str) -> dict[str, Any]:
    """Return the schema of a text that fits a pattern; what does not is refused in these words.

    Of `pattern` alone, Airflow would show the regular expression.
    """
    return {"if": {"not": {"pattern": pattern}}, "then": {"const": words}}


TOPIC = like(r"^[^.]+\..+$", "<cluster>.<topic>, such as log.orders")
LINE = like(r"^[^\r\n]+$", "one line of text that is not empty")

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


class Purpose(StrEnum):
    """What a DAG is for: its second tag, by which Airflow's list of DAGs can be filtered."""

    INGEST = "ingest"
    RETENTION = "retention"
    REMOVE = "remove"
    RECOVER = "hold and recover"
    SETTINGS = "settings"
    APPROVAL = "approval"
    EXAMPLE = "example"


def house(doc: str | None, purpose: Purpose) -> dict[str, Any]:
    """Return the arguments of @dag; the first sentence of `doc` is its description."""
    text = (doc or "").strip()
    summary = " ".join(text.partition("\n\n")[0].split())
    described = {"doc_md": text, "description": summary, "tags": ["ebbtide", str(purpose)]}
    return {**HOUSE, **described}


def asking(doc: str | None, purpose: Purpose) -> dict[str, Any]:
    """Return the arguments of @dag for a DAG that asks.

    A run that waits for its answer must not keep other runs waiting.
    """
    return {**house(doc, purpose), "max_active_runs": 100}


def schedule(variable: str) -> NextTickTimetable | None:
    """Return the cron schedule of an environment variable, in UTC; None if unset or empty."""
    cron = os.environ.get(variable)
    return NextTickTimetable(cron, timezone="UTC") if cron else None


def night_schedule() -> NextTickTimetable | list[Asset]:
    """Return EBBTIDE_NIGHTLY_SCHEDULE: a cron expression, or `ingested` for after each ingest."""
    if os.environ.get("EBBTIDE_NIGHTLY_SCHEDULE") == "ingested":
        return [INGESTED]
    return schedule("EBBTIDE_NIGHTLY_SCHEDULE") or NextTickTimetable("0 2 * * *", timezone="UTC")


def cluster(variable: str) -> Param:
    """Return a Param for the namespace to ingest into; an environment variable sets its default."""
    return Param(
        os.environ.get(variable, "log"),
        type="string",
        **like(r"^[A-Za-z0-9_-]+$", "letters, digits, _ and - without a dot, such as log"),
        title="Cluster",
        description="Namespace of the topics' tables; without a dot.",
    )


def topic() -> Param:
    """Return a Param for one topic; the user must fill it in."""
    return Param(
        "",
        type="string",
        **TOPIC,
        title="Topic",
        description="<cluster>.<topic>, as the lake names it; the form that the DAG's docs lead to "
        "suggests the lake's.",
    )


def required(title: str, description: str) -> Param:
    """Return a line of text, which has to be given."""
    return Param("", type="string", minLength=1, title=title, description=description)


def optional(kind: str, title: str, description: str, **schema: Any) -> Param:
    """Return a Param that may stay empty."""
    return Param(None, type=["null", kind], title=title, description=description, **schema)


def topics(empty: str, **schema: Any) -> Param:
    """Return a Param of any number of topics; `empty` tells what none means."""
    return Param(
        None,
        type=["null", "array"],
        items={"type": "string", **TOPIC},
        minItems=1,
        title="Topics",
        description=f"One <cluster>.<topic> a line; empty means {empty}.",
        **schema,
    )


def plan_only(then: str = "which approve_plan executes until it expires") -> Param:
    """Return the choice to end after the plan; `then` is what becomes of it."""
    return Param(
        False,
        type="boolean",
        title="Plan only",
        description=f"End after the plan, {then}.",
    )


def topics_per_application(**schema: Any) -> Param:
    """Return the size of a group that one Spark application serves."""
    return Param(
        250,
        type="integer",
        minimum=1,
        maximum=1000,
        title="Topics per Spark application",
        description="Starting Spark costs over ten seconds, so topics share an application.",
        **schema,
    )


def now(clock_of: str, **schema: Any) -> Param:
    """Return the run's clock; `clock_of` says what it is for."""
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        title="Now",
        description=f"{clock_of}; empty means when the run was due.",
        **schema,
    )
