"""erase_keys: each key gets a tombstone, so that the cleaner removes all records before it.

Where somebody writes the log, tombstones are produced to the live topic and arrive by ingest;
otherwise they are appended to the tables. A cleaner round follows if Kafka's cleaner would begin
one now. A key whose latest record is a tombstone gets no other, so a run may be repeated.
"""

from __future__ import annotations

import logging
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.brokers.live_producer import produce_tombstones
from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import PlanError, RequestError, UnavailableError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.own_tables import append_erasures, hash_of, logged_before
from ebbtide.iceberg.topics import Topic, compare_and_set, load, read_again
from ebbtide.jobs.clean_log.choice import DIRTY_RATIO
from ebbtide.jobs.clean_log.stage import CleanPlan, execute_clean, plan_clean
from ebbtide.jobs.erase_keys.direct_append import append_tombstones, finish_append
from ebbtide.jobs.erase_keys.plan import (
    ErasePlan,
    HeldKey,
    LeftOfKey,
    check_may_erase,
    check_not_held,
    erase_rows,
    find_left,
    find_rows,
    hashed,
    keys_of,
    plan_erase,
    typed_keys,
)
from ebbtide.jobs.expire_snapshots import find_left_on_disk
from ebbtide.jobs.ingest_segments.append import check_topic_id
from ebbtide.jobs.mark_tombstones import execute_mark, plan_mark
from ebbtide.jobs.quarantine import RunOf
from ebbtide.jobs.removed_rows import PlannedRows
from ebbtide.jobs.table_layout import AdoptedTable, counted_less
from ebbtide.jobs.unfinished import settle, settle_adopted
from ebbtide.ledger.own_tables import LOGGED, REPORTED, KeyRow
from ebbtide.ledger.plans import Bounds, new_offsets
from ebbtide.moments import minute, to_datetime
from ebbtide.runner.holds import check_has_key_bytes
from ebbtide.runner.job import Job, Parameters, PlanRequest, asked_of_each
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import (
    Encoding,
    Erasure,
    PartitionKey,
    Way,
    digest_of_keys,
    produced_headers,
)
from ebbtide.state.topic_state import max_snapshot_age_ms

DIRTY_RATIO_DECIDES = "; kafka.min.cleanable.dirty.ratio or kafka.max.compaction.lag.ms decides"

KeyRows = dict[PartitionKey, KeyRow]


def report(plan: ErasePlan, rows: KeyRows, cleaning: CleanPlan) -> JobOutcome:
    """Return the run's numbers; a row in `erasures` for each key."""
    topic = plan.topic
    tombstones = {place: row.tombstone_offset or 0 for place, row in rows.items()}
    left = find_left(topic, tombstones)
    disk = _Disk.of(topic)
    reported = [_reported(row, left.get(place, LeftOfKey()), disk) for place, row in rows.items()]
    outcome = plan.outcome()
    report_rows(plan, outcome, reported)
    for partition, numbers in outcome.partitions.items():
        numbers |= _delay(numbers["remaining"], cleaning, partition)
    outcome.topic["note"] = _in_words(outcome.topic, disk)
    return outcome


def report_rows(plan: ErasePlan, outcome: JobOutcome, reported: list[KeyRow]) -> None:
    """Write a row in `erasures` for each key, and add their numbers to the outcome."""
    topic = plan.topic
    missing = [KeyRow(hash_of(key)) for key in plan.not_found]
    append_erasures(topic.spark, topic.name, plan.erasure, REPORTED, [*reported, *missing])
    for partition, numbers in outcome.partitions.items():
        numbers |= _numbers([row for row in reported if row.partition == partition])
    outcome.topic |= _numbers(reported)


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
        snapshot = open_table(topic.spark, topic.name.records_table).current
        changed_ms = 0 if snapshot is None else snapshot.at_ms
        left = find_left_on_disk(topic)
        if not left.has_date:
            return cls(changed_ms, None, left.wait_in_words(topic.config.rewrite_deleted_ratio))
        expires_ms = left.expires_ms(max_snapshot_age_ms(topic.properties)) or 0
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
        "remaining": sum(row.left or 0 for row in rows),
        "last_horizon_ms": max(horizons, default=None),
        "out_of_table_ms": _latest([row.out_of_table_at for row in rows]),
        "off_disk_from_ms": _latest([row.off_disk_from for row in rows]),
    }


def _latest(times_ms: list[int | None]) -> int | None:
    """Return the latest of all; None while one of them is not known."""
    known = [ms for ms in times_ms if ms is not None]
    return max(known) if known and len(known) == len(times_ms) else None


def _in_words(numbers: Mapping[str, Any], disk: _Disk) -> str:
    """Describe the run in a sentence, without naming a key."""
    text = (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; "
        f"{numbers['superseded']} superseded records have left the table, {numbers['remaining']} "
        "have not"
    )
    if numbers["off_disk_from_ms"] is not None:
        moment = _moment(numbers["off_disk_from_ms"])
        text += f"; they leave the disk with the first expire_snapshots after {moment}"
    elif numbers["out_of_table_ms"] is not None:
        text += f"; they are on the disk still: {disk.wait}"
    if numbers["last_horizon_ms"] is not None:
        text += f"; their tombstones may leave from {_moment(numbers['last_horizon_ms'])} on"
    return f"{text}. Key by key: lake.ebbtide.erasures"


def _moment(ms: int) -> str:
    """Format the first full minute at or after a time."""
    ms = -(-ms // 60_000) * 60_000
    return f"{minute(ms)} UTC"


def _delay(left: int, cleaning: CleanPlan, partition: int) -> dict[str, str]:
    """Return a note on why values are left and what would change that; empty where none are."""
    if not left:
        return {}
    cleaned = cleaning.outcome().partitions[partition]
    if cleaned["picked"]:
        reason = "the segment of their tombstone is not closed yet, or not old enough"
    else:
        reason = str(cleaned["reason"])
        reason += DIRTY_RATIO_DECIDES if reason.startswith(DIRTY_RATIO) else ""
    return {"note": f"{left} records of the keys wait for a cleaner round: {reason}"}


# erase_keys on an adopted table: the rows of keys leave, and the files that hold them with them.
#
# Nobody but the writer gives offsets, so no tombstone is logged. Order: what arrived and the
# keys' rows are noted, then one commit writes the files anew without them, then the report. A
# killed run is run again, and says what it had found before.


# What an erasure from a table of others cannot promise.
LEFT = (
    "no data file of the newest snapshot holds their rows any more; older snapshots, branches and "
    "tags do until the table's owner expires them, and delete files of other writers may name a key"
)


def plan_erase_adopted(topic: Topic, erasure: Erasure, bounds: Bounds | None = None) -> ErasePlan:
    """Find the keys' rows, those of a kept plan's bounds if any; RequestError for other ways.

    HoldError where a hold is on one of the keys or on rows of them.
    """
    if erasure.appends or erasure.connection:
        raise RequestError(
            f"expected neither `append` nor a connection for {topic.name}, whose table others "
            "write, found one: rows are deleted there; produce a tombstone to the live topic "
            "yourself, if that is to forget the key too"
        )
    check_has_key_bytes(topic)
    keys, rows = keys_of(topic.spark, erasure), AdoptedRows.of(topic)
    check_not_held(topic, keys, "rows")
    log = AdoptedTable(topic).observe(erasure.now_ms)
    if log is None or log.snapshot is None:
        return ErasePlan(topic, erasure, Way.DELETED, keys, {})
    ends = {p: state.log_end_offset for p, state in log.states.items()}
    if bounds is not None:
        ends = {p: min(ends.get(p, 0), numbers["log_end_offset"]) for p, numbers in bounds.items()}
    found = find_rows(rows, log, keys, ends)
    return ErasePlan(
        log.observed,
        erasure,
        Way.DELETED,
        keys,
        {place: HeldKey(count, None) for place, count in found.counts.items()},
        logged_before(topic.spark, topic.name, erasure.run_id),
        {p: PlannedRows(BitMap64(offsets)) for p, offsets in found.live.offsets.items()},
        adopted=found,
    )


def execute_erase_adopted(plan: ErasePlan) -> JobOutcome:
    """Note the keys, write their files anew without them, and report."""
    found, outcome = plan.adopted, plan.outcome()
    if found is None:
        return outcome
    topic = found.log.write_down()
    new = [row for place, row in plan.rows.items() if place not in plan.logged]
    append_erasures(topic.spark, topic.name, plan.erasure, LOGGED, new)
    if found.live.positions or found.files_of_dead:
        outcome.snapshot_ids.append(erase_rows(topic, found))
        outcome.rows_removed = found.live.rows.total()
        compare_and_set(topic, Step.ROWS_COUNTED, partial(counted_less, found.live))
    # Its rows are out of the table; when they are off the disk, only its owner knows.
    made = open_table(topic.spark, topic.name.records_table).current
    assert made is not None
    reported = [
        row._replace(superseded=row.found, left=0, out_of_table_at=made.at_ms)
        for row in plan.rows.values()
    ]
    report_rows(plan, outcome, reported)
    numbers = outcome.topic
    outcome.topic["note"] = (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; "
        f"{numbers['superseded']} rows have left the table: {LEFT}. Key by key: "
        "lake.ebbtide.erasures"
    )
    return outcome


log = logging.getLogger(__name__)

WORD_EVERY_S = 30  # while it waits
POLL_S = 1.0


def erase_keys(spark: SparkSession, name: TopicName, erasure: Erasure) -> JobOutcome:
    """Erase the keys; the outcome covers all that was removed and committed for it."""
    return execute_erase(prepare_and_plan(spark, name, erasure))


def prepare_and_plan(
    spark: SparkSession, name: TopicName, erasure: Erasure, *, keeps_offsets: bool = False
) -> ErasePlan:
    """Plan the erasure once nothing is in flight and what can be told a tombstone is marked.

    The plan tells what that removed and committed.
    """
    topic = settle(load(spark, name), "erase_keys")
    check_may_erase(topic)
    appended = finish_append(topic)
    done = JobOutcome(snapshot_ids=appended.snapshot_ids)
    _mark(appended.topic, erasure, done)
    plan = plan_erase(read_again(topic), erasure, keeps_offsets=keeps_offsets)
    return replace(plan, done=done)


def _mark(topic: Topic, erasure: Erasure, done: JobOutcome) -> None:
    now = to_datetime(erasure.now_ms)
    _add(done, execute_mark(plan_mark(topic), RunOf(erasure.run_id, now)))


def _add(done: JobOutcome, more: JobOutcome) -> None:
    """Count what another step of the run removed and committed too."""
    done.rows_removed += more.rows_removed
    done.bytes_removed += more.bytes_removed
    done.snapshot_ids += more.snapshot_ids


def execute_erase(plan: ErasePlan) -> JobOutcome:
    """Log the tombstones, run a cleaner round if one is due, and report what is left.

    A plan that tells offsets lets no round remove others: those are left to the next night.
    """
    if plan.topic.is_adopted:
        return execute_erase_adopted(plan)
    topic, erasure, done = plan.topic, plan.erasure, plan.done
    line = "%d keys, found in %d places, of which %d lack a tombstone"
    log.info(line, len(plan.keys), len(plan.held), len(plan.lacking))
    rows = _log_tombstones(plan, done)
    _await_arrival(topic, rows, erasure.timeout_ms)
    topic = read_again(topic)
    _mark(topic, erasure, done)
    is_limited = plan.offsets is not None
    cleaning = plan_clean(read_again(topic), erasure.now_ms, keeps_offsets=is_limited)
    if is_limited and new_offsets(cleaning.removes(), plan.removes()):
        cleaning = cleaning.left_to_a_night()
    cleaned = execute_clean(cleaning)
    outcome = report(replace(plan, topic=read_again(topic)), rows, cleaning)
    for part in (done, cleaned):
        _add(outcome, part)
    return outcome


def _log_tombstones(plan: ErasePlan, done: JobOutcome) -> KeyRows:
    """Log a tombstone for each held key that needs one, and return all keys' rows.

    A row's tombstone is the one sent now, one that an earlier try sent, or one that was there
    before.
    """
    offsets = _send(plan, done)
    planned = plan.rows
    rows = {
        place: planned[hashed(place)]._replace(
            way=plan.way if place in offsets else None,
            tombstone_offset=offsets.get(place, held.tombstone_offset),
        )
        for place, held in plan.held.items()
    }
    new = [row for place, row in rows.items() if hashed(place) not in plan.logged]
    append_erasures(plan.topic.spark, plan.topic.name, plan.erasure, LOGGED, new)
    return {place: plan.logged.get(hashed(place), row) for place, row in rows.items()}


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


KEYS_SHA256 = "keys_sha256"


def _check(args: Namespace) -> None:
    if (named := len(args.topic or args.plan)) > 1:
        raise RequestError(f"expected one topic, whose keys they are, found {named}")
    if not args.plan:
        typed_keys(Encoding(args.encoding))


def _erasure(request: PlanRequest) -> Erasure:
    """Return the erasure with its keys, typed in or in a file, which no plan stores."""
    asked = request.parameters
    encoding = Encoding(asked["encoding"])
    return Erasure(
        run_id=request.given.run_id,
        now_ms=request.now_ms,
        requested_by=asked["requested_by"],
        reason=asked["reason"],
        keys=typed_keys(encoding),
        keys_file=request.given.keys_file,
        encoding=encoding,
        connection=asked["connection"],
        appends=asked["append"],
        timeout_ms=asked["timeout_ms"],
    )


def _resolve(spark: SparkSession, _: TopicName, request: PlanRequest) -> Parameters:
    """Return what is asked, with a digest in place of the keys."""
    keys = keys_of(spark, _erasure(request))
    return {**request.parameters, "keys": len(keys), KEYS_SHA256: digest_of_keys(keys)}


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> ErasePlan:
    """Plan the erasure; PlanError where the keys are not those of the stored plan."""
    erasure = _erasure(request)
    if request.bounds is not None:
        _check_keys(keys_of(spark, erasure), request.parameters)
    topic = load(spark, name)
    if topic.is_adopted:
        topic = settle_adopted(topic, request.now_ms, is_plan_only=request.is_plan_only)
        return plan_erase_adopted(topic, erasure, request.bounds)
    if request.is_plan_only:
        topic = settle(topic, "erase_keys", is_plan_only=True)
        return plan_erase(topic, erasure, keeps_offsets=request.keeps_offsets)
    return prepare_and_plan(spark, name, erasure, keeps_offsets=request.keeps_offsets)


def _check_keys(keys: Sequence[bytes], planned: Parameters) -> None:
    if digest_of_keys(keys) != planned[KEYS_SHA256]:
        raise PlanError(
            f"expected the {planned['keys']} keys that the plan was made for, found {len(keys)} "
            "others: a plan keeps no keys, so they are given again; give the same ones"
        )


ERASE_KEYS = Job(
    "erase_keys",
    _plan,
    execute_erase,
    asked=asked_of_each("requested_by", "reason", "encoding", "connection", "append", "timeout_ms"),
    check=_check,
    resolve=_resolve,
    is_by_hand=lambda _: True,
)
