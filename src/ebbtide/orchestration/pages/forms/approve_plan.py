"""The form of approve_plan: plans that are kept, to be asked for and executed."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.pages.forms.form import (
    Button,
    Field,
    Filled,
    Form,
    Group,
    Kind,
    Suggestions,
)


def _params(filled: Filled) -> dict[str, Any]:
    return {"plans": filled.lines("plans") or []}


FORM = Form(
    dag="approve_plan",
    title="Ask for the approval of a plan",
    intro="Asks whether plans that are kept may be executed, and executes them once somebody has "
    "approved them. They are approved or rejected together.",
    groups=(
        Group(
            legend="Plans",
            fields=(
                Field(
                    name="plans",
                    label="Plans",
                    kind=Kind.SEVERAL,
                    suggests=Suggestions.PLANS,
                    is_required=True,
                    help="Those that nobody has rejected or executed, and that have not expired. "
                    "A plan of erase_keys is not among them: it keeps no keys.",
                ),
            ),
        ),
    ),
    buttons=(
        Button(
            name="ask",
            label="Ask for approval",
            help="waits until somebody answers; without an approval nothing is changed.",
        ),
    ),
    params=_params,
)
