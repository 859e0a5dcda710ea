"""The form of nightly_retention: a night now, for all topics or some."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.pages.forms.form import (
    START,
    Field,
    Filled,
    Form,
    Group,
    Kind,
    Suggestions,
    without_empty,
)

TOPICS = Field(
    name="topics",
    label="Topics",
    kind=Kind.SEVERAL,
    suggests=Suggestions.TOPICS,
    help="None chosen means all that are enabled.",
)
TOPICS_PER_APPLICATION = Field(
    name="topics_per_application",
    label="Topics per Spark application",
    kind=Kind.NUMBER,
    help="Starting Spark costs over ten seconds, so topics share an application.",
)


def _params(filled: Filled) -> dict[str, Any]:
    return without_empty(
        {
            "topics": filled.lines("topics"),
            "topics_per_application": filled.number("topics_per_application"),
            "now": filled.time("now"),
            "allow_future_now": filled.is_checked("allow_future_now"),
        }
    )


FORM = Form(
    dag="nightly_retention",
    title="Run a night now",
    intro="Does at once what the night does: removes what the topics' settings say, within their "
    "guards, and asks nobody. Apply retention now does the same with a plan and an approval.",
    groups=(
        Group(legend="Topics", fields=(TOPICS,)),
        Group(
            legend="Clock and size",
            is_open=False,
            fields=(
                TOPICS_PER_APPLICATION,
                Field(
                    name="now",
                    label="Now (UTC)",
                    kind=Kind.TIME,
                    help="The clock of the whole run; empty means now.",
                ),
                Field(
                    name="allow_future_now",
                    label="Allow a clock in the future, for rehearsals on copies only: it removes "
                    "what may not go before then",
                    kind=Kind.CHECK,
                ),
            ),
        ),
    ),
    buttons=(START,),
    params=_params,
)
