"""The form of ingest_table: which table, to which topic."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.pages.forms.direct.ingest_topic import (
    NOW,
    TOPICS,
    named_topics,
    topic_fields,
)
from ebbtide.orchestration.pages.forms.form import (
    PLAN,
    START,
    Button,
    Field,
    Filled,
    Form,
    Group,
    Suggestions,
    without_empty,
)

PARTS = ("partition", "offset", "timestamp", "key", "value", "headers")


def _params(filled: Filled) -> dict[str, Any]:
    columns = {f"{part}_column": filled.text(f"{part}_column") for part in PARTS}
    texts = {name: filled.text(name) for name in ("source", "source_topic", "tombstone")}
    return without_empty(
        {
            **texts,
            **columns,
            TOPICS: named_topics(filled),
            "plan_only": filled.text("go") == PLAN.name,
            "now": filled.time("now"),
        }
    )


FORM = Form(
    dag="ingest_table",
    title="Copy a table that others write",
    intro="Takes, once and exactly, the rows that the table has now and the topic does not. It is "
    "for tables that nobody else may write, such as Tableflow's. The first run makes the topic.",
    groups=(
        Group(
            legend="From where",
            fields=(
                Field(
                    name="source",
                    label="Table",
                    suggests=Suggestions.TABLES,
                    help="[<catalog>:]<namespace>.<table>, for one topic; empty: as before.",
                ),
                Field(
                    name="source_topic",
                    label="Topic of the table",
                    help="Which one to copy, where the table holds several.",
                ),
            ),
        ),
        Group(
            legend="To which topics",
            fields=topic_fields("all that have been copied to before"),
        ),
        Group(
            legend="Columns",
            is_open=False,
            help="Columns are recognised in the tables of known writers. Name those that are not.",
            fields=(
                *(Field(name=f"{part}_column", label=f"Column of the {part}") for part in PARTS),
                Field(
                    name="tombstone",
                    label="Tombstone",
                    help="COLUMN=VALUE of rows that delete their key; empty: a null value does.",
                ),
            ),
        ),
        Group(legend="How", is_open=False, fields=(NOW,)),
    ),
    buttons=(
        Button(
            name=PLAN.name,
            label=PLAN.label,
            help="shows what the table is taken for, and how many rows would come.",
        ),
        START,
    ),
    params=_params,
)
