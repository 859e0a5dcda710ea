"""The two layouts of a topic: ebbtide's own tables, or a table that another tool writes.

Jobs read the log, find removals and remove records through a layout. Its methods run on the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from pyroaring import BitMap64
from pyspark.sql import Column
from pyspark.sql import functions as F

from ebbtide.columns.transaction_rows import LogOutline
from ebbtide.errors import (
    CommitConflictError,
    ForeignLogError,
    NotCoveredError,
    UnfinishedWorkError,
)
from ebbtide.iceberg.adopted.arrivals import Arrivals, EventClock, counted_rows, look
from ebbtide.iceberg.adopted.removal import prepare_removal
from ebbtide.iceberg.adopted.rows import AdoptedRows, OldRows, PlacedRows, find_leaving, time_of
from ebbtide.iceberg.batch_rows import look_at_headers
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.erasures import ROWS_OF_ERASED_KEYS, count_erased, shared_erased_keys
from ebbtide.iceberg.in_flight import check_no_undo, open_round, open_undo
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    read_again,
    while_adopted,
)
from ebbtide.jobs.removed_rows import (
    ExpiredRecords,
    OffsetsOfTimes,
    PlannedRows,
    Scope,
    Truncation,
    delete_expired_records,
    find_expired_records,
    find_offsets,
    truncate_below_start,
)
from ebbtide.kafka.adopted_segments import (
    bytes_of,
    cut,
    is_another_log,
    new_log,
    segments_of,
    with_arrived,
    without_rows,
)
from ebbtide.ledger.plans import Removes
from ebbtide.moments import minute
from ebbtide.numbers import MAX_LONG
from ebbtide.runner.holds import add_kept, keep_leaving, key_bytes
from ebbtide.specs.settings_changes import changed
from ebbtide.state.covered_offsets import OffsetRange, in_words
from ebbtide.state.logical_segments import Segment
from ebbtide.state.topic_state import ADOPTED_SEEN, PartitionState, to_changes


def returned_note(rows: int) -> str:
    """Return the note about rows of erased keys that arrived in an adopted table."""
    return (
        f"{rows} new rows have a key that was erased after they were written: another tool wrote "
        "them. Run erase_keys again with this key"
    )


class ObservedLog(NamedTuple):
    """A topic's log at the time of a plan."""

    topic: Topic
    segments: Mapping[int, Sequence[Segment]] = {}
    # Of an adopted table only:
    snapshot: int | None = None
    states: Mapping[int, PartitionState] = {}  # with the rows that arrived
    unplaced: int = 0  # rows without partition or offset
    returned: int = 0  # rows that arrived with a key that was erased after they were written

    @property
    def observed(self) -> Topic:
        """The topic with `states` as its partitions, if there are any."""
        topic = self.topic
        if not self.states:
            return topic
        return Topic(topic.name, changed(topic.properties, self._changes()), topic.spark)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the result, about missing offsets, unplaced rows and erased keys."""
        notes = [in_words(s.missing, p) for p, s in self.states.items() if s.missing]
        if self.unplaced:
            rows = f"{self.unplaced} rows"
            notes.append(f"{rows} have no partition or no offset: no rule judges them")
        if self.returned:
            notes.append(returned_note(self.returned))
        return tuple(notes)

    @property
    def result(self) -> dict[str, Any]:
        """The fields of a topic's result about the rows that arrived."""
        result: dict[str, Any] = {}
        if self.notes:
            result["note"] = "; ".join(self.notes)
        if self.returned:
            result[ROWS_OF_ERASED_KEYS] = self.returned
        return result

    def seen(self, current: Topic) -> PropertyChanges:
        """Return the state changes for the rows that arrived in an adopted table.

        Raise CommitConflictError if another job has changed the state since the plan.
        """
        if current.properties != self.topic.properties:
            raise CommitConflictError(
                f"expected the state of {current.name} as of the plan, found a change by another "
                "job. Run the job again"
            )
        return {**self._changes(), ADOPTED_SEEN: str(self.snapshot)}

    def write_down(self) -> Topic:
        """Record the rows that arrived in an adopted table in the state; return the topic."""
        if self.snapshot is None:
            return self.topic
        return compare_and_set(self.topic, Step.ADOPTED_ROWS_SEEN, self.seen)

    def _changes(self) -> dict[str, str | None]:
        return {
            name: value
            for partition, state in self.states.items()
            for name, value in to_changes(partition, state).items()
        }


@dataclass(frozen=True, slots=True)
class OwnTables:
    """A topic in ebbtide's own tables, whose batch headers define its segments."""

    topic: Topic

    def observe(
        self, now_ms: int, ends: Mapping[int, int] | None = None, partitions: Collection[int] = ()
    ) -> ObservedLog:
        """Return the log with the segments of these partitions."""
        topic = self.topic
        if not partitions:
            return ObservedLog(topic)
        states = {p: topic.partitions[p] for p in topic.partitions if p in partitions}
        outlines = {p: LogOutline(s.log_start_offset, s.segments) for p, s in states.items()}
        headers = look_at_headers(topic.spark, topic.name.batches_table, outlines)
        return ObservedLog(topic, {p: headers[p].segments for p in states})

    def find_old(
        self,
        log: ObservedLog,
        scopes: Mapping[int, Scope],
        partitions: Collection[int],
        *,
        keeps_offsets: bool,
    ) -> dict[int, ExpiredRecords]:
        """Return the single records past the limit, with their offsets if asked for."""
        return find_expired_records(self.topic, scopes, keeps_offsets=keeps_offsets)

    def find_offsets_of_times(self, log: ObservedLog, times: Mapping[int, int]) -> OffsetsOfTimes:
        """Return the offset of each partition's time, markers included.

        One difference from Kafka: if the log starts within a segment, Kafka may find no offset
        although a later segment has one.
        """
        topic = self.topic
        batches = topic.spark.table(topic.name.batches_table)
        is_marker = F.col("control_type").isNotNull() & (F.col("record_count") > 0)
        markers = batches.where(is_marker).select(
            "partition",
            F.col("last_offset").alias("offset"),
            F.col("max_timestamp_ms").alias("timestamp"),
        )
        records = topic.spark.table(topic.name.records_table)
        return find_offsets(records, _is_from, topic.partitions, times, markers)

    def remove(
        self,
        after: Topic,
        now_ms: int,
        partitions: Collection[int],
        scopes: Mapping[int, Scope] | None = None,
        old: Mapping[int, ExpiredRecords] | None = None,
    ) -> Truncation:
        """Remove the records below the log start offsets, then the single records `old`.

        This includes records in other partitions that a killed run planned and did not remove.
        """
        topic = self.topic
        done = truncate_below_start(topic, now_ms)
        if not old:
            return done
        check_no_undo(read_again(topic), since=topic)
        add_kept(done.kept, keep_leaving(topic, offsets_of(old)))
        deleted = delete_expired_records(topic, {p: (scopes or {})[p] for p in old})
        done.rows += Counter({p: expired.rows for p, expired in old.items()})
        done.files += len(deleted.files)
        done.snapshot_ids += deleted.snapshots
        return done


def _is_from(time_ms: int) -> Column:
    return F.col("timestamp") >= F.timestamp_millis(F.lit(time_ms))


@dataclass(frozen=True, slots=True)
class AdoptedTable:
    """A topic in a table that another tool writes; the state has the sums of its segments."""

    topic: Topic
    erasing: Sequence[bytes] = field(default=(), repr=False)  # keys whose rows the job deletes

    def observe(
        self, now_ms: int, ends: Mapping[int, int] | None = None, partitions: Collection[int] = ()
    ) -> ObservedLog | None:
        """Return the log with the rows that arrived, or None if the table is empty.

        `ends` are the log start offsets of a stored plan: a segment is closed at each. Raise
        NotCoveredError if the topic has replicas, UnfinishedWorkError if an undo or a round is in
        flight, ForeignLogError if the rows that arrived belong to another log.
        """
        topic = self.topic
        _check_free(topic)
        arrivals = arrivals_of(topic, now_ms)
        if arrivals is None:
            return None
        states = _states_after(topic, arrivals, now_ms, ends or {})
        segments = {p: segments_of(state) for p, state in states.items()}
        rows, seen = AdoptedRows.of(topic), _seen(topic)
        returned = count_returned(topic, rows, arrivals.snapshot, seen, self.erasing)
        return ObservedLog(topic, segments, arrivals.snapshot, states, arrivals.unplaced, returned)

    def find_old(
        self,
        log: ObservedLog,
        scopes: Mapping[int, Scope],
        partitions: Collection[int],
        *,
        keeps_offsets: bool,
    ) -> dict[int, ExpiredRecords]:
        """Return the single rows past the limit, and rows that arrived late below the log start.

        The removal takes late rows too, so the plan and the guards count them.
        """
        starts = {p: log.states[p].log_start_offset for p in partitions if p in log.states}
        late = {p: start for p, start in starts.items() if log.states[p].late}
        if log.snapshot is None or not (scopes or late):
            return {}
        found = find_leaving(AdoptedRows.of(self.topic), log.snapshot, late, _old_rows(scopes))
        return {p: _expired(found, p, log.states[p]) for p in found.offsets}

    def find_offsets_of_times(self, log: ObservedLog, times: Mapping[int, int]) -> OffsetsOfTimes:
        """Return the offset of each partition's time, by the timestamps of the table's rows."""
        assert log.snapshot is not None
        rows = AdoptedRows.of(self.topic)
        return find_offsets(rows.at(log.snapshot), rows.is_from, log.states, times)

    def remove(
        self,
        after: Topic,
        now_ms: int,
        partitions: Collection[int],
        scopes: Mapping[int, Scope] | None = None,
        old: Mapping[int, ExpiredRecords] | None = None,
    ) -> Truncation:
        """Remove the rows below the log start offsets of these partitions, and old single rows.

        Late rows of other partitions are removed by a later plan that has them.
        """
        planned = offsets_of(old or {})
        return remove_below_start(after, partitions, _old_rows(scopes or {}), planned)


TableLayout = OwnTables | AdoptedTable


def layout_of(topic: Topic) -> TableLayout:
    """Return the topic's layout."""
    return AdoptedTable(topic) if topic.is_adopted else OwnTables(topic)


def offsets_of(old: Mapping[int, ExpiredRecords]) -> dict[int, BitMap64]:
    """Return the offsets of single records; a plan has them if the topic has holds."""
    return {partition: expired.planned.offsets for partition, expired in old.items()}


def check_no_round(topic: Topic) -> None:
    """Raise UnfinishedWorkError if a cleaner round is in flight; only clean_log finishes it."""
    if open_round(topic) is not None:
        raise UnfinishedWorkError(
            f"expected no cleaner round in flight on {topic.name}, found one: clean_log is running "
            "or was killed. Run it again"
        )


def _check_free(topic: Topic) -> None:
    """Raise if an adopted topic has replicas, or an undo or a round in flight."""
    if topic.config.replicas:
        raise NotCoveredError(
            f"expected no replicas of the adopted topic {topic.name}, found ebbtide.replicas. "
            "Unset it"
        )
    if open_undo(topic.properties) is not None:
        raise UnfinishedWorkError(
            f"expected no undo in flight on {topic.name}, found one: undo_run is running or was "
            "killed. Run it again"
        )
    check_no_round(topic)


def arrivals_of(topic: Topic, now_ms: int, until: int | None = None) -> Arrivals | None:
    """Return the rows that arrived in an adopted table, or None if the table is empty.

    They arrived after the snapshot in the state, and up to snapshot `until` or the newest one. A
    job calls this for the snapshot from which it removes rows. Raise ForeignLogError if the rows
    belong to another log.
    """
    rows = AdoptedRows.of(topic)
    clock = EventClock(now_ms, topic.config.message_timestamp_after_max_ms)
    arrivals = look(rows, topic.partitions, _seen(topic), clock, until)
    if arrivals is not None:
        _check_same_log(topic, rows, arrivals)
    return arrivals


def _seen(topic: Topic) -> int | None:
    """Return the newest snapshot whose rows the state has, or None if it has none."""
    seen = topic.properties.get(ADOPTED_SEEN)
    return None if seen is None else int(seen)


def count_returned(
    topic: Topic, rows: AdoptedRows, snapshot: int, seen: int | None, erasing: Sequence[bytes] = ()
) -> int:
    """Count the rows that arrived after snapshot `seen` with a key that was erased after them.

    Raise ConfigurationError if the secret of erased keys is missing.
    """
    erased, key = shared_erased_keys(topic, without=erasing), key_bytes(rows)
    if erased is None or key is None:
        return 0
    counted = counted_rows(rows, open_table(rows.spark, rows.table), snapshot, seen)
    if counted is None:
        return 0
    time = time_of("timestamp_ms").alias("timestamp")
    return count_erased(erased, counted.rows.where("is_new").select(key.alias("key"), time))


def check_same_log(topic: Topic, until: int | None = None) -> None:
    """Raise ForeignLogError if rows that arrived in an adopted table belong to another log."""
    arrivals_of(topic, 0, until)  # `now` does not matter: the rows' times decide


def _check_same_log(topic: Topic, rows: AdoptedRows, arrivals: Arrivals) -> None:
    for partition, state in topic.partitions.items():
        arrived = arrivals.by_partition.get(partition)
        if arrived is not None and is_another_log(state, arrived):
            known_ms = state.max_event_time_ms
            raise ForeignLogError(
                f"expected new rows in {rows.table} to continue partition {partition} of "
                f"{topic.name} at offset {state.log_end_offset}, found rows at the log's beginning "
                f"that are newer than {minute(known_ms)} UTC, the newest known time: the live "
                "topic or the table was created again. Nothing was removed. Delete the rows of the "
                "earlier log from the table, then run abandon_table and adopt_table"
            )


def _states_after(
    topic: Topic, arrivals: Arrivals, now_ms: int, ends: Mapping[int, int]
) -> dict[int, PartitionState]:
    """Return each partition's state with the rows that arrived; roll active segments if due."""
    states = dict(topic.partitions)
    for partition, rows in arrivals.by_partition.items():
        state = states.get(partition) or new_log(0, now_ms)
        states[partition] = with_arrived(state, rows, now_ms)
    return {p: cut(states[p], topic.config, now_ms, ends.get(p, MAX_LONG)) for p in sorted(states)}


def _old_rows(scopes: Mapping[int, Scope]) -> dict[int, OldRows]:
    """Return the time limit of old rows by partition; a timestamp counts as append time too."""
    return {
        partition: OldRows(scope.start, scope.end, min(ms for ms in scope.limit if ms is not None))
        for partition, scope in scopes.items()
    }


def _expired(found: PlacedRows, partition: int, state: PartitionState) -> ExpiredRecords:
    """Return the single rows to remove from a partition, with an estimate of their bytes.

    A row counts with the mean size of its segment's rows. Below the log start offset, it counts
    with the partition's mean.
    """
    by_segment = found.by_segment(partition, state.segments)
    size_bytes = bytes_of(state, by_segment)
    below = found.rows[partition] - by_segment.total()
    rows = sum(segment.record_count for segment in state.sums)
    held_bytes = sum(segment.size_bytes for segment in state.sums)
    size_bytes += below * held_bytes // rows if rows else 0
    offsets = BitMap64(found.offsets[partition])
    return ExpiredRecords(found.rows[partition], size_bytes, PlannedRows(offsets))


def remove_below_start(
    topic: Topic,
    partitions: Collection[int],
    old: Mapping[int, OldRows] | None = None,
    planned: Removes | None = None,
) -> Truncation:
    """Remove rows below the log start offsets of partitions of an adopted topic, and old rows.

    Every run removes all rows below, so the next run finishes a killed one. Held rows are copied
    before. If a run is killed between its two commits, the segments' sums remain too large. Raise
    CommitConflictError if a run was undone since the topic was read, ForeignLogError if rows of
    another log have arrived.
    """
    spark, table = topic.spark, topic.name.records_table
    snapshot = current_snapshot(spark, table)
    # Read after the snapshot: if an undo has restored rows in it, the state has the undo.
    current = read_again(topic)
    check_no_undo(current, since=topic)
    states = {p: s for p, s in current.partitions.items() if p in partitions}
    starts = {p: s.log_start_offset for p, s in states.items() if s.log_start_offset}
    if snapshot is None or not (starts or old):
        return Truncation()
    check_same_log(current, snapshot)
    found = find_leaving(AdoptedRows.of(current), snapshot, starts, old or {}, planned or {})
    if not found.positions:
        return Truncation()
    kept = keep_leaving(current, planned or {}, snapshot=snapshot)
    properties = {ROWS: str(found.rows.total()), TOPIC: str(topic.name)}
    prepared = prepare_removal(spark, table, snapshot, found.positions, properties)
    snapshots = [commit(Step.TRUNCATE_RECORDS, while_adopted(topic, prepared))]
    late = {p: states[p].late for p in starts}
    compare_and_set(current, Step.ROWS_COUNTED, partial(counted_less, found, late=late))
    return Truncation(rows=found.rows, snapshot_ids=snapshots, kept=kept)


def counted_less(
    found: PlacedRows, current: Topic, late: Mapping[int, Sequence[OffsetRange]] | None = None
) -> PropertyChanges:
    """Return the state changes that subtract the removed rows from segments and late ranges."""
    changes: dict[str, str | None] = {}
    for partition in found.offsets.keys() | (late or {}).keys():
        state = current.partitions[partition]
        removed = found.by_segment(partition, state.segments)
        after = without_rows(state, removed)
        if late is not None and state.late == late.get(partition):
            after = replace(after, late=())
        changes |= to_changes(partition, after)
    return changes
