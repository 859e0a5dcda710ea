"""Low watermarks are published once, also those of a job that was tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.orchestration import handover
from ebbtide.orchestration.handover import TOPICS, Publishes, WatermarksByTopic, topic_asset
from ebbtide.orchestration.house import INGESTED

A = {"topic": "log.a", "partition": 0, "low_watermark": 3}
B = {"topic": "log.b", "partition": 1, "low_watermark": 5}
INGEST = Publishes(last_stage="ingest_topic", said_by=None, is_ingest=True)


@pytest.mark.parametrize(
    ("answers", "published", "new"),
    [
        pytest.param([A], {}, {"log.a": {"0": 3}}, id="first"),
        pytest.param([A], {"log.a": {"0": 3}}, {}, id="published already"),
        pytest.param([A, B], {"log.a": {"0": 3}}, {"log.b": {"1": 5}}, id="another topic"),
        pytest.param([A], {"log.a": {"0": 2}}, {"log.a": {"0": 3}}, id="moved on"),
    ],
)
def test_what_is_not_published_yet_is(
    answers: list[dict[str, Any]],
    published: WatermarksByTopic,
    new: WatermarksByTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "_retention_of", lambda topic: None)
    told: list[Any] = []
    events = SimpleNamespace(add=lambda asset, extra=None: told.append(asset))
    ti = SimpleNamespace(xcom_pull=lambda task_ids: [answers])
    context = {"ti": ti, "outlet_events": {TOPICS: events}}
    assert handover._publish(context, INGEST, published) == new
    topics = [topic_asset(name) for name in new]
    is_of_new_topic = {answer["topic"] for answer in answers} - published.keys()
    assert told == ([INGESTED] if is_of_new_topic else []) + topics


def test_a_topic_whose_dates_fail_is_published_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> Any:
        raise OverflowError("date value out of range")

    monkeypatch.setattr(handover, "open_lake", fails)
    told: list[Any] = []
    events = SimpleNamespace(add=lambda asset, extra=None: told.append(extra))
    ti = SimpleNamespace(xcom_pull=lambda task_ids: [[A]])
    context = {"ti": ti, "outlet_events": {TOPICS: events}}
    handover._publish(context, INGEST, {})
    assert told == [None, {"low_watermarks": {"0": 3}}]
