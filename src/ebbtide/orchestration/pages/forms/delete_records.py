"""The form of delete_records: up to where, by partition, time, age or consumer groups."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.outcome import delete_request
from ebbtide.orchestration.pages.forms.form import (
    Field,
    Filled,
    Form,
    Group,
    Kind,
    Suggestions,
    offsets,
    plans_only,
    without_empty,
)

TIMEOUT_MS = 30_000


def _params(filled: Filled) -> dict[str, Any]:
    params = {
        "topic": filled.text("topic"),
        "offsets": offsets(filled) or None,
        "timestamp": filled.time("timestamp"),
        "age": filled.text("age"),
        "groups": filled.lines("groups"),
        "connection": filled.text("connection"),
        "timeout_ms": filled.number("timeout_ms") or TIMEOUT_MS,
    }
    delete_request(params)  # says what is wrong before a run does
    return {**without_empty(params), "plan_only": plans_only(filled)}


FORM = Form(
    dag="delete_records",
    title="Delete records",
    intro="Removes the records below an offset from the topic and from every replica of it, as "
    "Kafka's DeleteRecords does. The log start offset moves up; only an undo moves it back. Fill "
    "in one of the four ways to say up to where.",
    needs_topic=True,
    groups=(
        Group(
            legend="Up to where: offsets",
            help="Records below the offset go; -1 stands for the end of what consumers can read. "
            "A partition that stays empty is left as it is.",
            fields=(Field(name="offsets", label="Up to offset", kind=Kind.OFFSETS, least=-1),),
        ),
        Group(
            legend="Or: a time, an age, or what consumers have read",
            help="In every partition.",
            fields=(
                Field(
                    name="timestamp",
                    label="Time (UTC)",
                    kind=Kind.TIME,
                    help="Up to the first record at or after it.",
                ),
                Field(
                    name="age",
                    label="Age",
                    suggests=Suggestions.AGES,
                    help="The same, counted back from the run's time: P30D is thirty days, PT12H "
                    "twelve hours.",
                ),
                Field(
                    name="groups",
                    label="Consumer groups",
                    kind=Kind.LINES,
                    help="One a line: up to the least offset that all of them have committed.",
                ),
                Field(
                    name="connection",
                    label="Connection of the groups",
                    suggests=Suggestions.CONNECTIONS,
                    help="An Airflow connection of type kafka; empty where the topic names one.",
                ),
            ),
        ),
        Group(
            legend="Timeout",
            is_open=False,
            fields=(
                Field(
                    name="timeout_ms",
                    label="Milliseconds",
                    kind=Kind.NUMBER,
                    default=str(TIMEOUT_MS),
                    help="How long a replica may take before its partition answers -1.",
                ),
            ),
        ),
    ),
    params=_params,
)
