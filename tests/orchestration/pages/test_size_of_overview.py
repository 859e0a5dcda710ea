"""The overview of many topics: bounded bytes, no table opened, only new rows read."""

from datetime import UTC, datetime
from time import process_time
from typing import Any

import pytest

from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.pages.rendering import render
from ebbtide.orchestration.pages.views.overview.history import Histories
from ebbtide.orchestration.pages.views.overview.page import COLUMNS, FILTERS, Asked, overview
from tests.lake_sandbox import LakeSandbox
from tests.orchestration.pages.many_topics import fill_nights, make_topics

TOPICS, PARTITIONS, NIGHTS = 500, 50, 7
MEGABYTE = 1_000_000
CLOCK_MS = int(datetime.now(UTC).timestamp() * 1000)


def page(histories: Histories, **asked: Any) -> str:
    """The overview as the application renders it."""
    with open_lake() as lake:
        shown = overview(lake, histories.read_on(lake), Asked(**asked), CLOCK_MS)
    return render(
        "overview.html",
        "/ebbtide",
        page=shown,
        columns=COLUMNS,
        filters=FILTERS,
        page_link=lambda number: f"?page={number}",
    )


def test_many_topics_make_a_small_page(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topics(lake, TOPICS, PARTITIONS)
    fill_nights(lake, TOPICS, PARTITIONS, NIGHTS)
    histories = Histories()
    seconds = {}

    def opened(*_: Any) -> None:
        raise AssertionError("a topic's table was opened")

    monkeypatch.setattr("ebbtide.lake.reader.Lake.topic", opened)
    for name in ("first", "second", "third"):
        if name == "third":
            lake.run("log.t3", "clean_log", rows_removed=1, now=datetime.now(UTC))
        began = process_time()
        html = page(histories, sort="removed")
        seconds[name] = process_time() - began
        assert len(html.encode()) <= MEGABYTE
    assert "1 to 50 of 500 topics" in html.replace("\n", "")
    with capsys.disabled():
        spent = ", ".join(f"{name} {1000 * of:.0f} ms" for name, of in seconds.items())
        print(f"\noverview of {TOPICS} topics, {len(html.encode()):,} bytes, CPU: {spent}")
