"""DeleteRecords requests that a real broker and ebbtide are asked, and what they both answer.

Every case has partitions of its own, of ten records with offsets 0 to 9. docs/conformance.md lists
them; tests/jobs/delete_records/test_delete_records_against_a_broker.py compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ebbtide.kafka.low_watermarks import ErrorCode

FIRST_MS = 1_000_000_000_000
# Of the records, in seconds after FIRST_MS: neither in order nor all different.
SECONDS = (0, 10, 5, 20, 15, 30, 30, 25, 40, 50)
# {consumer group: offset it has committed}
COMMITTED = {"fast": 8, "slow": 6}
UNKNOWN_PARTITION = 999

DELETED, COMPACTED, BOTH, WITHOUT = "deleted", "compacted", "both", "without"
INTERNAL, NOWHERE = "__consumer_offsets", "nowhere"
# {topic: its cleanup.policy}
TOPICS = {
    DELETED: "delete",
    COMPACTED: "compact",
    BOTH: "compact,delete",
    WITHOUT: "",
}


class Case(NamedTuple):
    """What is asked of a partition, one after another; `error` and `low_watermark` end it."""

    asked: tuple[Mapping[str, Any], ...]
    error: ErrorCode
    low_watermark: int
    topic: str = DELETED
    start: int = 0  # the log start offset before
    is_transactional: bool = False  # then a commit marker follows at offset 10, written just now
    is_known: bool = True  # the partition


def after(seconds: int) -> dict[str, int]:
    return {"timestamp": FIRST_MS + seconds * 1000}


NONE, OUT_OF_RANGE = ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
LAST_WEEK = {"age": "P7D"}
CASES = {
    "an offset inside the log": Case(({"offset": 4},), NONE, 4),
    "-1, the high watermark": Case(({"offset": -1},), NONE, 10),
    "the high watermark by its number": Case(({"offset": 10},), NONE, 10),
    "beyond the high watermark": Case(({"offset": 11},), OUT_OF_RANGE, -1),
    "the log start offset": Case(({"offset": 3},), NONE, 3, start=3),
    "below the log start offset": Case(({"offset": 1},), NONE, 3, start=3),
    "0 of a log that starts at 0": Case(({"offset": 0},), NONE, 0),
    "negative, and not -1": Case(({"offset": -2},), OUT_OF_RANGE, -1),
    "the same request again": Case(({"offset": 4}, {"offset": 4}), NONE, 4),
    "a lower offset after it": Case(({"offset": 6}, {"offset": 2}), NONE, 6),
    "a higher offset after one out of range": Case(({"offset": 99}, {"offset": 7}), NONE, 7),
    "-1 twice": Case(({"offset": -1}, {"offset": -1}), NONE, 10),
    "a topic that is not there": Case(({"offset": 1},), UNKNOWN, -1, NOWHERE),
    "a partition that is not there": Case(({"offset": 1},), UNKNOWN, -1, is_known=False),
    "cleanup.policy=compact": Case(({"offset": 1},), ErrorCode.POLICY_VIOLATION, -1, COMPACTED),
    "cleanup.policy=compact, and out of range too": Case(
        ({"offset": 99},), ErrorCode.POLICY_VIOLATION, -1, COMPACTED
    ),
    "cleanup.policy=compact,delete": Case(({"offset": 1},), NONE, 1, BOTH),
    "an empty cleanup.policy": Case(({"offset": 1},), NONE, 1, WITHOUT),
    "an internal topic": Case(({"offset": 0},), ErrorCode.INVALID_TOPIC_EXCEPTION, -1, INTERNAL),
    "a time that a record has": Case((after(20),), NONE, 3),
    "a time between two records": Case((after(21),), NONE, 5),
    "a time before an older record that comes later": Case((after(7),), NONE, 1),
    "a time before all records": Case((after(-1),), NONE, 0),
    "a time after all records": Case((after(51),), NONE, 10),
    "a time whose first record lies below the log start": Case((after(8),), NONE, 4, start=4),
    "a time that only a transaction's marker is after": Case(
        (LAST_WEEK,), NONE, 10, is_transactional=True
    ),
    "an age that no record is younger than": Case((LAST_WEEK,), NONE, 10),
    "what two consumer groups have committed": Case(({"groups": [*COMMITTED]},), NONE, 6),
    "what they have committed lies below the log start": Case(
        ({"groups": [*COMMITTED]},), NONE, 7, start=7
    ),
}

# Where Kafka looks for a time: in the first segment that has one as late. With a log start behind
# that segment's latest record it finds nothing, though later segments do have such records, and
# all would go. Two records of 100 s and 50 s in one segment, one of 200 s in the next.
ROLLED = "rolled"
ROLLED_SECONDS = (100, 50, 200, 300)
MISSED = Case((after(80),), NONE, 2, ROLLED, start=1)


class LiveCase(NamedTuple):
    """What a `kafka:` replica passes on, since no table can know it; offset 1 is asked."""

    error: ErrorCode
    low_watermark: int
    user: str | None = None
    is_follower_frozen: bool = False


USERS = {"admin": "admin-secret", "deleter": "d", "describer": "p", "stranger": "s"}
# {user: what an ACL lets it do with the topic}
ACLS = {"deleter": "DELETE", "describer": "DESCRIBE"}
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
LIVE_CASES = {
    "a user with DELETE": LiveCase(NONE, 1, user="deleter"),
    "a user with DESCRIBE, without DELETE": LiveCase(REFUSED, -1, user="describer"),
    "a user with neither": LiveCase(REFUSED, -1, user="stranger"),
    "two replicas, the follower frozen": LiveCase(
        ErrorCode.REQUEST_TIMED_OUT, -1, is_follower_frozen=True
    ),
}
