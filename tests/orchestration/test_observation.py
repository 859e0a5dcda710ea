"""Metrics of a run in which one topic's numbers cannot be worked out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ebbtide.lake.reader import LakeTopic
from ebbtide.layouts.layout import LAYOUT
from ebbtide.orchestration.monitoring import (
    MISSING_OFFSETS,
    FinishedRun,
    TopicRun,
    _measured,
    _readable,
)
from ebbtide.state.covered_offsets import MissingRange
from ebbtide.state.topic_state import to_properties
from tests.lake_sandbox import state_of


def test_one_topics_numbers_hide_no_others() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    odd: Any = {"topic": "log.odd", "partition": 0, "low_watermark": None, "log_start_offset": 0}
    topics = [
        TopicRun(LakeTopic("log.odd", {}), [], [odd], 0),
        TopicRun(LakeTopic("log.good", {}), [], [], 0),
    ]
    run = FinishedRun("nightly_retention", now, ["log.odd", "log.good"], set(), [], [])
    assert {measurement.tags["topic"] for measurement in _measured(run, topics)} == {"good"}


def test_a_topic_whose_state_is_odd_is_left_out() -> None:
    class Lake:
        def topic(self, name: str) -> LakeTopic:
            if name == "log.odd":
                raise OverflowError("date value out of range")
            return LakeTopic(name, {})

    lake: Any = Lake()
    assert [topic.name for topic in _readable(lake, ["log.odd", "log.good"])] == ["log.good"]


def test_offsets_that_never_arrived_are_a_metric_of_adopted_topics() -> None:
    missing = (MissingRange(3, 5, 2), MissingRange(9, 10, 1))
    state = to_properties(0, state_of(missing=missing))
    sent = {
        name: {
            measurement.name: measurement.value
            for measurement in TopicRun(topic, [], [], 0).measured_at_night()
        }
        for name, topic in {
            "adopted": LakeTopic("log.a", {**state, LAYOUT: "{}"}),
            "own": LakeTopic("log.a", state),
        }.items()
    }
    assert sent["adopted"][MISSING_OFFSETS] == 3
    assert MISSING_OFFSETS not in sent["own"]
