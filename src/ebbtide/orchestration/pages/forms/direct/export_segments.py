"""The form of export_segments: which partitions of a topic, and where to."""

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
    partition_number,
    without_empty,
)


def _params(filled: Filled) -> dict[str, Any]:
    partitions = [partition_number(of) for of in filled.lines("partitions") or ()]
    return without_empty(
        {
            "topic": filled.text("topic"),
            "partitions": partitions or None,
            "target": filled.text("target"),
        }
    )


FORM = Form(
    dag="export_segments",
    title="Export to segment files",
    intro="Writes the topic's tables as the segment files of a broker's log directory, to restore "
    "a broker from. Nothing changes in the lake.",
    needs_topic=True,
    groups=(
        Group(
            legend="What and where to",
            fields=(
                Field(
                    name="partitions",
                    label="Partitions",
                    kind=Kind.SEVERAL,
                    suggests=Suggestions.PARTITIONS,
                    help="None chosen means all.",
                ),
                Field(
                    name="target",
                    label="Target",
                    is_required=True,
                    help="A directory that is not there yet, on a path or URI that every Spark "
                    "worker writes to.",
                ),
            ),
        ),
    ),
    buttons=(Button(name="start", label="Export", help="writes the files at once."),),
    params=_params,
)
