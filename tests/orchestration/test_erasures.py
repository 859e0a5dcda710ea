"""Overdue deletes: which partitions have them, the reason, the metrics and the needs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ebbtide.lake.reader import LakeTopic
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.moments import to_datetime
from ebbtide.orchestration import erasures
from ebbtide.orchestration.erasures import LateReplica, late_replicas, overdue_erasures
from ebbtide.orchestration.monitoring import ERASURES_OVERDUE, TO_ERASURE_DEADLINE, TopicRun
from ebbtide.orchestration.night import nothing_to_do
from ebbtide.orchestration.pages.overview import TopicRow, needs
from ebbtide.settings.config import DEADLINE_MS
from ebbtide.state.deletes import UNSEEN, AllDeletes, Deletes, Stage
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE, to_properties
from tests import rows
from tests.lake_sandbox import partition_result, state_of

DAY_MS = 86_400_000
WRITTEN_MS = 1_767_225_600_000  # 2026-01-01
END_MS = WRITTEN_MS + 12 * DAY_MS
SETTINGS = {"kafka.cleanup.policy": "compact", DEADLINE_MS: str(12 * DAY_MS)}
COUNTED = Deletes(Stage.COUNTED, UNSEEN, 0, 100)
LATE = END_MS + 1


def topic(*deletes: AllDeletes, settings: dict[str, str] | None = None) -> LakeTopic:
    """A topic with a partition for each of these."""
    properties = dict(SETTINGS if settings is None else settings)
    for partition, of_partition in enumerate(deletes):
        state = state_of(deletes=(COUNTED, *of_partition), cleaned_at_ms=WRITTEN_MS)
        properties |= to_properties(partition, state)
    return LakeTopic("log.a", properties)


def group(stage: Stage, written_ms: int = WRITTEN_MS, until: int = 7) -> Deletes:
    return Deletes(stage, written_ms, 5, 9, until)


def words(deletes: Deletes, *runs: Any) -> str:
    overdue = overdue_erasures(topic((deletes,)), LATE)
    assert overdue is not None
    start = "deletes in partition 0 had to be off the disk by 2026-01-13 00:00 UTC"
    text = overdue.in_words(runs, LATE)
    assert text.startswith(f"{start} ({DEADLINE_MS}): ")
    return text.partition("): ")[2]


def of_job(job: str, error: str | None = None, **result: Any) -> Any:
    return rows.run(job, datetime(2026, 1, 13, tzinfo=UTC), error, result=result)


def cleaned(**numbers: Any) -> Any:
    return of_job("clean_log", partitions={"0": partition_result(**numbers)}, topic={})


def test_deletes_are_overdue_after_their_deadline_alone() -> None:
    one = topic((group(Stage.REMOVED),), ())
    assert overdue_erasures(one, END_MS) is None
    found = overdue_erasures(one, LATE)
    assert found is not None
    assert (list(found.partitions), found.since_ms) == ([0], END_MS)
    assert overdue_erasures(topic((), ()), LATE) is None


def test_the_partition_with_the_oldest_delete_comes_first() -> None:
    older = group(Stage.MARKED, WRITTEN_MS - 1)
    found = overdue_erasures(topic((group(Stage.REMOVED),), (older,)), LATE)
    assert found is not None
    assert list(found.partitions) == [1, 0]
    assert "in partitions 0, 1 had" in found.in_words((), LATE)


def test_the_reason_is_that_of_the_step_that_is_due() -> None:
    active = Deletes(Stage.MARKED, WRITTEN_MS, 100, 101)
    assert words(active) == "a tombstone at or above offset 100 is in the active segment"
    marked = group(Stage.MARKED)
    assert words(marked) == "no clean_log has run on the topic"
    assert words(marked, cleaned(reason="held by h-1")) == "clean_log: held by h-1"
    paused = cleaned(reason="paused by h-1", note="the next run may be too late")
    assert words(marked, paused) == "clean_log: paused by h-1; the next run may be too late"
    assert words(marked, of_job("clean_log", "no disk")) == "clean_log: SomeError: no disk"
    horizon = group(Stage.HORIZON_SET, until=LATE + 60_000)
    assert "retained until its delete horizon at 2026-01-13 00:01 UTC" in words(horizon)
    assert words(group(Stage.HORIZON_SET, until=LATE)) == "no clean_log has run on the topic"


def test_the_reason_of_a_removed_row_is_that_of_its_files() -> None:
    removed = group(Stage.REWRITTEN)
    assert words(removed) == "no expire_snapshots has run on the topic"
    failed = of_job("expire_snapshots", "no disk")
    assert words(removed, failed) == "expire_snapshots: SomeError: no disk"
    left = LeftOnDisk(old_files_ms=WRITTEN_MS, old_files_refs={"keep": "tag"})
    tagged = of_job("expire_snapshots", topic=left.result())
    assert words(removed, tagged) == "the tag keep of the records table needs old files"
    dated = of_job("expire_snapshots", topic=LeftOnDisk(old_files_ms=WRITTEN_MS).result())
    due = "the first expire_snapshots after 2026-01-06 00:00 UTC frees their files"
    assert words(removed, dated) == due
    gone = of_job("expire_snapshots", topic=LeftOnDisk().result())
    assert words(removed, gone) == "the next expire_snapshots frees their files"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (SETTINGS, None),
        ({}, f"its {DEADLINE_MS} is not set, expected {12 * DAY_MS}: run replicate_log"),
        (
            {**SETTINGS, DEADLINE_MS: str(13 * DAY_MS)},
            f"its {DEADLINE_MS} is {13 * DAY_MS}, expected {12 * DAY_MS}: run replicate_log",
        ),
        ({**SETTINGS, "ebbtide.enabled": "false"}, "nightly runs skip it: set ebbtide.enabled"),
        ({**SETTINGS, MAX_SNAPSHOT_AGE: str(9 * DAY_MS)}, "expected ebbtide.erase.deadline.ms of"),
    ],
)
def test_a_replica_that_may_miss_the_deadline_is_named(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], words: str | None
) -> None:
    copy = topic((group(Stage.REMOVED),), settings=settings)
    monkeypatch.setattr(erasures, "read_replica", lambda *_: copy)
    primary = topic((), settings={**SETTINGS, "ebbtide.replicas": "lake.copy,kafka:main"})
    found = list(late_replicas(primary, END_MS))
    assert len(found) == (words is not None)
    for late in found:
        assert late.text.startswith(f"the replica lake.copy may miss {DEADLINE_MS}: {words}")
        assert not late.is_overdue
    without = {"kafka.cleanup.policy": "compact", "ebbtide.replicas": "lake.copy"}
    assert list(late_replicas(topic((), settings=without), END_MS)) == []


def test_a_replica_is_late_or_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    primary = topic((), settings={**SETTINGS, "ebbtide.replicas": "lake.copy"})
    monkeypatch.setattr(erasures, "read_replica", lambda *_: None)
    unread = "the replica lake.copy cannot be read: its deletes may be overdue"
    assert list(late_replicas(primary, LATE)) == [LateReplica(unread)]
    copy = topic((), (group(Stage.REMOVED),))
    monkeypatch.setattr(erasures, "read_replica", lambda *_: copy)
    overdue = f"had to be off the disk by 2026-01-13 00:00 UTC ({DEADLINE_MS})"
    text = f"the replica lake.copy: deletes in partition 1 {overdue}"
    assert list(late_replicas(primary, LATE)) == [LateReplica(text, is_overdue=True)]


def measured(of_topic: LakeTopic, now_ms: int) -> dict[str, float]:
    run = TopicRun(of_topic, [], [], now_ms)
    return {measurement.name: measurement.value for measurement in run.measured_at_night()}


def test_a_night_measures_the_time_to_the_deadline() -> None:
    both = topic((group(Stage.REMOVED),), (group(Stage.MARKED, WRITTEN_MS + 5_000),))
    early = measured(both, END_MS - 60_000)
    assert (early[TO_ERASURE_DEADLINE], early[ERASURES_OVERDUE]) == (60, 0)
    late = measured(both, END_MS + 2_000)
    assert (late[TO_ERASURE_DEADLINE], late[ERASURES_OVERDUE]) == (-2, 1)
    assert measured(both, END_MS + 6_000)[ERASURES_OVERDUE] == 2
    assert measured(topic(()), LATE)[TO_ERASURE_DEADLINE] == 12 * DAY_MS // 1000
    without = measured(topic((), settings={"kafka.cleanup.policy": "compact"}), LATE)
    assert not {TO_ERASURE_DEADLINE, ERASURES_OVERDUE} & without.keys()


def test_an_overdue_delete_is_the_first_need() -> None:
    late = TopicRow(name="log.z", erase_by_ms=END_MS)
    unread = TopicRow(name="log.a", problem="cannot be read")
    first, second = needs([unread, late], LATE)
    assert (first.kind, first.topic) == ("erasure overdue", "log.z")
    assert first.text == "a delete had to be off the disk by 2026-01-13 00:00 UTC"
    assert second.topic == "log.a"
    assert len(needs([unread, late], END_MS)) == 1


def test_the_clock_of_a_rehearsal_decides() -> None:
    night = (rows.attempt("clean_log", to_datetime(LATE), now=to_datetime(END_MS - 9 * DAY_MS)),)
    late = TopicRow(name="log.z", erase_by_ms=END_MS, night=night)
    assert needs([late], LATE) == []


@pytest.mark.parametrize(
    ("job", "deletes", "has_work"),
    [
        ("clean_log", group(Stage.MARKED), True),
        ("clean_log", group(Stage.MARKED, LATE), False),
        ("clean_log", Deletes(Stage.MARKED, WRITTEN_MS, 100, 101), False),
        ("clean_log", group(Stage.REMOVED), False),
        ("mark_tombstones", Deletes(Stage.COUNTED, UNSEEN, 0, 100), False),
    ],
)
def test_spark_is_started_if_a_step_is_forced(
    job: str, deletes: Deletes, *, has_work: bool
) -> None:
    assert (nothing_to_do(job, topic((deletes,)), LATE) is None) == has_work


def test_spark_is_started_to_count_the_tombstones_once() -> None:
    uncounted = LakeTopic("log.a", {**SETTINGS, **to_properties(0, state_of())})
    assert nothing_to_do("mark_tombstones", uncounted, LATE) is None
    off = LakeTopic("log.a", {"kafka.cleanup.policy": "compact", **to_properties(0, state_of())})
    assert nothing_to_do("mark_tombstones", off, LATE) is not None


def test_spark_is_started_to_free_what_is_forced() -> None:
    class Lake:
        def snapshots(self, _: str) -> Any:
            raise AssertionError("not looked at")

    lake: Any = Lake()
    assert nothing_to_do("expire_snapshots", topic((group(Stage.REMOVED),)), LATE, lake) is None
