"""All errors that ebbtide raises on purpose, in one tree by cause, and a job's exit codes.

A message has what was expected, what was found, where, and what to do. `transient` tells Airflow
whether a retry can help.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Self

# Environment variable with the path of a file for causes that have no row in `runs` (of a plan, of
# refused arguments). A job appends one JSON line per cause: topic or null, error class or null,
# message.
CAUSES_FILE = "EBBTIDE_CAUSES_FILE"


class ExitCode(IntEnum):
    """A job's exit codes."""

    DONE = 0
    FAILED = 1
    REFUSED = 2  # argparse's exit code for refused arguments
    TRANSIENT = 75  # sysexits' EX_TEMPFAIL


class EbbtideError(Exception):
    """Root of every error raised on purpose."""

    transient = False


class SourceError(EbbtideError):
    """The source of an ingest is malformed or unexpected; `path` is the file, if there is one."""

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[type[Self], tuple[str, str | None]]:
        """Pickle the path too: Spark's tasks return errors pickled."""
        return type(self), (str(self), self.path)


class CorruptSegmentError(SourceError):
    """Bytes in a segment file that Kafka did not write there."""


class OversizedBatchError(CorruptSegmentError):
    """A batch that takes more memory, decompressed, than a setting allows."""


class ForeignLogError(SourceError):
    """A source that does not continue the log in the table."""


class OffsetGapError(SourceError):
    """Missing offsets, although the topic's cleanup.policy allows no gaps."""


class ConfigurationError(EbbtideError):
    """A property or setting with a value that cannot be used."""


class RequestError(EbbtideError):
    """A request or an argument that is malformed or not possible."""


class MissingPageError(EbbtideError):
    """The address of a page that does not exist."""


class UnknownTopicError(EbbtideError):
    """A topic that has no table."""


class ForeignChangeError(EbbtideError):
    """Another tool or person changed a topic's tables, which no longer match the state."""


class StateError(EbbtideError):
    """A topic's state that is lost, changed or unreadable, or that a change would make wrong."""


class UnreadableTableError(EbbtideError):
    """A table that the catalog lists but that cannot be opened."""


class NotCoveredError(EbbtideError):
    """A case that this version refuses, because it would handle it wrongly."""


class UnfinishedWorkError(EbbtideError):
    """Work in flight on the topic, during which another job may not start."""


class SafetyError(EbbtideError):
    """A plan that would do more than a guard allows."""


class PlanError(EbbtideError):
    """A stored plan that may not be executed: unknown, closed, changed, or not approved."""


class PlanExceededError(EbbtideError):
    """An execution that would remove more than its plan lists, or repair differently."""


class HoldError(EbbtideError):
    """Holds that cannot be read, or that forbid the request."""


class AccessDeniedError(EbbtideError):
    """A service or a store that refuses the credentials."""


class CommitConflictError(EbbtideError):
    """Another writer changed the table since it was read; a retry reads it again."""

    transient = True


class UnavailableError(EbbtideError):
    """A service that did not answer; it may later."""

    transient = True


def is_transient(error: BaseException) -> bool:
    """Return whether a retry can help; False for unexpected errors."""
    return isinstance(error, EbbtideError) and error.transient


def standing_for(errors: Sequence[EbbtideError]) -> EbbtideError | None:
    """Return one error for the errors of several partitions or replicas, or None for none.

    Its class is that of the first transient error, if there is one: a retry is worthwhile if it can
    help one of them. Its message has all messages in one line; those of other classes begin with
    their class.
    """
    if len(errors) <= 1:
        return next(iter(errors), None)
    kind = type(next((error for error in errors if error.transient), errors[0]))
    return kind(
        "; ".join(
            str(error) if type(error) is kind else f"{type(error).__name__}: {error}"
            for error in errors
        )
    )


def class_named(name: str | None) -> type[EbbtideError] | None:
    """Return the error class with a name in `runs`, or None if there is none."""
    kind = globals().get(name or "")
    return kind if isinstance(kind, type) and issubclass(kind, EbbtideError) else None


def exit_code(errors: Iterable[BaseException | None]) -> ExitCode:
    """Return a job's exit code after these errors of its topics."""
    failures = [error for error in errors if error is not None]
    if not failures:
        return ExitCode.DONE
    return ExitCode.TRANSIENT if any(map(is_transient, failures)) else ExitCode.FAILED
