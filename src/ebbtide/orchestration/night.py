"""Decide which stages have work on a topic, from its state alone.

Starting Spark costs over ten seconds. So a stage starts none if the state of the topic and its
replicas shows that there is nothing to do. Uncertain cases count as work: a job that finds nothing
is only slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NotRequired, TypedDict

from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK, is_behind
from ebbtide.kafka.reasons import Reason
from ebbtide.kafka.retention import expiry_basis, is_retained_at
from ebbtide.lake.reader import Lake, LakeTopic, find_replicas
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.topic_summary import is_tidy
from ebbtide.moments import to_datetime
from ebbtide.state.deadline import is_uncounted
from ebbtide.state.topic_state import REMOVING, ROUND, UNDO, PartitionState

# The stages with work on adopted tables. These have no replicas for delete_records.
LOOKING_AT_ADOPTED = frozenset({"clean_log", "expire_segments"})
NIGHT = ("mark_tombstones", "clean_log", "expire_segments", "delete_records", "expire_snapshots")


class LowWatermark(TypedDict):
    """The fields of a partition that XCom carries."""

    topic: str
    partition: int
    log_start_offset: int
    low_watermark: int
    undone_run: NotRequired[str]  # the run whose undo may have lowered both offsets


def nothing_to_do(
    job: str, topic: LakeTopic, now_ms: int, lake: Lake | None = None
) -> Reason | None:
    """Return why `job` has no work on the topic at `now_ms`, or None if it has or may have work.

    Snapshots are read from the lake, because the topic's state does not have them.
    """
    if topic.is_adopted:
        return _nothing_to_do_on_adopted(job, topic, lake)
    if job == "mark_tombstones":
        return _nothing_to_mark(topic)
    if UNDO in topic.properties:
        return None  # resume a killed undo
    if job == "clean_log":
        return _nothing_to_clean(topic, now_ms)
    if job == "expire_segments":
        return _nothing_to_expire(topic, now_ms)
    if job == "delete_records":
        return _nothing_to_truncate(topic)
    if job == "replicate_log":
        return _nothing_to_replicate(topic)
    if job == "expire_snapshots" and lake is not None:
        return _nothing_to_free(topic, lake, now_ms)
    return None


def low_watermarks_of_state(topic: LakeTopic) -> list[LowWatermark]:
    """Return the low watermarks for a stage without work: the lowest log start of all replicas.

    A low watermark is -1 if this side cannot read one of the replicas.
    """
    replicas = find_replicas(topic)
    return [
        LowWatermark(
            topic=topic.name,
            partition=partition,
            log_start_offset=state.log_start_offset,
            low_watermark=_least_start(partition, state, replicas),
        )
        for partition, state in topic.partitions.items()
    ]


def retention_of(topic: LakeTopic) -> dict[str, Any]:
    """Return a topic's cleanup policy, next delete horizon and next expiry, for its asset events.

    Times are ISO 8601. None means no policy, nothing waiting, or an unknown time.
    """
    config, states = topic.config, topic.partitions.values()
    horizons = [state.next_horizon_ms for state in states if state.next_horizon_ms]
    known = [state for state in states if state.expiry_basis == expiry_basis(state, config)]
    expiries = [state.next_expiry_ms for state in known if state.next_expiry_ms > 0]
    policy = None if config.cleanup_policy is None else sorted(config.cleanup_policy)
    return {
        "cleanup_policy": policy,
        "next_horizon": _iso(min(horizons, default=None)),
        "next_expiry": _iso(min(expiries, default=None)),
    }


def _iso(at_ms: int | None) -> str | None:
    return None if at_ms is None else to_datetime(at_ms).isoformat()


def low_watermarks_of_run(run: Run) -> list[LowWatermark]:
    """Return the low watermarks of a job's row in `runs`."""
    answers = [
        LowWatermark(
            topic=run.topic,
            partition=partition,
            log_start_offset=numbers["log_start_offset"],
            low_watermark=numbers["low_watermark"],
        )
        for partition, numbers in sorted(run.partitions.items())
    ]
    if (undone_run := run.topic_result.get("undone_run")) is None:
        return answers
    return [LowWatermark(**{**answer, "undone_run": undone_run}) for answer in answers]


def newest_answers(by_stage: Iterable[Iterable[LowWatermark]]) -> list[LowWatermark]:
    """Return each partition's last answer, with the last low watermark that a stage asked for."""
    newest: dict[tuple[str, int], LowWatermark] = {}
    for answer in chain.from_iterable(by_stage):
        place = (answer["topic"], answer["partition"])
        before = newest.get(place)
        if before is not None and answer["low_watermark"] == INVALID_LOW_WATERMARK:
            answer = LowWatermark(**{**answer, "low_watermark": before["low_watermark"]})
        newest[place] = answer
    return list(newest.values())


def grouped(names: Sequence[str], size: int) -> list[list[str]]:
    """Split the names into groups of at most `size`. One Spark application serves a group."""
    return [list(names[start : start + size]) for start in range(0, len(names), size)]


def _nothing_to_do_on_adopted(job: str, topic: LakeTopic, lake: Lake | None) -> Reason | None:
    """Return why a job has no work on an adopted table, or None if it may have work."""
    if job in LOOKING_AT_ADOPTED:  # only the table itself shows new rows
        return None
    keeps_records = lake is not None and lake.keeps_records(topic.name)
    return None if job == "expire_snapshots" and keeps_records else Reason.OTHERS_WRITE


def _nothing_to_mark(topic: LakeTopic) -> Reason | None:
    states = topic.partitions.values()
    if any(state.first_unmarked_offset < state.log_end_offset for state in states):
        return None
    if topic.deadline is not None and any(map(is_uncounted, states)):
        return None
    return Reason.ALL_MARKED


def _nothing_to_clean(topic: LakeTopic, now_ms: int) -> Reason | None:
    if not topic.config.is_compacted:
        return Reason.NOT_COMPACTED
    if not topic.config.is_enabled:
        return Reason.DISABLED
    if ROUND in topic.properties:
        return None  # resume the round of a killed run
    if all(state.is_clean_at(now_ms) for state in topic.partitions.values()):
        return None if _is_round_forced(topic, now_ms) else Reason.CLEAN
    return None


def _is_round_forced(topic: LakeTopic, now_ms: int) -> bool:
    deadline = topic.deadline
    return deadline is not None and any(
        deadline.round_is_forced(state, now_ms, state.active_segment)
        for state in topic.partitions.values()
    )


def _nothing_to_expire(topic: LakeTopic, now_ms: int) -> Reason | None:
    config, states = topic.config, topic.partitions.values()
    if REMOVING in topic.properties:
        return None  # resume the removal of a killed run
    if all(is_retained_at(state, config, now_ms) for state in states):
        return Reason.RETAINED
    limits = (config.retention_ms, config.retention_bytes, config.retention_max_eventtime_ms)
    if any(limit is not None and limit >= 0 for limit in limits):
        return None
    if any(s.log_start_offset > s.first_segment for s in states):
        return None
    return Reason.NO_LIMIT


def _nothing_to_free(topic: LakeTopic, lake: Lake, now_ms: int) -> Reason | None:
    if topic.deadline is not None and topic.deadline.has_tidying(topic.partitions.values(), now_ms):
        return None
    # A snapshot's age is by the clock of the machine that committed it, not by the run's `now`.
    clock_ms = int(time.time() * 1000)
    if is_tidy(topic.properties, topic.config, lake.snapshots(topic.name), clock_ms):
        return Reason.TIDY
    return None


def _least_start(
    partition: int, primary: PartitionState, replicas: Sequence[LakeTopic] | None
) -> int:
    states = [replica.partitions.get(partition) for replica in replicas or ()]
    if replicas is None or None in states:
        return INVALID_LOW_WATERMARK
    return min(state.log_start_offset for state in [primary, *states] if state is not None)


def _nothing_to_replicate(topic: LakeTopic) -> Reason | None:
    if not topic.config.table_replicas:
        return Reason.NO_TABLE_REPLICA
    replicas = find_replicas(topic)
    if replicas is None or any(is_behind(topic.properties, r.properties) for r in replicas):
        return None
    return Reason.REPLICATED


def _nothing_to_truncate(topic: LakeTopic) -> Reason | None:
    if not topic.config.is_deleted:
        return Reason.NOT_DELETED
    if not topic.has_replicas:
        return Reason.NO_REPLICA
    return None
