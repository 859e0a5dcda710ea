"""A log with superseded records and a tombstone, and what a night leaves of it."""

from __future__ import annotations

from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.kafka_view import View, view_of_table
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS, night

NIGHT_MS = FIRST_MS + 10 * DAY_MS
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
MESSAGES = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2"), Message("c", "1")],
    [Message("b", None), Message("d", "1")],
    [Message("e", "1")],
]


def view_after_a_night(lake: LakeSandbox, name: TopicName) -> View:
    night(lake.session, str(name), NIGHT_MS)
    view = view_of_table(lake.session, name, 0)
    return view._replace(
        segments=[base for base, _ in view.segments]
    )  # files have times of their own
