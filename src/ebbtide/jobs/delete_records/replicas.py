"""Apply a DeleteRecords request to a topic's replicas: the tables first, the live topic last.

Kafka: DelayedDeleteRecords, Partition.lowWatermarkIfLeader. The request waits for replicas that are
behind. If a replica has not reached a partition's offset after the timeout, the partition's answer
is REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ebbtide.brokers.live_topic import ANSWER_MS, LiveTopic
from ebbtide.errors import CommitConflictError, ForeignChangeError, UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.in_flight import check_no_undo
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    find_replica,
    read_again,
    replica_names,
)
from ebbtide.jobs.removed_rows import truncate_below_start
from ebbtide.jobs.unfinished import settle
from ebbtide.kafka.low_watermarks import ErrorCode, PartitionAnswer, refused
from ebbtide.runner.holds import holds_at
from ebbtide.runner.job import Touched
from ebbtide.runner.undo_points import note_before
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import PartitionState, to_properties

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class WantedStarts:
    """The offsets that a request wants from one partition's replicas."""

    offset: int  # as requested
    log_start_offset: int  # of the primary; no replica advances further


@dataclass(slots=True)
class TableReplicaProgress:
    """The progress of a request at one table replica."""

    primary: Topic
    name: TopicName
    now_ms: int
    states: Mapping[int, PartitionState] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)  # partitions without records below their start
    problem: str = ""
    records_removed: int = 0

    def advance(self, wanted: Mapping[int, WantedStarts]) -> None:
        """Advance the log start offsets that can advance, and remove the records below them.

        A conflict, a foreign change or an unreachable catalog sets `problem`. The next call tries
        again.
        """
        try:
            replica = find_replica(self.primary.spark, self.name)
            self.states = {} if replica is None else replica.partitions
            starts = self._starts(wanted)
            if replica is not None and starts:
                self._move(replica, starts)
            self.problem = ""
        except (UnavailableError, CommitConflictError, ForeignChangeError) as error:
            self.problem = str(error)

    def lacks(self, partition: int, wanted: WantedStarts) -> str:
        """Return why the partition has not reached its offset, or an empty text if it has."""
        if partition in self.done:
            return ""
        state = self.states.get(partition)
        end = 0 if state is None else state.log_end_offset
        return self.problem or f"{self.name} ends at offset {end}, below {wanted.offset}"

    def _starts(self, wanted: Mapping[int, WantedStarts]) -> dict[int, int]:
        """Return the new log start offsets of partitions that now reach their requested offset."""
        return {
            partition: min(wanted_starts.log_start_offset, state.log_end_offset)
            for partition, wanted_starts in wanted.items()
            if partition not in self.done
            and (state := self.states.get(partition)) is not None
            and state.log_end_offset >= wanted_starts.offset
        }

    def _move(self, replica: Topic, starts: Mapping[int, int]) -> None:
        replica = settle(count_own(replica), "delete_records")
        states = replica.partitions
        note_before(
            replica,
            Touched([p for p, start in starts.items() if start > states[p].log_start_offset]),
        )
        # An undo of the primary that begins later writes its id to this replica's state, or finds
        # the advanced log start.
        check_no_undo(read_again(self.primary), since=self.primary)
        replica = compare_and_set(
            replica,
            Step.LOG_START_OFFSET,
            partial(raise_starts, starts=starts, since=replica),
        )
        holds = holds_at(self.primary, self.now_ms)
        truncation = truncate_below_start(replica, self.now_ms, holds)
        self.records_removed += truncation.rows.total()
        count_own(read_again(replica))
        self.states = replica.partitions
        self.done |= starts.keys()


def raise_starts(current: Topic, starts: Mapping[int, int], since: Topic) -> PropertyChanges:
    """Return the changes that advance log start offsets to `starts`; none is moved down.

    Raise CommitConflictError if a run was undone since the topic was read for the request.
    """
    check_no_undo(current, since)
    changes: dict[str, str | None] = {}
    for partition, offset in starts.items():
        state = current.partitions[partition]
        if offset > state.log_start_offset:
            changes |= to_properties(partition, state.moved(log_start_offset=offset))
    return changes


class Replicas:
    """The replicas of a topic, found before any log start offset advances."""

    def __init__(self, primary: Topic, now_ms: int, timeout_ms: int) -> None:
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._primary = primary
        self._tables = [
            TableReplicaProgress(primary, name, now_ms) for name in replica_names(primary)
        ]
        self._live = {c: self._connect(c) for c in primary.config.live_replicas}

    @property
    def records_removed(self) -> dict[str, dict[str, int]]:
        """The number of records removed from each table replica, as the run's row has it."""
        return {str(t.name): {"records_removed": t.records_removed} for t in self._tables}

    def delete_records(self, wanted: Mapping[int, WantedStarts]) -> dict[int, PartitionAnswer]:
        """Apply the request to all replicas. Return each partition's answer by the timeout."""
        self._advance_tables(wanted)
        starts = {p: wanted_starts.log_start_offset for p, wanted_starts in wanted.items()}
        missing: dict[int, list[str]] = {
            p: self._lacking(p, wanted_starts) for p, wanted_starts in wanted.items()
        }
        refusals: dict[int, PartitionAnswer] = {}
        lows = {
            p: [start, *(t.states[p].log_start_offset for t in self._tables if p in t.states)]
            for p, start in starts.items()
        }
        for connection in self._live:
            for partition, reply in self._delete_live(connection, wanted).items():
                if reply.error is ErrorCode.REQUEST_TIMED_OUT:
                    missing[partition].append(reply.note)
                elif reply.error is not ErrorCode.NONE:
                    refusals[partition] = reply._replace(log_start_offset=starts[partition])
                else:
                    lows[partition].append(reply.low_watermark)
        return {p: refusals.get(p) or _answer(starts[p], lows[p], missing[p]) for p in wanted}

    def _advance_tables(self, wanted: Mapping[int, WantedStarts]) -> None:
        """Advance each table replica. Try those that are behind again until the timeout."""
        waiting = self._tables
        while waiting:
            for table in waiting:
                table.advance(wanted)
            waiting = [
                t
                for t in waiting
                if any(t.lacks(p, wanted_starts) for p, wanted_starts in wanted.items())
            ]
            if waiting and not self._wait():
                return

    def _wait(self) -> bool:
        """Wait up to POLL_S seconds. Return False once the timeout has passed."""
        left_s = self._deadline - time.monotonic()
        time.sleep(max(0.0, min(POLL_S, left_s)))
        return left_s > 0

    def _lacking(self, partition: int, wanted: WantedStarts) -> list[str]:
        reasons = (table.lacks(partition, wanted) for table in self._tables)
        return [reason for reason in reasons if reason]

    def _delete_live(
        self, connection: str, wanted: Mapping[int, WantedStarts]
    ) -> dict[int, PartitionAnswer]:
        """Apply the request to a live topic, up to the offset that every table holds.

        Return the brokers' answers.
        """
        live = self._live[connection] or self._connect(connection)
        if live is None:
            note = f"kafka:{connection} cannot be reached"
            return dict.fromkeys(wanted, refused(ErrorCode.REQUEST_TIMED_OUT, note=note))
        offsets = {
            p: min(wanted_starts.offset, self._held(p)) for p, wanted_starts in wanted.items()
        }
        answers = live.delete_records(offsets, self._left_ms())
        return {p: _unless_short(reply, wanted[p], connection) for p, reply in answers.items()}

    def _held(self, partition: int) -> int:
        """Return the offset up to which the primary and every table replica hold the partition."""
        ends = [self._primary.partitions[partition].log_end_offset]
        for table in self._tables:
            state = table.states.get(partition)
            ends.append(0 if state is None else state.log_end_offset)
        return min(ends)

    def _connect(self, connection: str) -> LiveTopic | None:
        """Connect to the live topic, or return None if no broker answers.

        All other errors are raised, at the first call before any record is removed.
        """
        answer_ms = min(ANSWER_MS, self._left_ms())
        try:
            return LiveTopic.connect(connection, self._primary.name.topic, answer_ms)
        except UnavailableError:
            return None

    def _left_ms(self) -> int:
        """Return the remaining ms, at least 1000, so that a reachable broker can answer."""
        return max(1000, round((self._deadline - time.monotonic()) * 1000))


def _unless_short(reply: PartitionAnswer, wanted: WantedStarts, connection: str) -> PartitionAnswer:
    """Return the answer, or REQUEST_TIMED_OUT if the brokers were asked for a lower offset."""
    if reply.error is ErrorCode.NONE and reply.low_watermark < wanted.offset:
        note = (
            f"kafka:{connection} starts at offset {reply.low_watermark}, below {wanted.offset}, "
            "since a table replica lacks records"
        )
        return refused(ErrorCode.REQUEST_TIMED_OUT, note=note)
    if reply.error is ErrorCode.REQUEST_TIMED_OUT:
        return reply._replace(note=reply.note or f"kafka:{connection} did not answer in time")
    return reply


def _answer(start: int, lows: Iterable[int], missing: list[str]) -> PartitionAnswer:
    """Return the least log start offset, or REQUEST_TIMED_OUT if a replica is behind."""
    if missing:
        return refused(ErrorCode.REQUEST_TIMED_OUT, start, "; ".join(missing))
    return PartitionAnswer(start, min(lows))
