"""The form of repair_state: what somebody else did to a topic is taken back, or kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ebbtide.orchestration.pages.forms.form import (
    ASK,
    PLAN,
    Field,
    Filled,
    Form,
    Group,
    Kind,
    Suggestions,
    plans_only,
    without_empty,
)


def _params(filled: Filled) -> dict[str, Any]:
    return {
        **without_empty(
            {
                "topic": filled.text("topic"),
                "log_start_offset": filled.lines("log_start_offset"),
                "max_event_time_ms": filled.lines("max_event_time_ms"),
            }
        ),
        "keep_changes": filled.is_checked("keep_changes"),
        "plan_only": plans_only(filled),
    }


FORM = Form(
    dag="repair_state",
    title="Repair a topic",
    intro="A topic stands still once somebody else added or removed its rows, or edited its state. "
    "The plan shows what was done and when; the repair takes it back, or keeps it.",
    groups=(
        Group(
            legend="Topic",
            fields=(
                Field(name="topic", label="Topic", is_required=True, suggests=Suggestions.TOPICS),
                Field(
                    name="keep_changes",
                    label="Keep what others did, and build the state anew from the tables",
                    kind=Kind.CHECK,
                ),
            ),
        ),
        Group(
            legend="If the state is lost",
            is_open=False,
            fields=(
                Field(
                    name="log_start_offset",
                    label="Log start offsets",
                    kind=Kind.LINES,
                    suggests=Suggestions.PARTITIONS,
                    help="One PARTITION=OFFSET a line: where the partition starts.",
                ),
                Field(
                    name="max_event_time_ms",
                    label="Largest event times",
                    kind=Kind.LINES,
                    help="One PARTITION=MILLISECONDS a line: the largest that the partition ever "
                    "held.",
                ),
            ),
        ),
    ),
    buttons=(
        replace(PLAN, help="shows what was done, and the repair; nothing is changed."),
        ASK,
    ),
    params=_params,
)
