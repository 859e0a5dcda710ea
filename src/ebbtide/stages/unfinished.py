"""Work that a killed job leaves behind, and what each job does about it before it begins.

Each kind of work is written to the topic's state before it starts, so that another job can finish
it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum

from ebbtide.iceberg.planned.planned_merge import open_merge
from ebbtide.iceberg.planned.planned_round import open_round
from ebbtide.iceberg.topics import Topic
from ebbtide.log.state.topic_state import APPEND, REPLICATION, SLICE
from ebbtide.stages.clean_log.segment_merge import finish_merge
from ebbtide.stages.clean_log.stage import finish_round, give_up_lost_round

log = logging.getLogger(__name__)


class Work(StrEnum):
    """The kinds of work that take more than one commit and change what others read."""

    ROUND = "cleaner round"
    MERGE = "merge of segments"
    APPEND = "append of tombstones"
    SLICE = "slice of a live topic"
    REPLICATION = "replication to this topic"


class Duty(StrEnum):
    """A job's duty towards work that it finds in flight."""

    FINISH = "finishes it first"
    RESUME = "goes on with it: it is its own kind of work"
    REFUSE = "refuses to begin, and says what to do"
    LEAVE = "works beside it"


_FREE_OF_BOTH = {Work.ROUND: Duty.FINISH, Work.MERGE: Duty.FINISH}
# A kind that is missing here for a job: the job leaves it.
_DUTIES: Mapping[str, Mapping[Work, Duty]] = {
    "ingest_segments": {
        Work.APPEND: Duty.REFUSE,
        Work.SLICE: Duty.REFUSE,
        Work.REPLICATION: Duty.REFUSE,
    },
    "ingest_topic": {
        Work.APPEND: Duty.REFUSE,
        Work.SLICE: Duty.RESUME,
        Work.REPLICATION: Duty.REFUSE,
    },
    "mark_tombstones": {},
    "clean_log": {Work.ROUND: Duty.RESUME, Work.MERGE: Duty.FINISH},
    "expire_segments": _FREE_OF_BOTH,
    "delete_records": _FREE_OF_BOTH,
    "expire_snapshots": {Work.ROUND: Duty.FINISH, Work.MERGE: Duty.RESUME},
    "erase_keys": {
        **_FREE_OF_BOTH,
        Work.APPEND: Duty.RESUME,
        Work.SLICE: Duty.REFUSE,
        Work.REPLICATION: Duty.REFUSE,
    },
    "export_segments": _FREE_OF_BOTH,
    "replicate_log": {**_FREE_OF_BOTH, Work.REPLICATION: Duty.RESUME},
    "configure_topic": {},
    "repair_state": {},
}
JOBS = tuple(_DUTIES)


def duty(job: str, work: Work) -> Duty:
    """Return a job's duty towards work of a kind that a killed job has left."""
    return _DUTIES[job].get(work, Duty.LEAVE)


def in_flight(topic: Topic) -> set[Work]:
    """Return the kinds of work that the topic's state has written down."""
    is_written = {
        Work.ROUND: open_round(topic) is not None,
        Work.MERGE: open_merge(topic) is not None,
        Work.APPEND: APPEND in topic.properties,
        Work.SLICE: SLICE in topic.properties,
        Work.REPLICATION: REPLICATION in topic.properties,
    }
    return {work for work, is_in_flight in is_written.items() if is_in_flight}


def settle(topic: Topic, job: str) -> Topic:
    """Finish the rounds and merges that the job must not meet; return the topic afterwards.

    A job itself finds the work that it continues or refuses, since it needs its request or
    source.
    """
    if duty(job, Work.MERGE) is not Duty.LEAVE:
        topic = finish_merge(topic)
    if duty(job, Work.ROUND) is not Duty.LEAVE:
        topic = give_up_lost_round(topic)
    if duty(job, Work.ROUND) is Duty.FINISH:
        topic = finish_round(topic)
    return topic
