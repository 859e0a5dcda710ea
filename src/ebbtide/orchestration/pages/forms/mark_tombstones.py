"""The form of mark_tombstones: from where on records are judged by the rules of now."""

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
    offsets,
    plans_only,
)


def _params(filled: Filled) -> dict[str, Any]:
    lines = [f"{partition}:{offset}" for partition, offset in offsets(filled).items()]
    return {
        "topic": filled.text("topic"),
        "from_offset": lines or None,
        "plan_only": plans_only(filled),
    }


FORM = Form(
    dag="mark_tombstones",
    title="Mark tombstones",
    intro="Judges by the topic's settings ebbtide.tombstone.* which records are tombstones. A "
    "changed rule applies only to records that no run has judged yet, unless you say from which "
    "offset on they are judged again.",
    needs_topic=True,
    groups=(
        Group(
            legend="Judge again",
            help="A partition that stays empty gets only its new records judged. Offsets that a "
            "cleaner round has covered are refused.",
            fields=(Field(name="from_offset", label="From offset", kind=Kind.OFFSETS),),
        ),
    ),
    buttons=(
        replace(PLAN, help="shows how many records would change; nothing is changed."),
        replace(ASK, help="does the same, asks where records would go to quarantine, and marks."),
    ),
    params=_params,
)
