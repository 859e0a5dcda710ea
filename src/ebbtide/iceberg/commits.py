"""All commits of ebbtide go through `commit`, each under the name of its step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError

from ebbtide.errors import CommitConflictError

T = TypeVar("T")

log = logging.getLogger(__name__)

# In the summary of every snapshot that ebbtide commits to a topic's data tables.
OWN = "ebbtide.own"
# In the summary of snapshots that remove records, also the job that committed them.
JOB = "ebbtide.job"
# In the summary of a snapshot of an adopted table, how many rows it removes, and of which topic.
ROWS = "ebbtide.rows"
TOPIC = "ebbtide.topic"
# In the summary of a snapshot that deletes rows of a killed ingest, at or above the log end offset.
LEFT = "ebbtide.left"
# After a 5xx or a lost connection: it is unknown whether the catalog made the commit.
_UNKNOWN = "org.apache.iceberg.exceptions.CommitStateUnknownException"
# Iceberg itself retries the second. For all three: read the table again, then decide again.
_CONFLICTS = (
    "org.apache.iceberg.exceptions.ValidationException",
    "org.apache.iceberg.exceptions.CommitFailedException",
    _UNKNOWN,
)
_REFUSALS = (
    "org.apache.iceberg.exceptions.ForbiddenException",
    "org.apache.hadoop.security.AccessControlException",
    "java.security.AccessControlException",
    "java.nio.file.AccessDeniedException",
)


class Step(StrEnum):
    """Commit points. A job may be killed before any of them and be run again."""

    PROBE = "probe"
    CREATE_TOPIC = "create_topic"
    STATE_TABLE = "state_table"
    FOLLOW_SETTINGS = "follow_settings"
    CONFIGURE_TOPIC = "configure_topic"
    LIVE_SLICE = "live_slice"
    COPY_SLICE = "copy_slice"
    COPY_SEEN = "copy_seen"
    LEFT_CLAIMED = "left_claimed"
    LEFT_BATCHES = "left_batches"
    LEFT_RECORDS = "left_records"
    LEFT_STATE = "left_state"
    FILES_SLICE = "files_slice"
    INGEST_RECORDS = "ingest_records"
    INGEST_BATCHES = "ingest_batches"
    INGEST_STATE = "ingest_state"
    MARK_AGAIN = "mark_again"
    QUARANTINE_TABLE = "quarantine_table"
    QUARANTINE_RECORDS = "quarantine_records"
    QUARANTINE_STATE = "quarantine_state"
    MARK_RECORDS = "mark_records"
    MARK_STATE = "mark_state"
    ADOPTED_STATE = "adopted_state"
    ADOPTED_LAYOUT = "adopted_layout"
    ADOPTED_ROWS_SEEN = "adopted_rows_seen"
    ABANDONED = "abandoned"
    ROUND_STARTED = "round_started"
    ROUND_RECORDS = "round_records"
    ROUND_RECORDS_DONE = "round_records_done"
    ROUND_BATCHES = "round_batches"
    ROUND_STATE = "round_state"
    LOG_START_OFFSET = "log_start_offset"
    TRUNCATE_RECORD_SEGMENTS = "truncate_record_segments"
    TRUNCATE_RECORDS = "truncate_records"
    TRUNCATE_BATCHES = "truncate_batches"
    EXPIRE_RECORDS = "expire_records"
    NEXT_EXPIRY = "next_expiry"
    REPLICATE_STARTED = "replicate_started"
    REPLICATE_LEFTOVERS = "replicate_leftovers"
    REPLICATE_RECORDS = "replicate_records"
    REPLICATE_BATCHES = "replicate_batches"
    REPLICATE_STATE = "replicate_state"
    MERGE_STARTED = "merge_started"
    MERGE_RECORDS = "merge_records"
    MERGE_BATCHES = "merge_batches"
    MERGE_STATE = "merge_state"
    REWRITE_FILES = "rewrite_files"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    TIDIED = "tidied"
    DELETES_FOLLOWED = "deletes_followed"
    EXPORT_CHECKPOINTS = "export_checkpoints"
    EXPORT_TARGET = "export_target"
    APPEND_STARTED = "append_started"
    APPEND_RECORDS = "append_records"
    APPEND_BATCHES = "append_batches"
    APPEND_STATE = "append_state"
    ERASE_RECORDS = "erase_records"
    ERASURE_ROWS = "erasure_rows"
    CERTIFICATE = "certificate"
    HEADERS_REBUILT = "headers_rebuilt"
    LOST_ROUND_STATE = "lost_round_state"
    TAGS_RELEASED = "tags_released"
    LOST_SNAPSHOTS = "lost_snapshots"
    REPAIR_RECORDS = "repair_records"
    REPAIR_BATCHES = "repair_batches"
    REPAIR_STATE = "repair_state"
    ROWS_REMOVING = "rows_removing"
    ROWS_COUNTED = "rows_counted"
    UNDO_POINT = "undo_point"
    UNDO_STARTED = "undo_started"
    UNDO_TAGGED = "undo_tagged"
    UNDO_RECORDS = "undo_records"
    UNDO_BATCHES = "undo_batches"
    UNDO_NOTED = "undo_noted"
    UNDO_STATE = "undo_state"
    UNDO_TOLD = "undo_told"
    PLAN_ROW = "plan_row"
    PLAN_EVENT = "plan_event"
    HOLD_EVENT = "hold_event"
    HELD_TABLE = "held_table"
    HELD_ROWS = "held_rows"
    HELD_ENDED = "held_ended"
    RUN_ROW = "run_row"


@dataclass(frozen=True, slots=True)
class Commits:
    """Ids of the snapshots that a job commits while it works on a topic, in order."""

    job: str
    run_id: str = ""
    snapshots: list[int] = field(default_factory=list)


_commits: ContextVar[Commits | None] = ContextVar("commits", default=None)


@contextmanager
def commits_of(job: str, run_id: str = "") -> Iterator[Commits]:
    """Gather the snapshots that this thread commits, also if the block fails."""
    commits = Commits(job, run_id)
    token = _commits.set(commits)
    try:
        yield commits
    finally:
        _commits.reset(token)


def current_commits() -> Commits | None:
    """Return the commits of the job at work so far, or None outside a job."""
    return _commits.get()


def before_commit(step: Step) -> None:
    """Do nothing. Called before each commit, so that tests can stop a job there."""


def commit(step: Step, action: Callable[[], T]) -> T:
    """Run the commit and log it, with the snapshot's id if `action` returns an int.

    Raise CommitConflictError, which is worth a retry, if another writer was faster or if the
    catalog does not say whether it made the commit.
    """
    before_commit(step)
    started = time.monotonic()
    try:
        done = action()
    except Exception as error:
        if unknown := _message_of(error, (_UNKNOWN,)):
            answer = unknown.partition("\n")[0]  # below it, advice on orphan files
            raise CommitConflictError(
                f"expected an answer of the catalog to commit {step}, found: {answer}. The "
                "catalog may have made the commit. Run the job again, which finds out. If "
                "this error comes back, see the catalog's log"
            ) from error
        if conflict := conflict_of(error):
            raise CommitConflictError(
                f"expected no other commit before {step}, found that another writer committed "
                f"first: {conflict}. Run the job again"
            ) from error
        raise
    snapshot = ""
    if isinstance(done, int):
        snapshot = f", snapshot {done}"
        if (commits := _commits.get()) is not None:
            commits.snapshots.append(done)
    log.info("committed %s%s in %.1f s", step, snapshot, time.monotonic() - started)
    return done


def conflict_of(error: BaseException) -> str | None:
    """Return the message of the Java error if it is a commit conflict, or None."""
    return _message_of(error, _CONFLICTS)


def refusal_of(error: BaseException) -> str | None:
    """Return the message of the Java error if a catalog or file system denied access, or None."""
    return _message_of(error, _REFUSALS)


def _message_of(error: BaseException, classes: Sequence[str]) -> str | None:
    if not isinstance(error, Py4JJavaError):
        return None
    cause: Any = error.java_exception
    while cause is not None:
        if cause.getClass().getName() in classes:
            return str(cause.getMessage())
        cause = cause.getCause()
    return None


def own_summary(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the summary for one of ebbtide's snapshots, `properties` included."""
    commits = _commits.get()
    job = {} if commits is None else {JOB: commits.job}
    return {OWN: "true", **job, **properties}
