"""The form of replicate_log: which topics' replicas are brought up to their primaries."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.pages.forms.direct.nightly_retention import (
    TOPICS,
    TOPICS_PER_APPLICATION,
)
from ebbtide.orchestration.pages.forms.form import START, Filled, Form, Group, without_empty


def _params(filled: Filled) -> dict[str, Any]:
    return without_empty(
        {
            "topics": filled.lines("topics"),
            "topics_per_application": filled.number("topics_per_application"),
        }
    )


FORM = Form(
    dag="replicate_log",
    title="Bring replicas up to date",
    intro="Copies to each replica what it lacks of its primary: records, batches, settings and log "
    "start offsets. ebbtide.replicas of a topic names its replicas.",
    groups=(
        Group(legend="Topics", fields=(TOPICS,)),
        Group(legend="Size", is_open=False, fields=(TOPICS_PER_APPLICATION,)),
    ),
    buttons=(START,),
    params=_params,
)
