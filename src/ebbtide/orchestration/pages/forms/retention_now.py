"""The form of retention_now: which topics, which stages, by which clock."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import RequestError
from ebbtide.orchestration.approval.choices import STAGES
from ebbtide.orchestration.pages.forms.form import (
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
    stages = [stage for stage in STAGES if stage in filled.values.get("stages", ())]
    if not stages:
        raise RequestError(f"expected at least one stage of {', '.join(STAGES)}, found none")
    params = {
        "topics": filled.lines("topics"),
        "stages": stages,
        "now": filled.time("now"),
    }
    return {**without_empty(params), "plan_only": plans_only(filled)}


FORM = Form(
    dag="retention_now",
    title="Apply retention now",
    intro="Does what the next night would do, now: plans each stage by the topics' settings, shows "
    "what would go by which rule, and asks.",
    groups=(
        Group(
            legend="Topics",
            fields=(
                Field(
                    name="topics",
                    label="Topics",
                    kind=Kind.SEVERAL,
                    suggests=Suggestions.TOPICS,
                    help="None chosen means all that are enabled.",
                ),
            ),
        ),
        Group(
            legend="Stages",
            fields=(
                Field(
                    name="stages",
                    label="Stages",
                    kind=Kind.CHOICES,
                    choices=STAGES,
                    default=STAGES[:2],
                    help="clean_log compacts; expire_segments removes what is past a limit of time "
                    "or size; expire_snapshots frees the disk of what was removed before.",
                ),
            ),
        ),
        Group(
            legend="Clock",
            is_open=False,
            fields=(
                Field(
                    name="now",
                    label="Now (UTC)",
                    kind=Kind.TIME,
                    help="The clock of all stages; empty means the run's time.",
                ),
            ),
        ),
    ),
    params=_params,
)
