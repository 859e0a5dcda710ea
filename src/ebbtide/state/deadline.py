"""The deadline of erasure: how long a nightly run may still leave each step to the next one.

A tombstone is removed in four steps, each by a nightly run: a cleaner round sets its delete
horizon, a second round removes it, expire_snapshots rewrites its files, and later expires the
snapshots that need the old files. A step is forced only if the next nightly run would be too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ebbtide.errors import ConfigurationError
from ebbtide.moments import earlier, later
from ebbtide.numbers import MAX_OFFSET
from ebbtide.settings.config import DEADLINE_MS, INTERVAL_MS, TopicConfig
from ebbtide.state.deletes import UNSEEN, AllDeletes, Deletes, Stage, counted_end, pending, settled
from ebbtide.state.topic_state import (
    MAX_SNAPSHOT_AGE,
    NEVER,
    REPLICA_OF,
    PartitionState,
    max_snapshot_age_ms,
)
from ebbtide.text import span


class Deadline(NamedTuple):
    """The spans, in ms, from a tombstone's append until it is off the disk."""

    deadline_ms: int
    interval_ms: int  # longest time from the start of a nightly run to the end of the next one
    compaction_lag_ms: int
    delete_retention_ms: int
    snapshots_ms: int  # how long a snapshot is needed after it is replaced
    replication_ms: int = 0  # until the tombstone is on replicas; 0: there are none

    @classmethod
    def of(cls, config: TopicConfig, properties: Mapping[str, str]) -> Deadline | None:
        """Return the deadline of a topic, or None if it is not set."""
        if config.erase_deadline_ms is None:
            return None
        return cls(
            config.erase_deadline_ms,
            config.nightly_interval_ms,
            config.min_compaction_lag_ms,
            config.delete_retention_ms,
            max(max_snapshot_age_ms(properties), config.undo_retention_ms),
            config.nightly_interval_ms if _is_replicated(config, properties) else 0,
        )

    @property
    def needed_ms(self) -> int:
        """The shortest deadline that nightly runs can meet: one run for each of three waits."""
        waits = later(later(self.compaction_lag_ms, self.delete_retention_ms), self.snapshots_ms)
        return later(later(waits, self.replication_ms), 3 * self.interval_ms)

    def ends_ms(self, group: Deletes) -> int:
        """Return the time at which the group must be off the disk."""
        return later(group.written_ms, self.deadline_ms)

    def round_is_forced(
        self, state: PartitionState, now_ms: int, end: int, clean_end: int = MAX_OFFSET
    ) -> bool:
        """Return whether a round below offset `end` must cover dirty records in this nightly run.

        The round must set horizons, or remove due tombstones at or above `clean_end`: a round
        without new data does not cover these. An undo restores such tombstones.
        """
        return any(
            group.first_offset < end
            and (group.stage == Stage.MARKED or group.end_offset > clean_end)
            for group in self._to_cover(state, now_ms)
        )

    def removal_is_forced(self, state: PartitionState, now_ms: int) -> bool:
        """Return whether a round must remove tombstones that are due in this nightly run."""
        return any(group.stage == Stage.HORIZON_SET for group in self._to_cover(state, now_ms))

    def uncovered(
        self, state: PartitionState, now_ms: int, end: int, removed_end: int
    ) -> Deletes | None:
        """Return the oldest group for which the next nightly run may be too late, or None.

        This run's round sets horizons below offset `end`, and removes due tombstones below
        `removed_end`. Groups that are overdue are omitted.
        """
        groups = (
            group
            for group in self._to_cover(state, now_ms)
            if group.end_offset > (end if group.stage == Stage.MARKED else removed_end)
            and now_ms <= self.ends_ms(group)
        )
        return min(groups, key=lambda group: group.written_ms, default=None)

    def _to_cover(self, state: PartitionState, now_ms: int) -> Iterator[Deletes]:
        """Yield the groups that a round must cover in this nightly run."""
        for group in state.deletes:
            is_due = group.stage == Stage.HORIZON_SET and group.until <= now_ms
            last_ms = self._last_rewrite_ms(group) if is_due else self._last_round_ms(group)
            if (is_due or group.stage == Stage.MARKED) and now_ms > last_ms:
                yield group

    def forced_files(self, state: PartitionState, now_ms: int) -> int | None:
        """Return the commit up to which the files with deleted rows must be rewritten, or None.

        It is a sequence number; -1 means the newest commit.
        """
        forced = [
            group.until
            for group in state.deletes
            if group.stage == Stage.REMOVED and now_ms > self._last_rewrite_ms(group)
        ]
        return UNSEEN if UNSEEN in forced else max(forced, default=None)

    def has_tidying(self, states: Iterable[PartitionState], now_ms: int) -> bool:
        """Return whether expire_snapshots has work for the deadline, or must read files again."""
        return any(
            state_deletes(state) != state.deletes
            or any(self._is_to_tidy(group, now_ms) for group in state.deletes)
            for state in states
        )

    def _is_to_tidy(self, group: Deletes, now_ms: int) -> bool:
        if group.stage == Stage.REMOVED:
            return not group.is_seen or now_ms > self._last_rewrite_ms(group)
        return group.stage == Stage.REWRITTEN and now_ms > self.ends_ms(group)

    def _last_rewrite_ms(self, group: Deletes) -> int:
        """Return the last time at which a rewrite can still be left to the next nightly run."""
        return earlier(earlier(self.ends_ms(group), self.snapshots_ms), 2 * self.interval_ms)

    def _last_round_ms(self, group: Deletes) -> int:
        """Return the last time at which the first round can be left to the next nightly run."""
        due_ms = earlier(self._last_rewrite_ms(group), self.delete_retention_ms)
        return earlier(due_ms, self.interval_ms)


def erase_by_ms(config: TopicConfig, states: Iterable[PartitionState]) -> int | None:
    """Return the time at which the oldest delete must be off the disk, or None without deletes."""
    if config.erase_deadline_ms is None:
        return None
    oldest = (group.written_ms for state in states for group in pending(state.deletes))
    oldest_ms = min(oldest, default=None)
    return None if oldest_ms is None else later(oldest_ms, config.erase_deadline_ms)


def state_deletes(state: PartitionState) -> AllDeletes:
    """Return the state's groups. Groups without a tombstone in the table count as removed."""
    if state.cleaned_at_ms == NEVER:  # the next horizon is not known
        return state.deletes
    return settled(state.deletes, state.log_start_offset, state.next_horizon_ms)


def is_uncounted(state: PartitionState) -> bool:
    """Return whether `deletes` may lack tombstones below the first unmarked offset."""
    return counted_end(state.deletes) != state.first_unmarked_offset


def _is_replicated(config: TopicConfig, properties: Mapping[str, str]) -> bool:
    return bool(config.table_replicas) or REPLICA_OF in properties


def check_deadline(config: TopicConfig, properties: Mapping[str, str], *, is_adopted: bool) -> None:
    """Raise ConfigurationError if nightly runs cannot meet the topic's deadline."""
    deadline = Deadline.of(config, properties)
    if deadline is None:
        return
    given = f"{DEADLINE_MS}={deadline.deadline_ms}"
    if is_adopted:
        raise ConfigurationError(
            f"expected no {DEADLINE_MS} on an adopted table, found {given}: the owner of the table "
            f"expires its snapshots, so ebbtide cannot meet a deadline. Unset {DEADLINE_MS}"
        )
    if not config.is_compacted:
        raise ConfigurationError(
            f"expected kafka.cleanup.policy with compact for {given}, found a topic in which a "
            f"tombstone removes nothing. Set the policy, or unset {DEADLINE_MS}"
        )
    if deadline.needed_ms > deadline.deadline_ms:
        raise ConfigurationError(
            f"expected {DEADLINE_MS} of at least {deadline.needed_ms} ms "
            f"({span(deadline.needed_ms)}), found {deadline.deadline_ms} "
            f"({span(deadline.deadline_ms)}). A delete takes {', '.join(_spans(deadline))}. "
            "Raise the deadline, or lower one of these settings"
        )


def _spans(deadline: Deadline) -> Iterator[str]:
    """Yield each span of the sum, with its setting."""
    if deadline.compaction_lag_ms:
        yield f"{span(deadline.compaction_lag_ms)} (kafka.min.compaction.lag.ms)"
    if deadline.replication_ms:
        yield f"{span(deadline.replication_ms)} until replicate_log has copied it ({INTERVAL_MS})"
    yield f"{span(deadline.interval_ms)} until a cleaner round sets its horizon ({INTERVAL_MS})"
    yield f"{span(deadline.delete_retention_ms)} (kafka.delete.retention.ms)"
    yield f"{span(deadline.interval_ms)} until a second round removes it ({INTERVAL_MS})"
    yield (
        f"{span(deadline.snapshots_ms)} while snapshots have it (the larger of {MAX_SNAPSHOT_AGE} "
        "and ebbtide.undo.retention.ms)"
    )
    yield f"{span(deadline.interval_ms)} until expire_snapshots frees its files ({INTERVAL_MS})"
