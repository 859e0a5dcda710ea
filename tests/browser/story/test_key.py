"""The page says why a key is still there, in the words of the log as the tables hold it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.lake.reader import open_lake
from ebbtide.records.attributes import TRANSACTIONAL
from tests.browser.running_airflow import Person
from tests.lake_sandbox import LakeSandbox

pytestmark = pytest.mark.browser

FLIGHTS = "sample.flights"


def test_a_key_is_explained_as_the_tables_hold_it(
    running: tuple[str, LakeSandbox],
    person: Callable[[str], Person],
    picture: Callable[[str], Callable[[str], Path]],
) -> None:
    key, offsets = a_key_with_newer_records(running[1])
    vera = person("vera")
    page = vera.open(f"topics/{FLIGHTS}")
    page.get_by_role("navigation", name="Forms for this topic").get_by_text("Find a key").click()
    page.get_by_label("Key", exact=True).fill(key)
    vera.press("Find")
    text = page.inner_text("main")
    assert f"{len(offsets)} records in {FLIGHTS}" in text
    found = [
        int(offset.replace(",", ""))
        for offset in re.findall(r"Partition \d+, offset ([\d,]+)", text)
    ]
    assert found == offsets
    newest = f"{offsets[-1]:,}"
    assert f"Offset {newest} has a newer record of the key." in text
    assert (
        f"No cleaner round has covered offset {newest} yet. The next round starts at offset 0 and "
        "removes this record. A round starts if more than 10 % of the log is dirty" in text
    )
    assert "This is the newest record of the key. The next nightly run first decides" in text
    vera.in_both_themes(picture("key"))
    assert key not in "".join(vera.addresses)


def a_key_with_newer_records(lake: LakeSandbox) -> tuple[str, list[int]]:
    """A key of closed segments, written outside of transactions, and its offsets."""
    fields = ("partition", "offset", "key", "batch")
    header = ("partition", "base_offset", "attributes")
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        rows = opened.records(FLIGHTS).scan(selected_fields=fields).to_arrow().to_pylist()
        batches = opened.batches(FLIGHTS).scan(selected_fields=header).to_arrow().to_pylist()
        states = opened.topic(FLIGHTS).partitions
    in_transactions = {
        (batch["partition"], batch["base_offset"])
        for batch in batches
        if batch["attributes"] & TRANSACTIONAL
    }
    offsets: dict[tuple[int, bytes], list[int]] = {}
    left_out: set[tuple[int, bytes]] = set()
    for row in rows:
        place = (row["partition"], row["key"])
        offsets.setdefault(place, []).append(row["offset"])
        is_active = row["offset"] >= states[row["partition"]].active_segment
        if is_active or (row["partition"], row["batch"]) in in_transactions:
            left_out.add(place)
    place = next(
        candidate
        for candidate in offsets
        if len(offsets[candidate]) > 1 and candidate not in left_out
    )
    return place[1].decode(), sorted(offsets[place])
