"""Metrics of a run in which one topic's numbers cannot be worked out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ebbtide.lake.reader import LakeTopic
from ebbtide.orchestration.monitoring.measurements import TopicRun
from ebbtide.orchestration.monitoring.observation import FinishedRun, _measured, _readable


def test_one_topics_numbers_hide_no_others() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    odd: Any = {"topic": "log.odd", "partition": 0, "low_watermark": None, "log_start_offset": 0}
    topics = [
        TopicRun(LakeTopic("log.odd", {}), [], [odd], 0),
        TopicRun(LakeTopic("log.good", {}), [], [], 0),
    ]
    run = FinishedRun("nightly_retention", now, ["log.odd", "log.good"], set(), [], [])
    assert {of.tags["topic"] for of in _measured(run, topics)} == {"good"}


def test_a_topic_whose_state_is_odd_is_left_out() -> None:
    class Lake:
        def topic(self, name: str) -> LakeTopic:
            if name == "log.odd":
                raise OverflowError("date value out of range")
            return LakeTopic(name, {})

    lake: Any = Lake()
    assert [of.name for of in _readable(lake, ["log.odd", "log.good"])] == ["log.good"]
