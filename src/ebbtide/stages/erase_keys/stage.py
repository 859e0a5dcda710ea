"""erase_keys: each key gets a tombstone, so that the cleaner removes all records before it.

Where somebody writes the log, tombstones are produced to the live topic and arrive by ingest;
otherwise they are appended to the tables. A cleaner round follows if Kafka's cleaner would begin
one now. A key whose latest record is a tombstone gets no other, so a run may be repeated.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.brokers.live_producer import produce_tombstones
from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import RequestError, UnavailableError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.erasures_table import (
    LOGGED,
    REPORTED,
    KeyRow,
    append_erasures,
    hash_of,
    logged_before,
)
from ebbtide.iceberg.replica_tables import check_is_no_replica
from ebbtide.iceberg.topics import Topic, load, read_again
from ebbtide.log.requests.erase_request import (
    Erasure,
    PartitionKey,
    Way,
    check_is_compacted,
    produced_headers,
    way_of,
)
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.properties import max_snapshot_age_ms
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_log.stage import CleanPlan, execute_clean, plan_clean
from ebbtide.stages.erase_keys.direct_append import append_tombstones, finish_append
from ebbtide.stages.erase_keys.held_keys import (
    HeldKey,
    LeftOfKey,
    find_keys,
    find_left,
    keys_of_file,
)
from ebbtide.stages.expire_snapshots.left_on_disk import find_left_on_disk
from ebbtide.stages.ingest_segments.append import check_topic_id
from ebbtide.stages.mark_tombstones.quarantine import RunOf
from ebbtide.stages.mark_tombstones.stage import execute_mark, plan_mark
from ebbtide.stages.unfinished import settle

log = logging.getLogger(__name__)

WORD_EVERY_S = 30  # while it waits
POLL_S = 1.0
DIRTY_RATIO_DECIDES = "; kafka.min.cleanable.dirty.ratio or kafka.max.compaction.lag.ms decides"


@dataclass(frozen=True, slots=True)
class ErasePlan:
    """The records that the tables hold of the keys, and what an earlier try has logged."""

    topic: Topic
    erasure: Erasure
    way: Way
    connection: str | None
    keys: tuple[bytes, ...]
    held: Mapping[PartitionKey, HeldKey]
    logged: Mapping[tuple[int, str], KeyRow] = field(default_factory=dict)

    @property
    def lacking(self) -> list[PartitionKey]:
        """The keys that need a tombstone, by partition."""
        return sorted(
            place
            for place, held in self.held.items()
            if held.tombstone_offset is None and not self._is_underway(place)
        )

    @property
    def not_found(self) -> list[bytes]:
        """The keys that no partition holds a record of."""
        held_keys = {key for _, key in self.held}
        return [key for key in self.keys if key not in held_keys]

    def row_of(self, place: PartitionKey, offset: int | None, way: Way | None) -> KeyRow:
        """Return the row of a key before anything was cleaned."""
        partition, key = place
        records = self.held[place].found
        return KeyRow(hash_of(key), partition, records, way, offset)

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome()
        keys, records = Counter[int](), Counter[int]()
        for (partition, _), held in self.held.items():
            keys[partition] += 1
            records[partition] += held.found
        tombstones = Counter(partition for partition, _ in self.lacking)
        for partition in self.topic.partitions:
            outcome.partitions[partition] = self.topic.offsets_of(partition) | {
                "keys": keys[partition],
                "found": records[partition],
                "tombstones": tombstones[partition],
            }
        outcome.topic = {
            "keys": len(self.keys),
            "not_found": len(self.not_found),
            "way": self.way,
            "requested_by": self.erasure.requested_by,
            "reason": self.erasure.reason,
        }
        return outcome

    def _is_underway(self, place: PartitionKey) -> bool:
        return (place[0], hash_of(place[1])) in self.logged


def erase_keys(spark: SparkSession, name: TopicName, erasure: Erasure) -> JobOutcome:
    """Erase the keys; the outcome covers all that was removed and committed for it."""
    topic, done = prepare_erase(spark, name, erasure)
    return execute_erase(plan_erase(topic, erasure), done)


def prepare_erase(
    spark: SparkSession, name: TopicName, erasure: Erasure
) -> tuple[Topic, JobOutcome]:
    """Return the topic once nothing is in flight and what can be told a tombstone is marked.

    Beside it what that removed and committed.
    """
    topic = settle(load(spark, name), "erase_keys")
    _check(topic)
    appended = finish_append(topic)
    done = JobOutcome(snapshot_ids=appended.snapshot_ids)
    _mark(appended.topic, erasure, done)
    return read_again(topic), done


def _check(topic: Topic) -> None:
    check_is_compacted(str(topic.name), topic.config)
    check_is_no_replica(topic, "erase the keys of")


def _mark(topic: Topic, erasure: Erasure, done: JobOutcome) -> None:
    now = datetime.fromtimestamp(erasure.now_ms / 1000, UTC)
    _add(done, execute_mark(plan_mark(topic), RunOf(erasure.run_id, now)))


def _add(done: JobOutcome, more: JobOutcome) -> None:
    """Count what another step of the run removed and committed too."""
    done.rows_removed += more.rows_removed
    done.bytes_removed += more.bytes_removed
    done.snapshot_ids += more.snapshot_ids


def plan_erase(topic: Topic, erasure: Erasure) -> ErasePlan:
    """Find the keys; RequestError where no way leads to the log, or no key is named."""
    _check(topic)
    way, connection = way_of(str(topic.name), topic.config, erasure)
    keys = _keys(topic.spark, erasure)
    logged = logged_before(topic.spark, topic.name, erasure.run_id)
    return ErasePlan(topic, erasure, way, connection, keys, find_keys(topic, keys), logged)


def _keys(spark: SparkSession, erasure: Erasure) -> tuple[bytes, ...]:
    """Return the keys from the request or its file; RequestError where both or none are given."""
    if erasure.keys and erasure.keys_file:
        raise RequestError("expected keys or a file of them, found both; leave one of them empty")
    keys = erasure.keys
    if erasure.keys_file:
        keys = keys_of_file(spark, erasure.keys_file, erasure.encoding)
    if not keys:
        raise RequestError("expected keys to erase, found none; type them in or name a file")
    return keys


def execute_erase(plan: ErasePlan, done: JobOutcome) -> JobOutcome:
    """Log the tombstones, run a cleaner round if one is due, and report what is left.

    `done` holds earlier removals and commits of the run; the outcome counts them too.
    """
    topic, erasure = plan.topic, plan.erasure
    line = "%d keys, found in %d places, of which %d lack a tombstone"
    log.info(line, len(plan.keys), len(plan.held), len(plan.lacking))
    rows = _log_tombstones(plan, done)
    _await_arrival(topic, rows, erasure.timeout_ms)
    topic = read_again(topic)
    _mark(topic, erasure, done)
    cleaning = plan_clean(read_again(topic), erasure.now_ms)
    cleaned = execute_clean(cleaning)
    outcome = _report(replace(plan, topic=read_again(topic)), rows, cleaning)
    for part in (done, cleaned):
        _add(outcome, part)
    return outcome


KeyRows = dict[PartitionKey, KeyRow]


def _log_tombstones(plan: ErasePlan, done: JobOutcome) -> KeyRows:
    """Log a tombstone for each held key that needs one, and return all keys' rows.

    A row's tombstone is the one sent now, one that an earlier try sent, or one that was there
    before.
    """
    offsets = _send(plan, done)
    rows: KeyRows = {}
    for place, held in plan.held.items():
        before = plan.logged.get((place[0], hash_of(place[1])))
        if before is not None:
            rows[place] = before
        else:
            way = plan.way if place in offsets else None
            rows[place] = plan.row_of(place, offsets.get(place, held.tombstone_offset), way)
    new = [row for place, row in rows.items() if (place[0], row.key_sha256) not in plan.logged]
    topic = plan.topic
    append_erasures(topic.spark, topic.name, plan.erasure, LOGGED, new)
    return rows


def _send(plan: ErasePlan, done: JobOutcome) -> dict[PartitionKey, int]:
    """Produce or append the missing tombstones; return their offsets."""
    lacking, erasure, topic = plan.lacking, plan.erasure, plan.topic
    if not lacking:
        return {}
    if plan.connection is not None:
        live = LiveTopic.connect(plan.connection, topic.name.topic)
        where = f"connection {plan.connection!r}"
        check_topic_id(topic, live.description.topic_id, where)
        headers = produced_headers(topic.config, erasure)
        return produce_tombstones(live, lacking, headers, erasure.timeout_ms)
    by_partition: dict[int, list[bytes]] = {}
    for partition, key in lacking:
        by_partition.setdefault(partition, []).append(key)
    done.snapshot_ids += append_tombstones(topic, by_partition, erasure).snapshot_ids
    firsts = {p: topic.partitions[p].log_end_offset for p in by_partition}
    return {
        (partition, key): firsts[partition] + i
        for partition, keys in by_partition.items()
        for i, key in enumerate(sorted(keys))
    }


def _await_arrival(topic: Topic, rows: KeyRows, timeout_ms: int) -> None:
    """Wait until the tables hold the tombstones; UnavailableError where they do not in time."""
    ends: dict[int, int] = {}
    for (partition, _), row in rows.items():
        ends[partition] = max(ends.get(partition, 0), (row.tombstone_offset or 0) + 1)
    deadline = time.monotonic() + timeout_ms / 1000
    next_word = time.monotonic()
    while behind := _behind(read_again(topic), ends):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise UnavailableError(
                f"expected the tombstones of {topic.name} in its tables within {timeout_ms} ms, "
                f"found that {'; '.join(behind)}: they are in the live topic; trigger "
                "ingest_topic for it, and run this again, which produces none a second time"
            )
        if time.monotonic() >= next_word:
            next_word += WORD_EVERY_S
            log.info(
                "the tombstones are in the live topic; waits up to %.0f s more for an ingest to "
                "bring them (%s). Unless one is scheduled soon, trigger ingest_topic for this "
                "topic",
                left_s,
                "; ".join(behind),
            )
        time.sleep(min(POLL_S, left_s))


def _behind(topic: Topic, ends: Mapping[int, int]) -> list[str]:
    return [
        f"partition {p} ends at {topic.partitions[p].log_end_offset}, before {end}"
        for p, end in sorted(ends.items())
        if topic.partitions[p].log_end_offset < end
    ]


def _report(plan: ErasePlan, rows: KeyRows, cleaning: CleanPlan) -> JobOutcome:
    """Return the run's numbers; a row in `erasures` for each key."""
    topic = plan.topic
    tombstones = {place: row.tombstone_offset or 0 for place, row in rows.items()}
    left = find_left(topic, tombstones)
    disk = _Disk.of(topic)
    reported = [_reported(row, left.get(place, LeftOfKey()), disk) for place, row in rows.items()]
    missing = [KeyRow(hash_of(key)) for key in plan.not_found]
    append_erasures(topic.spark, topic.name, plan.erasure, REPORTED, [*reported, *missing])
    outcome = plan.outcome()
    for partition, numbers in outcome.partitions.items():
        mine = [row for row in reported if row.partition == partition]
        numbers |= _numbers(mine) | _delay(mine, cleaning, partition)
    outcome.topic |= _numbers(reported) | {"note": _in_words(outcome.topic, reported, disk)}
    return outcome


@dataclass(frozen=True, slots=True)
class _Disk:
    """When the table last changed, by the clock that ages its snapshots, and when the disk follows.

    From `off_from_ms` on an expire_snapshots takes all deleted rows off it; None while there is
    something else to `wait` for.
    """

    changed_ms: int
    off_from_ms: int | None
    wait: str

    @classmethod
    def of(cls, topic: Topic) -> _Disk:
        snapshot = java_table(topic.spark, topic.name.records_table).currentSnapshot()
        changed_ms = 0 if snapshot is None else int(snapshot.timestampMillis())
        left = find_left_on_disk(topic)
        if not left.has_date:
            return cls(changed_ms, None, left.wait_in_words(topic.config.rewrite_deleted_share))
        expires_ms = (left.old_files_ms or 0) + max_snapshot_age_ms(topic.properties)
        return cls(changed_ms, max(changed_ms, expires_ms), "")


def _reported(row: KeyRow, left: LeftOfKey, disk: _Disk) -> KeyRow:
    is_out = not left.records
    return row._replace(
        superseded=max(0, row.found - left.records),
        left=left.records,
        horizon=left.horizon_ms,
        out_of_table_at=disk.changed_ms if is_out else None,
        off_disk_from=disk.off_from_ms if is_out else None,
    )


def _numbers(rows: list[KeyRow]) -> dict[str, Any]:
    horizons = [row.horizon for row in rows if row.horizon is not None]
    return {
        "superseded": sum(row.superseded or 0 for row in rows),
        "left": sum(row.left or 0 for row in rows),
        "last_horizon_ms": max(horizons, default=None),
        "out_of_table_ms": _latest([row.out_of_table_at for row in rows]),
        "off_disk_from_ms": _latest([row.off_disk_from for row in rows]),
    }


def _latest(times_ms: list[int | None]) -> int | None:
    """Return the latest of all; None while one of them is not known."""
    known = [ms for ms in times_ms if ms is not None]
    return max(known) if known and len(known) == len(times_ms) else None


def _in_words(numbers: Mapping[str, Any], rows: list[KeyRow], disk: _Disk) -> str:
    """Describe the run in a sentence, without naming a key."""
    totals = _numbers(rows)
    text = (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; "
        f"{totals['superseded']} superseded records have left the table, {totals['left']} have not"
    )
    if totals["off_disk_from_ms"] is not None:
        moment = _moment(totals["off_disk_from_ms"])
        text += f"; they leave the disk with the first expire_snapshots after {moment}"
    elif totals["out_of_table_ms"] is not None:
        text += f"; they are on the disk still: {disk.wait}"
    if totals["last_horizon_ms"] is not None:
        text += f"; their tombstones may leave from {_moment(totals['last_horizon_ms'])} on"
    return f"{text}. Key by key: lake.ebbtide.erasures"


def _moment(ms: int) -> str:
    """Format the first full minute at or after a time."""
    ms = -(-ms // 60_000) * 60_000
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _delay(rows: list[KeyRow], cleaning: CleanPlan, partition: int) -> dict[str, str]:
    """Return a note on why values are left and what would change that; empty where none are."""
    left = sum(row.left or 0 for row in rows)
    if not left:
        return {}
    cleaned = cleaning.outcome().partitions[partition]
    if cleaned["picked"]:
        reason = "the segment of their tombstone is not closed yet, or not old enough"
    else:
        reason = str(cleaned["reason"])
        # The state ruled no round out, so the ratio was too low for one.
        reason += DIRTY_RATIO_DECIDES if partition in cleaning.dirty_ratios else ""
    return {"note": f"{left} records of the keys wait for a cleaner round: {reason}"}
