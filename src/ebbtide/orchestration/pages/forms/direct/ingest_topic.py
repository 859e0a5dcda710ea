"""The form of ingest_topic: which topics of which brokers."""

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

TOPICS, NEW_TOPICS = "topics", "new_topics"


def named_topics(filled: Filled) -> list[str] | None:
    """Return the topics that were chosen and those that were typed; None where there is none."""
    return [*(filled.lines(TOPICS) or ()), *(filled.lines(NEW_TOPICS) or ())] or None


def topic_fields(empty: str) -> tuple[Field, Field]:
    """Return the fields of `named_topics`; `empty` says what none means."""
    return (
        Field(
            name=TOPICS,
            label="Topics that the lake has",
            kind=Kind.SEVERAL,
            suggests=Suggestions.TOPICS,
        ),
        Field(
            name=NEW_TOPICS,
            label="New topics",
            kind=Kind.LINES,
            help=f"One <cluster>.<topic> a line. No topic in either field means {empty}.",
        ),
    )


CLUSTER = Field(
    name="cluster",
    label="Cluster",
    suggests=Suggestions.CLUSTERS,
    help="The namespace of the topics' tables.",
)
NOW = Field(
    name="now",
    label="Now (UTC)",
    kind=Kind.TIME,
    help="When the records count as received; empty means now.",
)


def _params(filled: Filled) -> dict[str, Any]:
    texts = ("connection", "cluster", "pattern", "isolation")
    return without_empty(
        {
            **{name: filled.text(name) for name in texts},
            TOPICS: named_topics(filled),
            "accept_gap": filled.is_checked("accept_gap"),
            "now": filled.time("now"),
        }
    )


FORM = Form(
    dag="ingest_topic",
    title="Ingest live topics",
    intro="Takes, once and exactly, what the brokers have now and the lake does not. The first run "
    "for a topic makes its tables.",
    groups=(
        Group(
            legend="From where",
            fields=(
                Field(
                    name="connection",
                    label="Connection",
                    suggests=Suggestions.CONNECTIONS,
                    help="An Airflow connection of type kafka.",
                ),
                CLUSTER,
            ),
        ),
        Group(
            legend="Which topics",
            help="Name topics, or give a pattern.",
            fields=(
                *topic_fields("those of the pattern"),
                Field(
                    name="pattern",
                    label="Pattern",
                    help="A regular expression for whole names of topics at the brokers.",
                ),
            ),
        ),
        Group(
            legend="How",
            is_open=False,
            fields=(
                Field(
                    name="isolation",
                    label="Isolation",
                    kind=Kind.CHOICE,
                    choices=("read_committed", "read_uncommitted"),
                    help="read_committed leaves out records of aborted and open transactions.",
                ),
                Field(
                    name="accept_gap",
                    label="Go on without offsets that the brokers removed before they were taken",
                    kind=Kind.CHECK,
                ),
                NOW,
            ),
        ),
    ),
    buttons=(START,),
    params=_params,
)
