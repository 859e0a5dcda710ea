"""erase_keys: each key gets a tombstone, so that the cleaner removes all records before it.

Where somebody writes the log, tombstones are produced to the live topic and arrive by ingest;
otherwise they are appended to the tables. A cleaner round follows if Kafka's cleaner would begin
one now. A key whose latest record is a tombstone gets no other, so a run may be repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from ebbtide.brokers.live_producer import produce_tombstones
from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import UnavailableError
from ebbtide.iceberg.erasures_table import append_erasures
from ebbtide.iceberg.topics import Topic, load, read_again
from ebbtide.log.erasures import LOGGED
from ebbtide.log.plans.offsets import new_offsets
from ebbtide.log.requests.erase_request import Erasure, PartitionKey, produced_headers
from ebbtide.log.settings.names import TopicName
from ebbtide.moments import to_datetime
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_log.stage import execute_clean, plan_clean
from ebbtide.stages.erase_keys.adopted import execute_erase_adopted
from ebbtide.stages.erase_keys.direct_append import append_tombstones, finish_append
from ebbtide.stages.erase_keys.plan import ErasePlan, check_may_erase, hashed, plan_erase
from ebbtide.stages.erase_keys.report import KeyRows, report
from ebbtide.stages.ingest_segments.append import check_topic_id
from ebbtide.stages.mark_tombstones.quarantine import RunOf
from ebbtide.stages.mark_tombstones.stage import execute_mark, plan_mark
from ebbtide.stages.unfinished import settle

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
