"""The form of adopt_table: which table, and which of its columns is what of a record."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.pages.forms.form import (
    PLAN,
    Button,
    Field,
    Filled,
    Form,
    Group,
    Kind,
    Suggestions,
    plans_only,
    without_empty,
)

PARTS = ("partition", "offset", "timestamp", "key", "value")


def _params(filled: Filled) -> dict[str, Any]:
    columns = {f"{part}_column": filled.text(f"{part}_column") for part in PARTS}
    texts = {name: filled.text(name) for name in ("topic", "tombstone")}
    return {
        **without_empty({**texts, **columns}),
        "set": filled.lines("set"),
        "plan_only": plans_only(filled),
    }


FORM = Form(
    dag="adopt_table",
    title="Adopt a table that others write",
    intro="Keeps the table as a topic, so that nights compact it while its writer goes on. Plan it "
    "first: the plan says which column is what of a record, and which of Kafka's rules hold.",
    groups=(
        Group(
            legend="Table",
            fields=(
                Field(
                    name="topic",
                    label="Table",
                    is_required=True,
                    suggests=Suggestions.TABLES,
                    help="<namespace>.<table>. Suggested are the tables that are no topics yet.",
                ),
            ),
        ),
        Group(
            legend="Columns",
            is_open=False,
            help="Columns are recognised in tables of Spark's Kafka source, of Redpanda, and of "
            "Iceberg's sink for Kafka Connect. Name those that are not.",
            fields=(
                *(Field(name=f"{part}_column", label=f"Column of the {part}") for part in PARTS),
                Field(
                    name="tombstone",
                    label="Tombstone",
                    help="COLUMN=VALUE of rows that delete their key; empty: a null value does.",
                ),
            ),
        ),
        Group(
            legend="Settings",
            fields=(
                Field(
                    name="set",
                    label="Set",
                    kind=Kind.LINES,
                    default="kafka.cleanup.policy=compact",
                    help="One NAME=VALUE a line. A rule that is not set removes nothing.",
                ),
            ),
        ),
    ),
    buttons=(
        Button(name="plan", label=PLAN.label, help="shows what the table is taken for."),
        Button(name="ask", label="Adopt", help="keeps the table as a topic at once."),
    ),
    params=_params,
)
