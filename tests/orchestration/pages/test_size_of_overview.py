"""The overview of many topics: bounded bytes, no table opened, only new rows read."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ebbtide.lake.reader import open_lake
from ebbtide.ledger.own_tables import Attempt
from ebbtide.orchestration.pages.app import render
from ebbtide.orchestration.pages.overview import (
    COLUMNS,
    FILTERS,
    Histories,
    OverviewQuery,
    TopicHistory,
    overview,
)
from tests.lake_sandbox import LakeSandbox
from tests.orchestration.pages.many_topics import fill_nights, make_topics

TOPICS, PARTITIONS, NIGHTS = 500, 50, 7
MEGABYTE = 1_000_000
CLOCK_MS = int(datetime.now(UTC).timestamp() * 1000)


def page(histories: Histories, **asked: Any) -> str:
    """The overview as the application renders it."""
    with open_lake() as lake:
        shown = overview(lake, histories.read_on(lake), OverviewQuery(**asked), CLOCK_MS)
    return render(
        "overview.html",
        "/ebbtide",
        page=shown,
        columns=COLUMNS,
        filters=FILTERS,
        page_link=lambda number: f"?page={number}",
    )


def test_many_topics_make_a_small_page(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topics(lake, TOPICS, PARTITIONS)
    fill_nights(lake, TOPICS, PARTITIONS, NIGHTS)
    histories = Histories()
    added: list[str] = []
    add = TopicHistory.add

    def count(history: TopicHistory, attempt: Attempt) -> None:
        added.append(history.name)
        add(history, attempt)

    def opened(*_: Any) -> None:
        raise AssertionError("a topic's table was opened")

    monkeypatch.setattr("ebbtide.lake.reader.Lake.topic", opened)
    monkeypatch.setattr(TopicHistory, "add", count)
    rows = []
    for look in ("first", "second", "third"):
        if look == "third":
            lake.run("log.t3", "clean_log", rows_removed=1, now=datetime.now(UTC))
        added.clear()
        html = page(histories, sort="removed")
        rows.append(added.copy())
        assert len(html.encode()) <= MEGABYTE
    assert "1 to 50 of 500 topics" in html.replace("\n", "")
    assert len(rows[0]) >= TOPICS * NIGHTS
    assert rows[1:] == [[], ["log.t3"]]
