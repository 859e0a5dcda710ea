"""The form of erase_keys: the keys, who asked, and how their tombstones reach the log."""

from __future__ import annotations

from typing import Any

from ebbtide.log.requests.erase_request import Encoding
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

TIMEOUT_MS = 600_000


def _params(filled: Filled) -> dict[str, Any]:
    params = {
        "topic": filled.text("topic"),
        "requested_by": filled.text("requested_by") or "",
        "reason": filled.text("reason") or "",
        "keys": filled.keys("keys"),
        "keys_file": filled.text("keys_file"),
        "encoding": filled.text("encoding"),
        "connection": filled.text("connection"),
        "append": filled.is_checked("append"),
        "timeout_ms": filled.number("timeout_ms") or TIMEOUT_MS,
    }
    return {**without_empty(params), "plan_only": plans_only(filled)}


FORM = Form(
    dag="erase_keys",
    title="Erase keys",
    intro="Gives each key a tombstone, which supersedes all records of the key before it; the next "
    "cleaner round removes them. What became of each key is on the page Find a key.",
    groups=(
        Group(
            legend="What",
            fields=(
                Field(
                    name="topic",
                    label="Topic",
                    is_required=True,
                    suggests=Suggestions.TOPICS,
                    help="A compacted one.",
                ),
                Field(
                    name="keys",
                    label="Keys",
                    kind=Kind.LINES,
                    is_secret=True,
                    help="One key per line. Airflow stores them in clear with the run: everybody "
                    "who may see the run can read them. To keep them out of Airflow, use a file.",
                ),
                Field(
                    name="keys_file",
                    label="Or: a file of keys",
                    help="A path or URI that Spark reads: text, one key a line, up to a million.",
                ),
                Field(
                    name="encoding",
                    label="Written as",
                    kind=Kind.CHOICE,
                    choices=[str(encoding) for encoding in Encoding],
                ),
            ),
        ),
        Group(
            legend="Why",
            help="Each tombstone says so.",
            fields=(
                Field(name="requested_by", label="Requested by", is_required=True),
                Field(
                    name="reason",
                    label="Reason",
                    is_required=True,
                    help="Such as the number of a request.",
                ),
            ),
        ),
        Group(
            legend="How the tombstones get there",
            is_open=False,
            fields=(
                Field(
                    name="connection",
                    label="Connection",
                    suggests=Suggestions.CONNECTIONS,
                    help="An Airflow connection of type kafka that may write the topic; empty "
                    "means its own.",
                ),
                Field(
                    name="append",
                    label="Append them to the tables: only for a topic that nobody writes any more",
                    kind=Kind.CHECK,
                ),
                Field(
                    name="timeout_ms",
                    label="Timeout in milliseconds",
                    kind=Kind.NUMBER,
                    default=str(TIMEOUT_MS),
                    help="How long the tombstones may take to arrive in the tables.",
                ),
            ),
        ),
    ),
    params=_params,
)
