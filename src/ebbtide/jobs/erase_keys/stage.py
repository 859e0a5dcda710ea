"""erase_keys: log a tombstone for each key, so that the cleaner removes all records before it.

If a live topic exists, tombstones are produced to it and arrive by an ingest. If the topic has no
source, they are appended to the tables. A cleaner round follows if Kafka's cleaner would start one
now. A key whose latest record is a tombstone gets no second one, so a run can be repeated.
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
from ebbtide.columns.erased_keys import named_keys
from ebbtide.errors import PlanError, RequestError, UnavailableError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures import append_erasures, logged_before, secret_for
from ebbtide.iceberg.topics import Topic, compare_and_set, load, read_again
from ebbtide.jobs.certify_erasure.stage import (
    check_can_sign,
    execute_certificate,
    plan_certificate,
)
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
    find_keys,
    find_left,
    find_rows,
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
from ebbtide.moments import machine_clock, minute, to_datetime, to_ms
from ebbtide.runner.holds import check_has_key_bytes
from ebbtide.runner.job import Job, Parameters, PlanRequest, asked_of_each
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import (
    Encoding,
    Erasure,
    LoggedTombstone,
    PartitionKey,
    Way,
    produced_headers,
)
from ebbtide.state.topic_state import max_snapshot_age_ms
from ebbtide.text import number

DIRTY_RATIO_DECIDES = (
    "; for an earlier round, lower kafka.min.cleanable.dirty.ratio or kafka.max.compaction.lag.ms"
)

# Of keys that were not found.
_ARRIVED = "{} of the keys that were not found have records now: run erase_keys again"
KeyRows = dict[PartitionKey, KeyRow]


def report(plan: ErasePlan, rows: KeyRows, cleaning: CleanPlan) -> JobOutcome:
    """Write a row in `erasures` for each key, and return the run's numbers and note."""
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
    arrived = {key for _, key in find_keys(topic, tuple(plan.not_found))}
    if arrived:
        outcome.topic["arrived"] = len(arrived)
        outcome.add_notes([_ARRIVED.format(number(len(arrived)))])
    return outcome


def report_rows(plan: ErasePlan, outcome: JobOutcome, reported: list[KeyRow]) -> None:
    """Write a row in `erasures` for each key, and add the rows' numbers to the outcome."""
    topic = plan.topic
    missing = [KeyRow.of(plan.named[key]) for key in plan.not_found]
    append_erasures(topic.spark, topic.name, plan.erasure, REPORTED, [*reported, *missing])
    for partition, numbers in outcome.partitions.items():
        numbers |= _numbers([row for row in reported if row.partition == partition])
    outcome.topic |= _numbers(reported)


@dataclass(frozen=True, slots=True)
class _Disk:
    """The times at which erased records are out of the table and off the disk."""

    changed_ms: int  # of the newest snapshot, by the clock of its commit
    off_from_ms: int | None  # from then on, expire_snapshots frees all deleted rows
    wait: str  # why `off_from_ms` is None
    still_in: str  # copies outside the records table

    @classmethod
    def of(cls, topic: Topic) -> _Disk:
        snapshot = open_table(topic.spark, topic.name.records_table).current
        changed_ms = 0 if snapshot is None else snapshot.at_ms
        left = find_left_on_disk(topic)
        if not left.has_date:
            wait = left.wait_in_words(topic.config.rewrite_deleted_ratio)
            return cls(changed_ms, None, wait, left.still_in_words)
        expires_ms = left.expires_ms(max_snapshot_age_ms(topic.properties)) or 0
        return cls(changed_ms, max(changed_ms, expires_ms), "", left.still_in_words)


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
    """Return the latest time, or None if one of them is not known."""
    known = [ms for ms in times_ms if ms is not None]
    return max(known) if known and len(known) == len(times_ms) else None


def _in_words(numbers: Mapping[str, Any], disk: _Disk) -> str:
    """Describe the run without naming a key."""
    text = (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; "
        f"{numbers['superseded']} superseded records removed from the table, "
        f"{numbers['remaining']} still in it"
    )
    if numbers["off_disk_from_ms"] is not None:
        moment = _moment(numbers["off_disk_from_ms"])
        text += f"; the first expire_snapshots after {moment} frees their bytes"
    elif numbers["out_of_table_ms"] is not None:
        text += f"; their bytes are still on the disk: {disk.wait}"
    if disk.still_in:
        text += f"; the topic also has {disk.still_in}"
    if numbers["last_horizon_ms"] is not None:
        text += f"; the last of their tombstones is due at {_moment(numbers['last_horizon_ms'])}"
    return f"{text}. Key by key: lake.ebbtide.erasures"


def _moment(ms: int) -> str:
    """Format the first full minute at or after a time, in UTC."""
    ms = -(-ms // 60_000) * 60_000
    return f"{minute(ms)} UTC"


def _delay(left: int, cleaning: CleanPlan, partition: int) -> dict[str, str]:
    """Return a note why records of the keys remain and what to do; empty if none remains."""
    if not left:
        return {}
    cleaned = cleaning.outcome().partitions[partition]
    if cleaned["picked"]:
        reason = "their tombstones are in a segment that is not closed yet or not old enough"
    else:
        reason = str(cleaned["reason"])
        reason += DIRTY_RATIO_DECIDES if reason.startswith(DIRTY_RATIO) else ""
    return {"note": f"{left} records of the keys wait for a cleaner round: {reason}"}


# erase_keys on an adopted table: delete the keys' rows, and rewrite the data files that have them.
#
# Only the table's writer assigns offsets, so no tombstone is logged. Order: new rows counted in the
# state, keys written to `erasures`, one commit that rewrites the files without the keys' rows,
# report. If a killed run is run again, its report includes the rows that it had found before.


# The limits of an erasure from an adopted table.
LEFT = (
    "no data file of the newest snapshot has their rows; older snapshots, branches and tags have "
    "them until the table's owner expires or drops these, and delete files of other writers may "
    "have a key"
)


def plan_erase_adopted(topic: Topic, erasure: Erasure, bounds: Bounds | None = None) -> ErasePlan:
    """Plan the erasure of keys from an adopted table, within the bounds of a stored plan if given.

    Raise RequestError for `append` or a connection, HoldError if a hold covers a key or its rows.
    """
    if erasure.appends or erasure.connection:
        raise RequestError(
            f"expected no `append` and no connection for the adopted topic {topic.name}, found "
            "one: erase_keys deletes rows there, without a tombstone. Nothing was erased. To erase "
            "the keys from the live topic too, produce their tombstones with another tool"
        )
    check_has_key_bytes(topic)
    keys, rows = keys_of(topic.spark, erasure), AdoptedRows.of(topic)
    check_not_held(topic, keys, "rows")
    named = named_keys(secret_for(topic), keys)
    log = AdoptedTable(topic, keys).observe(erasure.now_ms)
    if log is None or log.snapshot is None:
        return ErasePlan(topic, erasure, Way.DELETED, keys, named, {})
    ends = {p: state.log_end_offset for p, state in log.states.items()}
    if bounds is not None:
        ends = {p: min(ends.get(p, 0), numbers["log_end_offset"]) for p, numbers in bounds.items()}
    found = find_rows(rows, log, keys, ends)
    return ErasePlan(
        log.observed,
        erasure,
        Way.DELETED,
        keys,
        named,
        {place: HeldKey(count, None) for place, count in found.counts.items()},
        logged_before(topic.spark, topic.name, erasure.run_id),
        {p: PlannedRows(BitMap64(offsets)) for p, offsets in found.live.offsets.items()},
        adopted=found,
    )


def execute_erase_adopted(plan: ErasePlan) -> JobOutcome:
    """Log the keys, rewrite their files without their rows, and report."""
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
    # The rows are out of the table. Only its owner decides when they are off the disk.
    made = open_table(topic.spark, topic.name.records_table).current
    assert made is not None
    reported = [
        row._replace(superseded=row.found, left=0, out_of_table_at=made.at_ms)
        for row in plan.rows.values()
    ]
    report_rows(plan, outcome, reported)
    numbers = outcome.topic
    note = (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; "
        f"{numbers['superseded']} rows removed from the table: {LEFT}. Key by key: "
        "lake.ebbtide.erasures"
    )
    notes = [note, *found.log.notes]  # these are about rows of other keys
    if found.remaining:
        numbers["remaining"] += found.remaining
        notes.append(
            f"{found.remaining} rows of the keys remain: they arrived after the plan was made, or "
            "have no partition or no offset. To erase rows that arrived, run erase_keys again"
        )
    outcome.topic |= found.log.result | {"note": "; ".join(notes)}
    return outcome


log = logging.getLogger(__name__)

WORD_EVERY_S = 30  # between log lines while the job waits for an ingest
POLL_S = 1.0


def erase_keys(spark: SparkSession, name: TopicName, erasure: Erasure) -> JobOutcome:
    """Erase the keys. The outcome includes the removals and commits of the preparation."""
    return execute_erase(prepare_and_plan(spark, name, erasure))


def prepare_and_plan(
    spark: SparkSession, name: TopicName, erasure: Erasure, *, keeps_offsets: bool = False
) -> ErasePlan:
    """Recover work in flight and mark new tombstones, then plan the erasure.

    The plan's `done` has the removals and commits of these two steps.
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
    """Add the removals and commits of another step of the run."""
    done.rows_removed += more.rows_removed
    done.bytes_removed += more.bytes_removed
    done.snapshot_ids += more.snapshot_ids


def execute_erase(plan: ErasePlan) -> JobOutcome:
    """Log the tombstones, run a cleaner round if one is due, and report.

    If the plan lists offsets and the round would remove more, no round runs now. A later nightly
    run removes the records.
    """
    if plan.topic.is_adopted:
        return execute_erase_adopted(plan)
    topic, erasure, done = plan.topic, plan.erasure, plan.done
    line = "erasing %d keys: %d pairs of partition and key have records, %d need a tombstone"
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


def execute_and_certify(plan: ErasePlan) -> JobOutcome:
    """Erase the keys. If the request says so, search all bytes for them and sign the result."""
    outcome = execute_erase(plan)
    erasure, topic = plan.erasure, plan.topic
    if not erasure.certifies:
        return outcome
    run_id = erasure.run_id
    certificate = plan_certificate(read_again(topic), plan.keys, run_id=run_id, erasure=run_id)
    certified = execute_certificate(certificate).topic
    outcome.topic |= {name: certified[name] for name in ("certificate", "found_in")}
    outcome.topic["note"] += f"; {certified['note']}"
    return outcome


def _log_tombstones(plan: ErasePlan, done: JobOutcome) -> KeyRows:
    """Log a tombstone for each found key that needs one. Return the rows of all found keys.

    A row's tombstone was sent now or by an earlier attempt, or was in the log before.
    """
    # Produced tombstones have the time of the machine clock; a run's `now` may be its plan's.
    started_ms = plan.erasure.now_ms if plan.connection is None else to_ms(machine_clock())
    sent = _send(plan, done)
    # One time for all keys: an ingest would refuse a tombstone that is older.
    erased_at = min([started_ms, *(tombstone.timestamp_ms for tombstone in sent.values())])
    planned = plan.rows
    rows = {
        place: planned[plan.place(place)]._replace(
            way=plan.way if place in sent else None,
            tombstone_offset=sent[place].offset if place in sent else held.tombstone_offset,
            erased_at=erased_at,
        )
        for place, held in plan.held.items()
    }
    new = [row for place, row in rows.items() if plan.place(place) not in plan.logged]
    # An older record of a key that was not found may be on its way.
    new += [KeyRow.of(plan.named[key])._replace(erased_at=erased_at) for key in plan.not_found]
    append_erasures(plan.topic.spark, plan.topic.name, plan.erasure, LOGGED, new)
    return {place: plan.logged.get(plan.place(place), row) for place, row in rows.items()}


def _send(plan: ErasePlan, done: JobOutcome) -> dict[PartitionKey, LoggedTombstone]:
    """Produce or append the missing tombstones."""
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
        (partition, key): LoggedTombstone(firsts[partition] + i, erasure.now_ms)
        for partition, keys in by_partition.items()
        for i, key in enumerate(sorted(keys))
    }


def _await_arrival(topic: Topic, rows: KeyRows, timeout_ms: int) -> None:
    """Wait until the tables hold the tombstones. Raise UnavailableError after `timeout_ms`."""
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
                f"found {'; '.join(behind)}: the tombstones are in the live topic. Trigger "
                "ingest_topic for it, then run erase_keys again; it produces no tombstone twice"
            )
        if time.monotonic() >= next_word:
            next_word += WORD_EVERY_S
            log.info(
                "the tombstones are in the live topic; waiting up to %.0f s more for an ingest to "
                "copy them (%s). If none is scheduled soon, trigger ingest_topic for this topic",
                left_s,
                "; ".join(behind),
            )
        time.sleep(min(POLL_S, left_s))


def _behind(topic: Topic, ends: Mapping[int, int]) -> list[str]:
    return [
        f"log end offset {topic.partitions[p].log_end_offset} in partition {p}, below {end}"
        for p, end in sorted(ends.items())
        if topic.partitions[p].log_end_offset < end
    ]


KEYS_HMAC = "keys_hmac"  # an older version stored keys_sha256, by which a guess can be tested


def _check(args: Namespace) -> None:
    if (named := len(args.topic or args.plan)) > 1:
        raise RequestError(f"expected one topic for the keys, found {named}. Name one per run")
    if not args.plan:
        typed_keys(Encoding(args.encoding))


def _erasure(request: PlanRequest) -> Erasure:
    """Return the erasure. Its keys are typed or in a file, since no plan stores them."""
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
        certifies=bool(asked.get("certify")),  # a plan of an older version has none
    )


def _resolve(spark: SparkSession, name: TopicName, request: PlanRequest) -> Parameters:
    """Return the parameters of the plan, with an HMAC in place of the keys."""
    keys = keys_of(spark, _erasure(request))
    named = secret_for(load(spark, name)).name_all(keys)
    return {**request.parameters, "keys": len(keys), KEYS_HMAC: named}


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> ErasePlan:
    """Plan the erasure. Raise PlanError if the keys differ from those of the stored plan."""
    erasure = _erasure(request)
    topic = load(spark, name)
    if request.bounds is not None:
        _check_keys(topic, keys_of(spark, erasure), request.parameters)
    if erasure.certifies:
        check_can_sign(topic)
    if topic.is_adopted:
        topic = settle_adopted(topic, request.now_ms, is_plan_only=request.is_plan_only)
        return plan_erase_adopted(topic, erasure, request.bounds)
    if request.is_plan_only:
        topic = settle(topic, "erase_keys", is_plan_only=True)
        return plan_erase(topic, erasure, keeps_offsets=request.keeps_offsets)
    return prepare_and_plan(spark, name, erasure, keeps_offsets=request.keeps_offsets)


def _check_keys(topic: Topic, keys: Sequence[bytes], planned: Parameters) -> None:
    if KEYS_HMAC not in planned:
        raise PlanError(
            f"expected {KEYS_HMAC} in the plan, found the plan of an older version. Nothing was "
            "erased. Make a new plan"
        )
    if secret_for(topic).name_all(keys) != planned[KEYS_HMAC]:
        raise PlanError(
            f"expected the {planned['keys']} keys of the plan, found {len(keys)} keys that differ. "
            "Nothing was erased. A plan stores no keys: give the keys of the plan again"
        )


ERASE_KEYS = Job(
    "erase_keys",
    _plan,
    execute_and_certify,
    asked=asked_of_each(
        "requested_by", "reason", "encoding", "connection", "append", "timeout_ms", "certify"
    ),
    check=_check,
    resolve=_resolve,
    is_by_hand=lambda _: True,
)
