"""Work that a killed job leaves behind, and what each job does about it before it begins.

Each kind of work is written to the topic's state before it starts, or shows by rows beyond a log
end offset, so that another run can finish it.
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
    """Return a job's duty towards work of a kind that a killed job has left."""
    return (SPECS[job].duties or {}).get(work, Duty.LEAVE)


def load_settled(spark: SparkSession, name: TopicName, job: str, request: PlanRequest) -> Topic:
    """Return a topic once the job has done its duties towards work in flight."""
    topic = load(spark, name)
    if topic.is_adopted:
        return settle_adopted(topic, request.now_ms, is_plan_only=request.is_plan_only)
    return settle(topic, job, is_plan_only=request.is_plan_only)


def settle(topic: Topic, job: str, *, is_plan_only: bool = False) -> Topic:
    """Do the job's duties before it begins, except to resume; return the topic afterwards.

    Raise UnfinishedWorkError where the job may not begin beside work in flight. The job itself
    resumes its own kind of work, since it needs its request or source for that. A plan commits
    nothing, so it may only be refused.
    """
    _check_may_begin(topic, job)
    if is_plan_only:
        return topic
    # A job that meets no such work needs none of their code.
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
    """Finish an undo that a killed run has left on an adopted topic; return the topic afterwards.

    A cleaner round is finished by clean_log alone.
    """
    from ebbtide.jobs.undo_run.execution import finish_undo

    return topic if is_plan_only else finish_undo(topic, now_ms)


def _check_may_begin(topic: Topic, job: str) -> None:
    refused = [work for work in Work if duty(job, work) is Duty.REFUSE]
    for work in sorted(in_flight(topic, refused)):
        raise UnfinishedWorkError(
            f"expected no {work} in flight on {topic.name}, since {job} cannot work beside it, "
            f"found one{_began(topic, work)}: {_way_out(work, job)}"
        )


def _way_out(work: Work, job: str) -> str:
    if work is Work.REPLICATION:
        return (
            "replicate_log was killed or is at work; run it again for the primary of this topic, "
            f"and {job} for the primary too: a replica gets its log from there alone"
        )
    its_job = next(name for name in SPECS if duty(name, work) is Duty.RESUME)
    how = "with the same log directory" if work is Work.INGEST else "for this topic"
    return (
        f"{its_job} was killed or is at work; run it again {how}, it finishes that first. If it "
        "cannot run any more, repair_state with keep_changes takes out what it has left"
    )


def left_to_its_job(topic: Topic) -> set[Work]:
    """Return the works in flight that one job alone can end; its source may be gone."""
    return in_flight(topic, set(OF_SOURCES) - {Work.REPLICATION})


def _began(topic: Topic, work: Work) -> str:
    """Tell when the work began, or from which offsets on its rows show it; empty if unknown."""
    if work in (Work.SLICE, Work.COPY):
        name = SLICE if work is Work.SLICE else COPIED_SLICE
        return f" begun at {Slice.parse(topic.properties[name], name).now:%Y-%m-%d %H:%M} UTC"
    if work is Work.INGEST:
        from ebbtide.jobs.ingest_segments.append import ends_passed

        places = (f"offset {end} of partition {p}" for p, end in sorted(ends_passed(topic).items()))
        return f" by rows from {', '.join(places)} on"
    return ""


def in_flight(topic: Topic, kinds: Collection[Work] = tuple(Work)) -> set[Work]:
    """Return those of the kinds of work that are in flight on the topic."""
    works = {work for work in kinds if work in _IS_WRITTEN and _IS_WRITTEN[work](topic)}
    if Work.INGEST in kinds:  # it alone is written down nowhere
        works |= _works_beyond_ends(topic) & set(kinds)
    return works


def check_readable(topic: Topic) -> None:
    """Raise StateError if this version of ebbtide cannot read some property of the state."""
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


# Whether the topic's state has written it down. A slice counts once it has records.
_IS_WRITTEN: Mapping[Work, Callable[[Topic], bool]] = {
    Work.ROUND: lambda topic: open_round(topic) is not None,
    Work.MERGE: lambda topic: open_merge(topic) is not None,
    Work.APPEND: lambda topic: APPEND in topic.properties,
    Work.SLICE: partial(_has_appended, SLICE),
    Work.COPY: partial(_has_appended, COPIED_SLICE),
    Work.REPLICATION: lambda topic: REPLICATION in topic.properties,
    Work.UNDO: lambda topic: open_undo(topic.properties) is not None,
}


# The work that an ingest has claimed last, whether its own rows or another's lie there.
_CLAIMS = {SLICE: Work.SLICE, COPIED_SLICE: Work.COPY, FILES_SLICE: Work.INGEST}


def _works_beyond_ends(topic: Topic) -> set[Work]:
    """Return the kind of work that has appended the rows beyond the log's ends, if any."""
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
