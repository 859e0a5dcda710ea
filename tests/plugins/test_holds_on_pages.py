"""Holds on the pages: on a topic's bars, in the list of topics, and when somebody has to look."""

import hashlib
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

from ebbtide.ledger.holds import HoldEvent, Kind
from tests.lake_sandbox import LakeSandbox, state_of
from tests.plugins.html import text_of

NOW = datetime.now(UTC).replace(microsecond=0)


def test_a_hold_is_on_its_topics_page_and_bar(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.a", {0: state_of(), 1: state_of()})
    lake.hold("log.a")
    lake.hold("log.a", hold_id="h-2", kind=Kind.PAUSE, partition=1, ends_at=NOW + timedelta(days=2))
    lake.hold("log.a", hold_id="h-3", key_hashes=("ab" * 32,), partition=None)
    lake.hold("log.a", hold_id="h-3", event=HoldEvent.ENDED, at=NOW)
    html = viewer.get("/ebbtide/topics/log.a").text
    assert html.count('class="held"') == 2
    assert '<rect class="held" x="200.0" width="100.0"' in html
    assert "hold h-1 (case C-7) from 20 to 30" in html
    text = text_of(html)
    assert "h-1 partition 0, from offset 20, before offset 30 C-7" in text
    assert "h-2 pause partition 1, from offset 20, before offset 30 C-7 - legal" in text
    assert f"ends {NOW + timedelta(days=2):%Y-%m-%d %H:%M}" in text
    assert "h-3" not in text
    form = "/ebbtide/forms/hold_records?action=change&amp;topic=log.a&amp;hold=h-1&amp;partition=0"
    assert f'href="{form}&amp;first_offset=20&amp;end_offset=30' in html


def test_the_page_of_a_key_names_the_holds_that_may_cover_it(
    viewer: Any, lake: LakeSandbox
) -> None:
    lake.topic("log.a")
    sha256 = hashlib.sha256(b"k").hexdigest()
    lake.hold("log.a")
    lake.hold("log.a", hold_id="h-2", key_hashes=(sha256,), case_id="C-8", at=NOW)
    lake.hold("log.a", hold_id="h-3", key_hashes=("ab" * 32,), case_id="C-9")
    lake.hold("log.a", hold_id="h-4", kind=Kind.PAUSE)
    asked = {"topic": "log.a", "key": "k", "encoding": "utf-8"}
    text = text_of(viewer.post("/ebbtide/keys", data=asked).text)
    assert re.findall(r"held hold (h-\d)", text) == ["h-1", "h-2"]
    assert "before offset 30, 1 key. The covered records of this key are copied" in text


def test_a_hold_to_review_needs_somebody(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.a")
    lake.topic("log.b")
    lake.hold("log.a", review_date=date(2026, 1, 1))
    lake.hold("log.a", hold_id="h-2", review_date=date(2999, 1, 1))
    html = viewer.get("/ebbtide/").text
    text = text_of(html)
    needed = "review log.a the review of hold h-1 (case C-7) was due by 2026-01-01; ask legal"
    assert needed in text
    assert "hold h-2 (case" not in text
    assert "Holds 2 " in text
    held = viewer.get("/ebbtide/?only=held").text
    assert re.findall(r'<th scope="row">\s*<a href="[^"]*">([^<]+)</a>', held) == ["log.a"]


def test_holds_that_cannot_be_read_hide_no_topic(viewer: Any, lake: LakeSandbox) -> None:
    lake.topic("log.a")
    lake.hold("log.a")
    lake.session.sql("UPDATE lake.ebbtide.holds SET kind = 'forever'")
    text = text_of(viewer.get("/ebbtide/").text)
    assert "unreadable expected valid rows in lake.ebbtide.holds" in text
    assert "1 to 1 of 1 topic" in text
