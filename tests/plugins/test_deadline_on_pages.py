"""An overdue erasure stands first on the overview, and on its topic's page with the cause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.moments import to_ms
from ebbtide.settings.config import DEADLINE_MS
from ebbtide.state.deletes import UNSEEN, Deletes, Stage
from tests.lake_sandbox import LakeSandbox, partition_result, state_of
from tests.orchestration.pages.test_history import summary
from tests.plugins.html import text_of

DAYS = 12
NOW = datetime.now(UTC).replace(microsecond=0)
SETTINGS = {"kafka.cleanup.policy": "compact", DEADLINE_MS: str(DAYS * 86_400_000)}
COUNTED = Deletes(Stage.COUNTED, UNSEEN, 0, 100)
LATE = NOW - timedelta(hours=2)  # when the delete had to be off the disk


def state(ends: datetime) -> Any:
    """A partition with a tombstone that no round has covered, to be off the disk by `ends`."""
    marked = Deletes(Stage.MARKED, to_ms(ends - timedelta(days=DAYS)), 5, 9)
    return state_of(deletes=(COUNTED, marked))


@pytest.fixture
def late(lake: LakeSandbox) -> LakeSandbox:
    """Three topics: the stage of one failed, one has an overdue delete, and one has time."""
    lake.topic("log.a")
    lake.run("log.a", "clean_log", error=OSError("no disk"), now=NOW)
    lake.topic("log.late", {0: state(LATE), 3: state(NOW + timedelta(days=1))}, SETTINGS)
    numbers = {0: partition_result(reason="paused by h-1")}
    known = summary(5, erase_by_ms=to_ms(LATE))
    lake.run("log.late", "clean_log", now=NOW, partitions=numbers, summary=known)
    lake.topic("log.well", {0: state(NOW + timedelta(hours=2))}, SETTINGS)
    known = summary(5, erase_by_ms=to_ms(NOW + timedelta(hours=2)))
    lake.run("log.well", "clean_log", now=NOW, summary=known)
    return lake


def test_an_overdue_erasure_stands_first(viewer: Any, late: LakeSandbox) -> None:
    html = viewer.get("/ebbtide/").text
    attention = html[html.index("Needs attention") :]
    first, second = attention.index('badge bad">erasure overdue'), attention.index("no disk")
    assert first < second
    sentence = f"log.late a delete had to be off the disk by {LATE:%Y-%m-%d %H:%M} UTC"
    assert f"erasure overdue {sentence}" in text_of(attention)
    assert html.count("erasure overdue<") == 1
    filtered = text_of(viewer.get("/ebbtide/?only=late").text)
    assert "Erasures overdue 1" in filtered


def test_the_page_of_its_topic_begins_with_the_cause(viewer: Any, late: LakeSandbox) -> None:
    html = viewer.get("/ebbtide/topics/log.late").text
    sentence = (
        f"erasure overdue Deletes in partition 0 had to be off the disk by "
        f"{LATE:%Y-%m-%d %H:%M} UTC ({DEADLINE_MS}): clean_log: paused by h-1."
    )
    assert sentence in text_of(html)
    assert html.index("erasure overdue") < html.index("<dt>Records</dt>")
    assert "erasure overdue" not in viewer.get("/ebbtide/topics/log.well").text


def test_a_table_replica_without_the_deadline_is_named(viewer: Any, late: LakeSandbox) -> None:
    replicas = {**SETTINGS, "ebbtide.replicas": "lake.copy,lake.gone,kafka:main"}
    late.topic("log.orders", {0: state_of()}, replicas)
    late.topic("copy.orders", {0: state_of()}, {"kafka.cleanup.policy": "compact"})
    text = text_of(viewer.get("/ebbtide/topics/log.orders").text)
    wanted = SETTINGS[DEADLINE_MS]
    assert (
        f"erasure deadline The replica lake.copy may miss {DEADLINE_MS}: its {DEADLINE_MS} is not "
        f"set, expected {wanted}: run replicate_log."
    ) in text
    assert "erasure deadline The replica lake.gone cannot be read" in text
    late.topic("copy.late", {0: state(LATE)}, SETTINGS)
    late.topic("log.more", {0: state_of()}, {**SETTINGS, "ebbtide.replicas": "lake.copy"})
    late.topic("copy.more", {2: state(LATE)}, SETTINGS)
    text = text_of(viewer.get("/ebbtide/topics/log.more").text)
    assert "erasure overdue The replica lake.copy: deletes in partition 2 had to be off" in text
