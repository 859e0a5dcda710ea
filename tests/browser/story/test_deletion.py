"""Records are deleted from the pages alone: form, plan, approval by somebody else, result."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ebbtide.lake.own_tables import read_holds
from ebbtide.lake.reader import open_lake
from tests.browser.running_airflow import Person
from tests.lake_sandbox import LakeSandbox

pytestmark = pytest.mark.browser

AUDIT = "sample.audit"
UP_TO = 1500
HELD = (100, 200)


def live_rows(lake: LakeSandbox) -> int:
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        return opened.live_rows(AUDIT)[0]


def log_start(lake: LakeSandbox) -> int:
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        return opened.topic(AUDIT).partitions[0].log_start_offset


def kept_records(lake: LakeSandbox) -> int:
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        return sum(hold.kept_records for hold in read_holds(opened, datetime.now(UTC), AUDIT))


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_a_hold_is_made_by_form(
    running: tuple[str, LakeSandbox],
    person: Callable[[str], Person],
    picture: Callable[[str], Callable[[str], Path]],
) -> None:
    ann, bob = person("ann"), person("bob")
    page = ann.open(f"topics/{AUDIT}")
    page.get_by_role("link", name="Hold records", exact=True).click()
    page.get_by_label("Partition").fill("0")
    page.get_by_label("From offset").fill(str(HELD[0]))
    page.get_by_label("Before offset").fill(str(HELD[1]))
    page.get_by_label("Case").fill("C-7")
    page.get_by_label("Reason").fill("lawsuit")
    page.get_by_label("Owner").fill("legal")
    ann.in_both_themes(picture("form-of-a-hold"))
    ann.press("Send")
    run = page.url.rpartition("/ebbtide/")[2]
    ann.wait_for("so a second user must approve it")
    bob.open(run)
    bob.press("Approve")
    bob.wait_for("success triggered by ann")
    text = bob.open(f"topics/{AUDIT}").inner_text("main")
    assert "partition 0, from offset 100, before offset 200\tC-7" in text
    assert kept_records(running[1]) == 0


def test_records_go_once_somebody_else_has_approved_the_plan(
    running: tuple[str, LakeSandbox],
    person: Callable[[str], Person],
    picture: Callable[[str], Callable[[str], Path]],
) -> None:
    lake = running[1]
    before = live_rows(lake)
    assert log_start(lake) < UP_TO
    vera, ann, bob = person("vera"), person("ann"), person("bob")

    # Ann fills the form in, coming from the topic's page.
    page = ann.open(f"topics/{AUDIT}")
    page.get_by_role("link", name="Delete records", exact=True).click()
    page.get_by_label("Before offset in partition 0").fill(str(UP_TO))
    ann.in_both_themes(picture("form"))
    ann.press("Plan, then ask for approval")
    assert "/ebbtide/runs/" in page.url
    run = page.url.rpartition("/ebbtide/")[2]

    # Who may only look sees the same form, and may not send it.
    seen = vera.open(f"forms/delete_records?topic={AUDIT}")
    assert "vera may read this page, but not start runs of delete_records." in seen.inner_text(
        "main"
    )
    assert seen.get_by_role("button", name="Plan only").is_disabled()

    # The run's page follows the run by itself, until it asks.
    ann.wait_for("delete_records: remove")
    assert "ann requested this plan, so a second user must approve it" in page.inner_text("main")
    assert page.get_by_role("button", name="Approve").is_disabled()
    planned = re.search(r"remove ([\d,]+) records from sample.audit", page.inner_text("main"))
    assert planned
    assert "(case C-7) covers 100 of these records" in page.inner_text("main")
    assert live_rows(lake) == before
    assert "may read this page, but not answer" in vera.open(run).inner_text("main")

    # Bob finds it on the first page.
    asked = bob.open("")
    asked.get_by_role("link", name="open the run").first.click()
    asked.get_by_label("Note").fill("ticket 17")
    bob.in_both_themes(picture("question"))
    bob.press("Approve")
    bob.wait_for("Approved by bob (ticket 17).")
    bob.wait_for("success triggered by ann")

    # The numbers of the page are those of the tables.
    shown = bob.open(f"{run}&topic={AUDIT}")
    bob.in_both_themes(picture("run"))
    text = shown.inner_text("main")
    assert "approved by bob at" in text
    removed = re.search(r"records removed\s*([\d,]+)", text)
    assert removed
    assert number(removed[1]) == number(planned[1]) == before - live_rows(lake) > 0
    assert log_start(lake) == UP_TO
    assert kept_records(lake) == HELD[1] - HELD[0]
    row = shown.get_by_role("row").filter(has_text=f"{UP_TO:,}").first.inner_text()
    assert f"{UP_TO:,}" in row
    topic = bob.open(f"topics/{AUDIT}").get_by_role("img", name=f"log start offset {UP_TO:,}")
    assert topic.count() == 1
    bob.in_both_themes(picture("topic"))
    shown = bob.open(f"{run.partition('?')[0]}/log?dag=delete_records&task=delete_records")
    assert "Airflow has no log" not in shown.inner_text("main")
    assert shown.locator("pre.log").count() == 1


def test_a_plan_alone_changes_nothing_and_can_be_asked_for(
    running: tuple[str, LakeSandbox], person: Callable[[str], Person]
) -> None:
    lake = running[1]
    before, start = live_rows(lake), log_start(lake)
    ann, bob = person("ann"), person("bob")
    page = ann.open(f"forms/delete_records?topic={AUDIT}&partition=0&offset={start + 10}")
    ann.press("Plan only")
    ann.wait_for("success triggered by ann")
    page.reload()
    assert live_rows(lake) == before
    assert "open" in page.locator("#plans + p").inner_text()
    ann.press("Ask for approval")
    assert "dag=approve_plan" in page.url
    ann.wait_for("so a second user must approve it")
    bob.open(page.url.rpartition("/ebbtide/")[2])
    bob.press("Reject")
    bob.wait_for("Rejected by bob.")
    assert (live_rows(lake), log_start(lake)) == (before, start)


def test_an_undo_brings_the_records_back_and_then_nothing_is_removed(
    running: tuple[str, LakeSandbox],
    person: Callable[[str], Person],
    picture: Callable[[str], Callable[[str], Path]],
) -> None:
    lake = running[1]
    left, start = live_rows(lake), log_start(lake)
    assert start == UP_TO
    ann, adam = person("ann"), person("adam")
    page = ann.open(f"topics/{AUDIT}")
    runs = page.get_by_role("row").filter(has_text="delete_records").filter(has_text="1,500")
    runs.get_by_role("link").first.click()
    page.get_by_role("link", name="Undo this run").click()
    assert page.get_by_label("Topic").input_value() == AUDIT
    ann.press("Plan, then ask for approval")
    run = page.url.rpartition("/ebbtide/")[2]
    ann.wait_for("so a second user must approve it")
    adam.open(run)
    adam.in_both_themes(picture("undo"))
    adam.press("Approve")
    adam.wait_for("success triggered by ann")
    assert live_rows(lake) == left + UP_TO
    assert log_start(lake) == 0

    # What came back is under a hold: the form refuses the same deletion, and names the hold.
    page = ann.open(f"topics/{AUDIT}")
    ann.in_both_themes(picture("topic-under-a-hold"))
    (hold,) = re.findall(r"^undo-[0-9a-f]{8}", page.inner_text("main"), re.MULTILINE)
    ann.open(f"forms/delete_records?topic={AUDIT}&partition=0&offset={UP_TO}")
    ann.press("Plan only")
    assert f"{hold} blocks removals until" in page.inner_text("main")
    assert "/ebbtide/forms/delete_records" in page.url
    assert live_rows(lake) == left + UP_TO
