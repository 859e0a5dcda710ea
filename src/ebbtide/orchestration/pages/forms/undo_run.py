"""The form of undo_run: which run's removal is taken back, on which topic."""

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
    Suggestions,
    plans_only,
    without_empty,
)


def _params(filled: Filled) -> dict[str, Any]:
    params = {"topic": filled.text("topic"), "run": filled.text("run")}
    return {**without_empty(params), "plan_only": plans_only(filled)}


FORM = Form(
    dag="undo_run",
    title="Undo a run",
    intro="Brings back what a run has removed from a topic, as long as its files are kept. Runs "
    "that removed something later are taken back with it: the plan lists them. What was ingested "
    "since stays. For seven days after it nothing is removed from these partitions, so that "
    "somebody can change the setting first.",
    needs_topic=True,
    groups=(
        Group(
            legend="Which run",
            fields=(
                Field(
                    name="run",
                    label="Run",
                    is_required=True,
                    suggests=Suggestions.RUNS,
                    help="Its id. Suggested are the runs of the topic that can still be undone.",
                ),
            ),
        ),
    ),
    buttons=(replace(PLAN, help="shows what would come back; nothing is changed."), ASK),
    params=_params,
)
