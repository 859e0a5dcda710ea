"""The form of ingest_segments: which log directory, and which of its topics."""

from __future__ import annotations

from typing import Any

from ebbtide.orchestration.pages.forms.direct.ingest_topic import (
    CLUSTER,
    NOW,
    TOPICS,
    named_topics,
    topic_fields,
)
from ebbtide.orchestration.pages.forms.form import (
    START,
    Field,
    Filled,
    Form,
    Group,
    Kind,
    without_empty,
)


def _params(filled: Filled) -> dict[str, Any]:
    return without_empty(
        {
            "source": filled.text("source"),
            "cluster": filled.text("cluster"),
            TOPICS: named_topics(filled),
            "accept_gap": filled.is_checked("accept_gap"),
            "now": filled.time("now"),
        }
    )


FORM = Form(
    dag="ingest_segments",
    title="Ingest a log directory",
    intro="Reads what is new in the segment files of a broker's log directory, or of a copy of it. "
    "A run that finds nothing new changes nothing.",
    groups=(
        Group(
            legend="From where",
            fields=(
                Field(
                    name="source",
                    label="Source",
                    help="A path or URI that Spark reads.",
                ),
                CLUSTER,
            ),
        ),
        Group(legend="Which topics", fields=topic_fields("all in the source")),
        Group(
            legend="How",
            is_open=False,
            fields=(
                Field(
                    name="accept_gap",
                    label="Go on where offsets of a topic that is not compacted are missing",
                    kind=Kind.CHECK,
                ),
                NOW,
            ),
        ),
    ),
    buttons=(START,),
    params=_params,
)
