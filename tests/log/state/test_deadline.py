"""The deadline of erasure: what it needs, when a step is forced, and that nights meet it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ebbtide.errors import ConfigurationError
from ebbtide.settings.config import DEADLINE_MS, INTERVAL_MS, UNDO_MS, parse_config
from ebbtide.specs.settings_changes import check_changes
from ebbtide.state.deadline import Deadline, check_deadline, is_uncounted, state_deletes
from ebbtide.state.deletes import (
    UNSEEN,
    AllDeletes,
    Deletes,
    Files,
    Stage,
    after_round,
    after_tidying,
    pending,
    settled,
    with_found,
)
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import (
    MAX_SNAPSHOT_AGE,
    NEVER,
    REPLICA_OF,
    PartitionState,
    parse_states,
    to_changes,
    to_properties,
)

DAY_MS = 86_400_000
COMPACT = {"kafka.cleanup.policy": "compact"}
WITH_DEADLINE = {**COMPACT, DEADLINE_MS: str(10 * DAY_MS)}


def check(properties: dict[str, str], *, is_adopted: bool = False) -> None:
    check_deadline(parse_config(properties), properties, is_adopted=is_adopted)


def deadline_of(properties: dict[str, str]) -> Deadline:
    deadline = Deadline.of(parse_config(properties), properties)
    assert deadline is not None
    return deadline


def state(deletes: AllDeletes, **changes: int) -> PartitionState:
    values: dict[str, Any] = {"log_start_offset": 0, "log_end_offset": 100, "first_dirty_offset": 0}
    values |= {"first_unmarked_offset": 100, "cleaned_at_ms": 1, **changes}
    return PartitionState(**values, segments=(SegmentStart(0, 0),), deletes=deletes)


def test_a_topic_without_the_setting_has_no_deadline() -> None:
    assert Deadline.of(parse_config(COMPACT), COMPACT) is None
    check({})


def test_the_defaults_need_nine_days() -> None:
    """Three nightly runs, a day until the horizon, and five days until the snapshots expire."""
    assert deadline_of(WITH_DEADLINE).needed_ms == 9 * DAY_MS
    check({**COMPACT, DEADLINE_MS: str(9 * DAY_MS)})
    with pytest.raises(ConfigurationError, match=r"at least 777600000 ms \(9 days\), found"):
        check({**COMPACT, DEADLINE_MS: str(9 * DAY_MS - 1)})


@pytest.mark.parametrize(
    ("setting", "value", "days"),
    [
        ("kafka.min.compaction.lag.ms", 2, 11),
        ("kafka.delete.retention.ms", 2, 10),
        (INTERVAL_MS, 2, 12),
        (MAX_SNAPSHOT_AGE, 1, 7),  # then runs can be undone for longer
        (UNDO_MS, 6, 10),
    ],
)
def test_each_wait_counts_and_is_named(setting: str, value: int, days: int) -> None:
    settings = {**WITH_DEADLINE, setting: str(value * DAY_MS)}
    assert deadline_of(settings).needed_ms == days * DAY_MS
    check({**settings, DEADLINE_MS: str(days * DAY_MS)})
    with pytest.raises(ConfigurationError) as refused:
        check({**settings, DEADLINE_MS: str(days * DAY_MS - 1)})
    assert setting in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "days"),
    [
        ({"ebbtide.replicas": "lake.copy,kafka:main"}, 10),
        ({"ebbtide.replicas": "kafka:main"}, 9),  # no tombstone waits for a live replica
        ({REPLICA_OF: "an-id"}, 10),
        ({"ebbtide.replicas": "lake.copy", INTERVAL_MS: str(2 * DAY_MS)}, 14),
    ],
)
def test_a_table_replica_gets_a_tombstone_one_interval_later(
    settings: dict[str, str], days: int
) -> None:
    settings = {**WITH_DEADLINE, **settings}
    assert deadline_of(settings).needed_ms == days * DAY_MS
    check({**settings, DEADLINE_MS: str(days * DAY_MS)})
    with pytest.raises(ConfigurationError) as refused:
        check({**settings, DEADLINE_MS: str(days * DAY_MS - 1)})
    assert ("until replicate_log has copied it" in str(refused.value)) == (days > 9)


def test_a_deadline_needs_nightly_runs() -> None:
    """A replica may be cleaned by none: its primary names it."""
    disabled = {"kafka.cleanup.policy": "compact", "ebbtide.enabled": "false"}
    deadline = {DEADLINE_MS: str(30 * DAY_MS)}
    check_changes(disabled, {})
    check_changes({**disabled, REPLICA_OF: "an-id"}, deadline)
    enabled = {**disabled, **deadline, "ebbtide.enabled": "true"}
    for topic, changes in ((disabled, deadline), (enabled, {"ebbtide.enabled": "false"})):
        with pytest.raises(ConfigurationError, match="nightly runs would skip the topic"):
            check_changes(topic, changes)
    check_changes({**disabled, **deadline}, {DEADLINE_MS: None})
    check_changes({**disabled, **deadline}, {"kafka.segment.ms": "1"})  # another tool set both
    check_changes(enabled, {"ebbtide.enabled": "false", DEADLINE_MS: None})


def test_a_deadline_needs_a_compacted_topic_of_ebbtides_own() -> None:
    with pytest.raises(ConfigurationError, match="a tombstone removes nothing"):
        check({"kafka.cleanup.policy": "delete", DEADLINE_MS: str(99 * DAY_MS)})
    with pytest.raises(ConfigurationError, match="the owner of the table expires its snapshots"):
        check({**COMPACT, DEADLINE_MS: str(99 * DAY_MS)}, is_adopted=True)


SPANS = Deadline(100, 10, 0, 20, 30)  # needs 80
WRITTEN = 1_000


def test_the_first_round_is_forced_at_the_last_nightly_run_that_is_in_time() -> None:
    """By 1,100 it is off the disk: two rounds, a horizon, a rewrite and an expiry before."""
    group = Deletes(Stage.MARKED, WRITTEN, 5, 9)
    last = WRITTEN + 100 - 30 - 20 - 3 * 10
    assert not SPANS.round_is_forced(state((group,)), last, 100)
    assert SPANS.round_is_forced(state((group,)), last + 1, 100)
    assert not SPANS.round_is_forced(state((group,)), last + 1, 5)


def test_the_second_round_and_the_rewrite_are_forced_together() -> None:
    last = WRITTEN + 100 - 30 - 2 * 10
    waits = Deletes(Stage.HORIZON_SET, WRITTEN, 5, 9, last)
    assert not SPANS.removal_is_forced(state((waits,)), last)
    assert SPANS.removal_is_forced(state((waits,)), last + 1)
    assert not SPANS.removal_is_forced(state((waits._replace(until=last + 2),)), last + 1)
    removed = (Deletes(Stage.REMOVED, WRITTEN, 5, 9, 7),)
    assert SPANS.forced_files(state(removed), last) is None
    assert SPANS.forced_files(state(removed), last + 1) == 7
    unseen = (*removed, Deletes(Stage.REMOVED, WRITTEN, 5, 9))
    assert SPANS.forced_files(state(unseen), last + 1) == UNSEEN


def test_a_due_tombstone_in_the_dirty_part_forces_a_round_that_covers_it() -> None:
    """An undo restores such ones. No round without new data may remove them there."""
    last = WRITTEN + 100 - 30 - 2 * 10
    waits = state((Deletes(Stage.HORIZON_SET, WRITTEN, 5, 9, last),))
    assert not SPANS.round_is_forced(waits, last, 100, clean_end=5)
    assert SPANS.round_is_forced(waits, last + 1, 100, clean_end=8)
    assert not SPANS.round_is_forced(waits, last + 1, 100, clean_end=9)
    assert not SPANS.round_is_forced(waits, last + 1, 5, clean_end=0)


def test_what_a_round_does_not_cover_in_time_is_told_before_it_is_late() -> None:
    last_round, last_rewrite, ends = WRITTEN + 20, WRITTEN + 50, WRITTEN + 100
    marked = Deletes(Stage.MARKED, WRITTEN, 5, 9)
    assert SPANS.uncovered(state((marked,)), last_round, 0, 0) is None
    assert SPANS.uncovered(state((marked,)), last_round + 1, 0, 0) == marked
    assert SPANS.uncovered(state((marked,)), last_round + 1, 8, 0) == marked
    assert SPANS.uncovered(state((marked,)), last_round + 1, 9, 0) is None
    assert SPANS.uncovered(state((marked,)), ends, 0, 0) == marked
    assert SPANS.uncovered(state((marked,)), ends + 1, 0, 0) is None  # it is overdue
    waits = Deletes(Stage.HORIZON_SET, WRITTEN - 1, 2, 4, last_rewrite)
    assert SPANS.uncovered(state((waits,)), last_rewrite - 1, 0, 0) is None
    assert SPANS.uncovered(state((waits,)), last_rewrite, 100, 3) == waits
    assert SPANS.uncovered(state((waits,)), last_rewrite, 100, 4) is None
    assert SPANS.uncovered(state((marked, waits)), last_rewrite, 0, 0) == waits


def test_expire_snapshots_looks_at_what_is_new_forced_or_late() -> None:
    def looks(group: Deletes, now_ms: int = WRITTEN, **changes: int) -> bool:
        return SPANS.has_tidying([state((group,), **changes)], now_ms)

    assert looks(Deletes(Stage.REMOVED, WRITTEN, 5, 9))
    assert not looks(Deletes(Stage.REMOVED, WRITTEN, 5, 9, 7))
    assert looks(Deletes(Stage.REMOVED, WRITTEN, 5, 9, 7), WRITTEN + 51)
    assert not looks(Deletes(Stage.REWRITTEN, WRITTEN, 5, 9, 7), WRITTEN + 100)
    assert looks(Deletes(Stage.REWRITTEN, WRITTEN, 5, 9, 7), WRITTEN + 101)
    assert not looks(Deletes(Stage.MARKED, WRITTEN, 5, 9))
    assert looks(Deletes(Stage.MARKED, WRITTEN, 5, 9), log_start_offset=9)


def test_a_repaired_clock_settles_no_group() -> None:
    """The next horizon is then not known."""
    waits = (Deletes(Stage.HORIZON_SET, WRITTEN, 5, 9, 50),)
    assert state_deletes(state(waits, cleaned_at_ms=NEVER)) == waits
    assert state_deletes(state(waits)) == (Deletes(Stage.REMOVED, WRITTEN, 5, 9),)


def test_a_state_says_up_to_where_tombstones_are_counted() -> None:
    counted = Deletes(Stage.COUNTED, UNSEEN, 0, 100)
    assert is_uncounted(state(()))
    assert not is_uncounted(state((counted,)))
    assert is_uncounted(state((counted,), first_unmarked_offset=50))


def test_groups_are_properties_and_a_state_without_them_is_read_too() -> None:
    deletes = (Deletes(Stage.COUNTED, UNSEEN, 0, 100), Deletes(Stage.REMOVED, 7, 5, 9, 11))
    with_deletes = state(deletes)
    properties = to_properties(3, with_deletes)
    assert parse_states(properties)[3] == with_deletes
    without = state(())
    assert "ebbtide.state.3.deletes" not in to_properties(3, without)
    assert to_changes(3, without)["ebbtide.state.3.deletes"] is None
    assert parse_states(to_properties(3, without))[3] == without


@dataclass
class Tombstone:
    """One tombstone with its row in the tables."""

    written_ms: int
    seq: int = 0  # of its file; 0: not ingested yet
    horizon_ms: int | None = None
    removed_ms: int | None = None
    rewritten: bool = False


@dataclass
class Snapshot:
    """A snapshot, and the tombstones that its files have."""

    seq: int
    at_ms: int
    rows: frozenset[int]
    replaced_ms: int | None = None


@dataclass
class Disk:
    """A partition without a segment that is active, whose files and snapshots are those of nights.

    A night decides at `now` and has ended at `end`.
    """

    deadline: Deadline
    age_ms: int
    undo_ms: int
    tombstones: list[Tombstone]
    copied_ms: int = 0  # from the append until replicate_log has copied a tombstone
    is_replica: bool = False
    deletes: AllDeletes = ()
    snapshots: list[Snapshot] = field(default_factory=list)
    next_horizon_ms: int | None = None
    gone_ms: dict[int, int] = field(default_factory=dict)
    forced: int = 0

    @property
    def on_disk(self) -> set[int]:
        return {row for snapshot in self.snapshots for row in snapshot.rows}

    def night(self, now_ms: int, end_ms: int, *, is_picked: bool, rewrites: bool) -> None:
        self._ingest(now_ms)
        self._clean(now_ms, is_picked=is_picked)
        self._commit(end_ms)
        self._expire(now_ms, end_ms, rewrites=rewrites)
        for row in [n for n, t in enumerate(self.tombstones) if t.seq]:
            if row not in self.on_disk:
                self.gone_ms.setdefault(row, end_ms)

    def _state(self, deletes: AllDeletes) -> PartitionState:
        waits = NEVER if self.next_horizon_ms is None else self.next_horizon_ms
        return state(deletes, next_clean_ms=waits, log_end_offset=1_000)

    def _ingest(self, now_ms: int) -> None:
        arrived = now_ms - self.copied_ms if self.is_replica else now_ms
        new = [n for n, t in enumerate(self.tombstones) if not t.seq and t.written_ms <= arrived]
        for row in new:
            self.tombstones[row].seq = self._commit(now_ms, new)
        found = [Deletes(Stage.MARKED, self.tombstones[n].written_ms, n, n + 1) for n in new]
        start = min(new, default=0)
        self.deletes = with_found(self.deletes, start, max(new, default=-1) + 1, found)

    def _commit(self, at_ms: int, new: list[int] | None = None) -> int:
        rows = frozenset(n for n, t in enumerate(self.tombstones) if t.seq and not t.rewritten)
        seq = self.snapshots[-1].seq + 1 if self.snapshots else 1
        if self.snapshots:
            self.snapshots[-1].replaced_ms = at_ms
        self.snapshots.append(Snapshot(seq, at_ms, rows | frozenset(new or ())))
        return seq

    def _clean(self, now_ms: int, *, is_picked: bool) -> None:
        here = self._state(self.deletes)
        is_forced = self.deadline.round_is_forced(here, now_ms, 1_000)
        self.forced += is_forced and not is_picked
        live = [t for t in self.tombstones if t.seq and t.removed_ms is None]
        is_round = is_picked or is_forced
        due = [t for t in live if self._is_due(t, now_ms)]
        if not (is_round or due):
            return
        horizon_ms = now_ms + self.deadline.delete_retention_ms
        for tombstone in live:
            if tombstone in due:
                tombstone.removed_ms = now_ms
            elif tombstone.horizon_ms is None and is_round:
                tombstone.horizon_ms = horizon_ms
        left = [t.horizon_ms for t in live if t.removed_ms is None and t.horizon_ms is not None]
        self.next_horizon_ms = min(left, default=None)
        end = 1_000 if is_round else 0
        deletes = after_round(self.deletes, end, horizon_ms)
        self.deletes = settled(deletes, 0, self.next_horizon_ms)

    def _is_due(self, tombstone: Tombstone, now_ms: int) -> bool:
        is_copied = self.is_replica or tombstone.written_ms + self.copied_ms <= now_ms
        return is_copied and tombstone.horizon_ms is not None and tombstone.horizon_ms <= now_ms

    def _expire(self, now_ms: int, end_ms: int, *, rewrites: bool) -> None:
        seen_at = self.snapshots[-1].seq
        forced = self.deadline.forced_files(self._state(self.deletes), now_ms)
        for tombstone in self.tombstones:
            is_forced = forced is not None and (forced == UNSEEN or tombstone.seq <= forced)
            if tombstone.removed_ms is not None and (rewrites or is_forced):
                tombstone.rewritten = True
        self._commit(end_ms)
        self.snapshots = [
            s
            for s in self.snapshots
            if s.replaced_ms is None
            or s.at_ms >= end_ms - self.age_ms
            or s.replaced_ms >= end_ms - self.undo_ms
        ]
        with_rows = [t.seq for t in self.tombstones if t.removed_ms is not None and not t.rewritten]
        files = Files(min(with_rows, default=None), self.snapshots[-1].seq, self.snapshots[0].seq)
        self.deletes = after_tidying(self.deletes, seen_at, files)


@given(data=st.data())
def test_nights_meet_the_deadline_and_keep_the_window(data: st.DataObject) -> None:
    """Whatever Kafka's cleaner picks and whichever files are rewritten for their share."""
    draw = data.draw
    interval = draw(st.integers(2, 20), "interval")
    age, undo = draw(st.integers(0, 40), "age"), draw(st.integers(0, 40), "undo")
    window = draw(st.integers(0, 40), "window")
    needed = window + max(age, undo) + 3 * interval
    slack = draw(st.integers(0, 60), "slack")
    copied = draw(st.integers(0, interval), "copied")
    needed += interval if copied else 0
    spans = (interval, 0, window, max(age, undo), interval if copied else 0)
    deadline = Deadline(needed + slack, *spans)
    assert deadline.needed_ms == needed
    written = sorted(draw(st.lists(st.integers(1, 200), min_size=1, max_size=12), "written"))
    is_replica = draw(st.booleans(), "is_replica")
    disk = Disk(deadline, age, undo, [Tombstone(ms) for ms in written], copied, is_replica)
    now = 0
    while len(disk.gone_ms) < len(written):
        took = draw(st.integers(0, interval // 2), "took")
        # The next run ends at most `interval` after this one begins.
        wait = draw(st.integers(1, interval - took), "wait")
        now += wait
        is_picked, rewrites = draw(st.booleans(), "picked"), draw(st.booleans(), "rewrites")
        disk.night(now, now + took, is_picked=is_picked, rewrites=rewrites)
        for row in disk.on_disk:
            groups = [group.written_ms for group in pending(disk.deletes)]
            live = disk.tombstones[row]
            assert min(groups, default=now) <= live.written_ms or live.seq == 0
        assert now < 2_000
    for row, tombstone in enumerate(disk.tombstones):
        assert disk.gone_ms[row] - tombstone.written_ms <= deadline.deadline_ms
        assert tombstone.horizon_ms is not None
        assert tombstone.removed_ms is not None
        assert tombstone.removed_ms >= tombstone.horizon_ms
        assert tombstone.horizon_ms - tombstone.written_ms >= window
    event(f"forced: {min(disk.forced, 3)}")


def test_a_deadline_with_slack_forces_few_rounds() -> None:
    """One delete a day; rounds that Kafka never picks are as rare as the slack allows."""
    deadline = Deadline(30 * DAY_MS, DAY_MS, 0, DAY_MS, 5 * DAY_MS)
    disk = Disk(deadline, 5 * DAY_MS, 0, [Tombstone(n * DAY_MS + 1) for n in range(60)])
    for night in range(1, 60):
        disk.night(night * DAY_MS, night * DAY_MS, is_picked=False, rewrites=False)
    assert disk.forced == 2


@pytest.mark.parametrize("window", [20, 21, 29])
@pytest.mark.parametrize("age", [30, 31, 39])
@pytest.mark.parametrize("slack", range(0, 24, 3))
def test_the_slowest_nights_meet_the_deadline(slack: int, age: int, window: int) -> None:
    """Kafka's cleaner never picks the log, and no share of deleted rows is reached."""
    deadline = Deadline(30 + window + age + slack, 10, 0, window, age)
    for written in range(1, 12):
        disk, now = Disk(deadline, age, 0, [Tombstone(written)]), 0
        while not disk.gone_ms:
            now += 10
            disk.night(now, now, is_picked=False, rewrites=False)
        assert disk.gone_ms[0] - written <= deadline.deadline_ms
