"""Find work in flight of killed jobs, and finish, resume or refuse it before a job begins.

Work in flight is recorded in the topic's state before it starts, or it has rows beyond a log end
offset. So another run can finish it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from pyspark.sql import SparkSession

from ebbtide.errors import UnfinishedWorkError
from ebbtide.iceberg.foreign_changes import Counted
from ebbtide.iceberg.in_flight import (
    CleaningRound,
    Merge,
    Undo,
    open_merge,
    open_round,
    open_undo,
)
from ebbtide.iceberg.topics import Topic, load
from ebbtide.kafka.live_offsets import Slice
from ebbtide.kafka.low_watermarks import Replication
from ebbtide.layouts.copied import CopiedTable
from ebbtide.runner.job import PlanRequest
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.job_spec import OF_SOURCES, Duty, Work
from ebbtide.state.topic_state import (
    APPEND,
    COPIED_SLICE,
    FILES_SLICE,
    REPLICATION,
    SLICE,
    seen_of,
    told_rows,
)

log = logging.getLogger(__name__)


def duty(job: str, work: Work) -> Duty:
    """Return a job's duty towards work in flight of this kind."""
    return (SPECS[job].duties or {}).get(work, Duty.LEAVE)


def load_settled(spark: SparkSession, name: TopicName, job: str, request: PlanRequest) -> Topic:
    """Load a topic, do the job's duties towards work in flight, and return the topic."""
    topic = load(spark, name)
    if topic.is_adopted:
        return settle_adopted(topic, request.now_ms, is_plan_only=request.is_plan_only)
    return settle(topic, job, is_plan_only=request.is_plan_only)


def settle(topic: Topic, job: str, *, is_plan_only: bool = False) -> Topic:
    """Do the job's duties towards work in flight, except to resume, and return the topic.

    The job itself resumes its own kind of work, because that needs its request or source. For a
    plan, nothing is committed. Raise UnfinishedWorkError if the work refuses the job.
    """
    _check_may_begin(topic, job)
    if is_plan_only:
        return topic
    # Imported here: a job without these duties does not load the code.
    if duty(job, Work.MERGE) in (Duty.FINISH, Duty.RESUME):
        from ebbtide.jobs.clean_log.segment_merge import finish_merge

        topic = finish_merge(topic)
    if duty(job, Work.ROUND) in (Duty.FINISH, Duty.RESUME):
        from ebbtide.jobs.clean_log.stage import finish_round, give_up_lost_round

        topic = give_up_lost_round(topic)
        if duty(job, Work.ROUND) is Duty.FINISH:
            topic = finish_round(topic)
    if duty(job, Work.UNDO) in (Duty.FINISH, Duty.RESUME):
        from ebbtide.jobs.undo_run.execution import finish_undo, give_up_lost_undo

        is_its_own = duty(job, Work.UNDO) is Duty.RESUME
        topic = give_up_lost_undo(topic) if is_its_own else finish_undo(topic)
    return topic


def settle_adopted(topic: Topic, now_ms: int, *, is_plan_only: bool = False) -> Topic:
    """Finish an undo in flight on an adopted topic, and return the topic.

    Only clean_log finishes a cleaner round.
    """
    from ebbtide.jobs.undo_run.execution import finish_undo

    return topic if is_plan_only else finish_undo(topic, now_ms)


def _check_may_begin(topic: Topic, job: str) -> None:
    refused = [work for work in Work if duty(job, work) is Duty.REFUSE]
    for work in sorted(in_flight(topic, refused)):
        raise UnfinishedWorkError(
            f"expected no {work} in flight on {topic.name}, found one{_began(topic, work)}: "
            f"{_way_out(work, job)}"
        )


def _way_out(work: Work, job: str) -> str:
    if work is Work.REPLICATION:
        return (
            "replicate_log is running or was killed. Run it again for the primary of this topic, "
            f"and run {job} for the primary: a replica gets its log only from its primary"
        )
    its_job = next(name for name in SPECS if duty(name, work) is Duty.RESUME)
    how = "with the same log directory" if work is Work.INGEST else "for this topic"
    return (
        f"{its_job} is running or was killed. Run it again {how}; it finishes the work, and then "
        f"{job} can run. If {its_job} can no longer run, repair_state with keep_changes removes "
        f"the rows that {its_job} left"
    )


def left_to_its_job(topic: Topic) -> set[Work]:
    """Return the work in flight that only its own job can finish, and only from its source."""
    return in_flight(topic, set(OF_SOURCES) - {Work.REPLICATION})


def _began(topic: Topic, work: Work) -> str:
    """Return the time at which the work began, or the offsets of its rows; "" if unknown."""
    if work in (Work.SLICE, Work.COPY):
        name = SLICE if work is Work.SLICE else COPIED_SLICE
        return f" begun at {Slice.parse(topic.properties[name], name).now:%Y-%m-%d %H:%M} UTC"
    if work is Work.INGEST:
        from ebbtide.jobs.ingest_segments.append import ends_passed

        places = (f"offset {end} of partition {p}" for p, end in sorted(ends_passed(topic).items()))
        return f", with rows from {', '.join(places)}"
    return ""


def in_flight(topic: Topic, kinds: Collection[Work] = tuple(Work)) -> set[Work]:
    """Return the kinds of work, among `kinds`, that are in flight on the topic."""
    works = {work for work in kinds if work in _IS_WRITTEN and _IS_WRITTEN[work](topic)}
    if Work.INGEST in kinds:  # the only kind that is not recorded
        works |= _works_beyond_ends(topic) & set(kinds)
    return works


def check_readable(topic: Topic) -> None:
    """Raise StateError if this version of ebbtide cannot read a property of the state."""
    from ebbtide.jobs.erase_keys.direct_append import begun_append

    _ = topic.partitions
    for table in Counted.of(topic.name):
        seen_of(topic.properties, table.what)
        told_rows(topic.properties, table.what)
    for kind in (CleaningRound, Merge, Undo, Replication, CopiedTable):
        kind.of(topic.properties)
    begun_append(topic)
    for name in _CLAIMS.keys() & topic.properties.keys():
        Slice.parse(topic.properties[name], name)


def _has_appended(name: str, topic: Topic) -> bool:
    from ebbtide.jobs.ingest_segments.append import appended_slice

    return name in topic.properties and appended_slice(topic, name) is not None


# Whether the work is recorded in the topic's state. A slice counts once it has records.
_IS_WRITTEN: Mapping[Work, Callable[[Topic], bool]] = {
    Work.ROUND: lambda topic: open_round(topic) is not None,
    Work.MERGE: lambda topic: open_merge(topic) is not None,
    Work.APPEND: lambda topic: APPEND in topic.properties,
    Work.SLICE: partial(_has_appended, SLICE),
    Work.COPY: partial(_has_appended, COPIED_SLICE),
    Work.REPLICATION: lambda topic: REPLICATION in topic.properties,
    Work.UNDO: lambda topic: open_undo(topic.properties) is not None,
}


# The properties by which ingests claim the rows beyond the log end offsets.
_CLAIMS = {SLICE: Work.SLICE, COPIED_SLICE: Work.COPY, FILES_SLICE: Work.INGEST}


def _works_beyond_ends(topic: Topic) -> set[Work]:
    """Return the kind of work whose rows are beyond the log end offsets: a set of one or none."""
    from ebbtide.jobs.erase_keys.direct_append import lacks_tombstones
    from ebbtide.jobs.ingest_segments.append import ends_passed

    beyond = ends_passed(topic)
    if not beyond:
        return set()
    if REPLICATION in topic.properties:
        return {Work.REPLICATION}
    for name, work in _CLAIMS.items():
        if name in topic.properties:
            return {work}
    return {Work.INGEST if lacks_tombstones(topic, beyond) else Work.APPEND}
