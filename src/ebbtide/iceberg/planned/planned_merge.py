"""A planned merge of physical segments, written to the state before it starts.

The merge moves rows in two tables by two commits. Between them, while the property is set, nobody
may read both tables by segment.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.topics import Topic
from ebbtide.log.state.properties import InFlight, checked_fields
from ebbtide.log.state.topic_state import MERGE
from ebbtide.numbers import MAX_INT, parse_whole, whole


@dataclass(frozen=True, slots=True)
class Merge(InFlight):
    """{partition: groups of physical segments}; each group is written as its first one.

    Without groups it is done. It then stays as a trace for who has read the topic before.
    """

    PROPERTY = MERGE
    EXPECTED = "a merge's id and its groups by partition"

    id: str
    groups: dict[int, list[list[int]]]

    @classmethod
    def new(cls, groups: dict[int, list[list[int]]]) -> Merge:
        """Return a merge with an id that no other has."""
        return cls(uuid.uuid4().hex, groups)

    def done(self) -> Merge:
        """Return the trace that it leaves."""
        return Merge(self.id, {})

    @classmethod
    def _built(cls, values: Any) -> Merge:
        groups = {
            parse_whole(partition, MAX_INT): [
                [whole(base) for base in group] for group in of_partition
            ]
            for partition, of_partition in values["groups"].items()
        }
        return cls(**checked_fields(cls, values | {"groups": groups}))


def last_merge(topic: Topic) -> Merge | None:
    """Return the merge in flight, or the trace of the last one."""
    return Merge.of(topic.properties)


def open_merge(topic: Topic) -> Merge | None:
    """Return the merge in flight, if any."""
    merge = last_merge(topic)
    return merge if merge is not None and merge.groups else None


def check_no_merge(current: Topic, since: Topic | None = None) -> None:
    """Raise CommitConflictError where a merge is in flight, or began since the topic was read."""
    has_begun = since is not None and last_merge(since) != last_merge(current)
    if has_begun or open_merge(current) is not None:
        raise CommitConflictError(
            f"expected the segments of {current.name} to stay where they are, found a merge of "
            "them in flight; run the job again, or clean_log or expire_snapshots to finish it"
        )
