"""The form of hold_records: which records a case holds, why, and until when somebody looks."""

from __future__ import annotations

from typing import Any

from ebbtide.log.requests.erase_request import Encoding
from ebbtide.log.requests.hold_request import Action, check_says_why
from ebbtide.orchestration.pages.forms.form import (
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

_TEXTS = ("action", "topic", "hold", "case_id", "reason", "owner", "review_date")
_NUMBERS = ("partition", "first_offset", "end_offset")
_TIMES = ("event_time_from", "event_time_until")


def _params(filled: Filled) -> dict[str, Any]:
    if filled.text("action") == Action.MAKE:
        check_says_why({name: filled.text(name) for name in _TEXTS})
    return without_empty(
        {
            **{name: filled.text(name) for name in _TEXTS},
            **{name: filled.number(name) for name in _NUMBERS},
            **{name: filled.time(name) for name in _TIMES},
            "keys": filled.keys("keys"),
            "keys_file": filled.text("keys_file"),
            "encoding": filled.text("encoding"),
            "plan_only": plans_only(filled),
        }
    )


FORM = Form(
    dag="hold_records",
    title="Hold records",
    intro="What a hold covers is kept when a rule or somebody removes it, for as long as the hold "
    "stands. A new hold, and one that covers more, acts at once; ending one, or covering less, "
    "has to be approved.",
    needs_topic=True,
    groups=(
        Group(
            legend="What",
            fields=(
                Field(name="action", label="Action", kind=Kind.CHOICE, choices=list(Action)),
                Field(
                    name="hold",
                    label="Hold",
                    suggests=Suggestions.HOLDS,
                    help="Its id, to change or to end it; empty for a new one.",
                ),
            ),
        ),
        Group(
            legend="Which records",
            help="All that is filled in applies together. Nothing filled in means all records.",
            fields=(
                Field(
                    name="partition",
                    label="Partition",
                    kind=Kind.NUMBER,
                    suggests=Suggestions.PARTITIONS,
                ),
                Field(name="first_offset", label="From offset", kind=Kind.NUMBER),
                Field(name="end_offset", label="Before offset", kind=Kind.NUMBER),
                Field(name="event_time_from", label="From time (UTC)", kind=Kind.TIME),
                Field(name="event_time_until", label="Before time (UTC)", kind=Kind.TIME),
                Field(
                    name="keys",
                    label="Keys",
                    kind=Kind.LINES,
                    is_secret=True,
                    help="One key per line. The hold stores their SHA-256 alone. Airflow stores "
                    "them in clear with the run: everybody who may see the run can read them. To "
                    "keep them out of Airflow, use a file.",
                ),
                Field(
                    name="keys_file",
                    label="Or: a file of keys",
                    help="A path or URI that Spark reads: text, one key a line, up to 10,000.",
                ),
                Field(
                    name="encoding",
                    label="Keys are written as",
                    kind=Kind.CHOICE,
                    choices=[str(encoding) for encoding in Encoding],
                ),
            ),
        ),
        Group(
            legend="Why",
            help="A new hold needs a case, a reason and an owner.",
            fields=(
                Field(name="case_id", label="Case", help="Such as the number of a lawsuit."),
                Field(name="reason", label="Reason"),
                Field(name="owner", label="Owner", help="Who is asked when it is to be reviewed."),
                Field(
                    name="review_date",
                    label="Review date",
                    kind=Kind.DATE,
                    help="After it the list of topics, plans and reports warn.",
                ),
            ),
        ),
    ),
    buttons=(
        Button(name="plan", label="Plan only", help="shows what would be held."),
        Button(
            name="ask",
            label="Send",
            help="holds more at once; to hold less, or nothing any more, somebody has to approve.",
        ),
    ),
    params=_params,
)
