"""The fixed reasons why a job has work on a topic or a partition, or none."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The fixed reasons why there is work or none, as results and logs show them.

    A reason with numbers is text, built where the numbers are known.
    """

    NOT_COMPACTED = "cleanup.policy has no compact"
    NOT_DELETED = "cleanup.policy has no delete"
    DISABLED = "ebbtide.enabled is false"
    CLEAN = "cleaned up to the log end offset, and no delete horizon is due"
    ALL_MARKED = "every record up to the log end offset is judged already"
    NO_LIMIT = "no retention limit is set"
    RETAINED = "no segment has reached its limit since the last time"
    TIDY = "nothing was written since the last time, and no snapshot is past its age"
    NO_TABLE_REPLICA = "ebbtide.replicas names no table"
    NO_REPLICA = "ebbtide.replicas names no other copy"
    REPLICATED = "every replica holds all of it"
    OTHERS_WRITE = "others write the table, and this job leaves such tables alone"
    NOT_PLANNED = "the plan that is executed does not have it"
    UNDONE = "the run is undone already"
    HORIZON_REACHED = "a delete horizon is reached"
    MARKER_OUTLIVED = "a transaction marker has outlived its data"
