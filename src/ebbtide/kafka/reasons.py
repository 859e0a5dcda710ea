"""The fixed reasons why a job has work on a topic or a partition, or has none."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The fixed reasons why there is work or none, as results and logs show them.

    A reason with numbers is a text, built from these numbers.
    """

    NOT_COMPACTED = "cleanup.policy has no compact"
    NOT_DELETED = "cleanup.policy has no delete"
    DISABLED = "ebbtide.enabled is false"
    CLEAN = "no new record since the last cleaner round, and no delete horizon is due"
    ALL_MARKED = "every record up to the log end offset was checked already"
    NO_LIMIT = "no retention limit is set"
    RETAINED = "no segment has expired since the last run"
    TIDY = "nothing was written since the last run, and no snapshot has expired"
    NO_TABLE_REPLICA = "ebbtide.replicas names no table"
    NO_REPLICA = "ebbtide.replicas names no replica"
    REPLICATED = "every replica is up to date"
    OTHERS_WRITE = "the table is adopted, and this job does not work on adopted tables"
    NOT_PLANNED = "the plan that is executed does not include it"
    UNDONE = "the run is undone already"
    HORIZON_REACHED = "a delete horizon is due"
    DEADLINE = "a later round would miss ebbtide.erase.deadline.ms"
    MARKER_OUTLIVED = "a transaction marker has no data left"
