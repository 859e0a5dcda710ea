"""The form of abandon_table: which adopted table is no topic any more."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.pages.forms.form import (
    PLAN,
    Button,
    Field,
    Filled,
    Form,
    Group,
    Suggestions,
    plans_only,
    without_empty,
)


def _params(filled: Filled) -> dict[str, Any]:
    return {**without_empty({"topic": filled.text("topic")}), "plan_only": plans_only(filled)}


FORM = Form(
    dag="abandon_table",
    title="Abandon an adopted table",
    intro="Takes back that a table of others is a topic: the properties on it and the state beside "
    "it go, its rows stay as they are.",
    groups=(
        Group(
            legend="Table",
            fields=(
                Field(
                    name="topic",
                    label="Topic",
                    is_required=True,
                    suggests=Suggestions.TOPICS,
                    help="One that was adopted; all others are refused.",
                ),
            ),
        ),
    ),
    buttons=(
        Button(name="plan", label=PLAN.label, help="shows what would go; nothing is changed."),
        Button(name="ask", label="Abandon", help="removes the properties and the state at once."),
    ),
    params=_params,
)
