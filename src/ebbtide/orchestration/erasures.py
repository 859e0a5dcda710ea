"""Deletes that were not off the disk by their topic's deadline, and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ebbtide.errors import EbbtideError
from ebbtide.kafka.low_watermarks import deadline_gap
from ebbtide.lake.reader import LakeTopic, read_replica
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.moments import minute
from ebbtide.orchestration.outcome import cause_of
from ebbtide.settings.config import DEADLINE_MS
from ebbtide.state.deadline import erase_by_ms
from ebbtide.state.deletes import Deletes, Stage, pending
from ebbtide.state.topic_state import PartitionState, max_snapshot_age_ms
from ebbtide.text import in_ranges


class OverdueErasures(NamedTuple):
    """A topic's partitions with overdue deletes."""

    topic: LakeTopic
    partitions: Sequence[int]  # the one with the oldest delete first
    since_ms: int  # when the oldest delete had to be off the disk

    def in_words(self, runs: Sequence[Run], now_ms: int) -> str:
        """Name the partitions, and the reason for the oldest delete. `runs` are the topic's."""
        return f"{self}: {self._why(runs, now_ms)}"

    def __str__(self) -> str:
        """Name the partitions and their oldest deadline."""
        what = "partition" if len(self.partitions) == 1 else "partitions"
        return (
            f"deletes in {what} {in_ranges(self.partitions)} had to be off the disk by "
            f"{minute(self.since_ms)} UTC ({DEADLINE_MS})"
        )

    def _why(self, runs: Sequence[Run], now_ms: int) -> str:
        partition = self.partitions[0]
        state = self.topic.partitions[partition]
        group = min(pending(state.deletes), key=lambda group: group.written_ms)
        if group.stage in (Stage.REMOVED, Stage.REWRITTEN):
            return _left_on_disk(self.topic, _newest(runs, "expire_snapshots"))
        return _left_in_table(state, group, partition, _newest(runs, "clean_log"), now_ms)


def overdue_erasures(topic: LakeTopic, now_ms: int) -> OverdueErasures | None:
    """Return the topic's overdue deletes at `now_ms`, or None if there are none."""
    ends = {p: erase_by_ms(topic.config, [state]) for p, state in topic.partitions.items()}
    late = {p: end_ms for p, end_ms in ends.items() if end_ms is not None and end_ms < now_ms}
    if not late:
        return None
    return OverdueErasures(topic, sorted(late, key=lambda p: late[p]), min(late.values()))


class LateReplica(NamedTuple):
    """A table replica that may miss the deadline of its primary, or has overdue deletes."""

    text: str  # names the replica and the reason
    is_overdue: bool = False


def late_replicas(topic: LakeTopic, now_ms: int) -> Iterator[LateReplica]:
    """Yield the table replicas that may miss the topic's deadline of erasure, or have missed it."""
    for replica in topic.config.table_replicas if topic.deadline is not None else ():
        copy = read_replica(topic, replica)
        if copy is None:
            yield LateReplica(f"the replica {replica} cannot be read: its deletes may be overdue")
            continue
        try:
            overdue = overdue_erasures(copy, now_ms)
            gap = deadline_gap(topic.properties, copy.properties)
        except EbbtideError as error:
            yield LateReplica(f"the replica {replica} may miss {DEADLINE_MS}: {error}")
            continue
        if overdue is not None:
            yield LateReplica(f"the replica {replica}: {overdue}", is_overdue=True)
        elif gap is not None:
            yield LateReplica(f"the replica {replica} may miss {DEADLINE_MS}: {gap}")


def _newest(runs: Iterable[Run], job: str) -> Run | None:
    of_job = [run for run in runs if run.job == job]
    return of_job[-1] if of_job else None


def _left_in_table(
    state: PartitionState, group: Deletes, partition: int, run: Run | None, now_ms: int
) -> str:
    """Return why a tombstone is still in the table."""
    if group.stage == Stage.MARKED and group.first_offset >= state.active_segment:
        return f"a tombstone at or above offset {group.first_offset} is in the active segment"
    if group.stage == Stage.HORIZON_SET and group.until > now_ms:
        return f"a tombstone is retained until its delete horizon at {minute(group.until)} UTC"
    if run is None:
        return "no clean_log has run on the topic"
    if not run.succeeded:
        return f"clean_log: {cause_of(run)}"
    numbers = run.partitions.get(partition, {})
    told = [str(numbers[name]) for name in ("reason", "note") if numbers.get(name)]
    return f"clean_log: {'; '.join(told) or 'see its report'}"


def _left_on_disk(topic: LakeTopic, run: Run | None) -> str:
    """Return why deleted rows are still on the disk."""
    if run is None:
        return "no expire_snapshots has run on the topic"
    if not run.succeeded:
        return f"expire_snapshots: {cause_of(run)}"
    left = LeftOnDisk.of_result(run.topic_result)
    if left is not None and not left.has_date:
        return left.wait_in_words(topic.config.rewrite_deleted_ratio)
    due_ms = None if left is None else left.expires_ms(max_snapshot_age_ms(topic.properties))
    if due_ms is None:
        return "the next expire_snapshots frees their files"
    return f"the first expire_snapshots after {minute(due_ms)} UTC frees their files"
