"""All errors that ebbtide raises on purpose, in one tree by cause, and a job's exit codes.

A message says what was expected, what was found, where, and what to do about it. `transient` tells
Airflow whether running the same thing again can help.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Self

# The variable with the path of a file to which a job adds a JSON line for each cause that no row in
# runs records (of a plan, of refused arguments): topic or null, error class or null, message.
CAUSES_FILE = "EBBTIDE_CAUSES_FILE"


class ExitCode(IntEnum):
    """A job's exit codes."""

    DONE = 0
    FAILED = 1
    REFUSED = 2  # argparse's own, for what it refuses
    TRANSIENT = 75  # sysexits' EX_TEMPFAIL


class EbbtideError(Exception):
    """Root of every error raised on purpose."""

    transient = False


class SourceError(EbbtideError):
    """The source of an ingest is malformed or unexpected; `path` is the file, where it is one."""

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[type[Self], tuple[str, str | None]]:
        """Pickle the path too: errors come back from Spark's tasks."""
        return type(self), (str(self), self.path)


class CorruptSegmentError(SourceError):
    """Bytes in a segment file that cannot be what Kafka wrote there."""


class OversizedBatchError(CorruptSegmentError):
    """A batch that takes more memory when decompressed than a setting allows."""


class ForeignLogError(SourceError):
    """A source that is not the continuation of what the table holds."""


class OffsetGapError(SourceError):
    """Offsets are missing where the topic's cleanup.policy allows none to be."""


class ConfigurationError(EbbtideError):
    """A property whose value its topic cannot run with."""


class RequestError(EbbtideError):
    """A request or an argument that is not well formed."""


class MissingPageError(EbbtideError):
    """An address of a page that there is not."""


class UnknownTopicError(EbbtideError):
    """A topic that has no table."""


class ForeignChangeError(EbbtideError):
    """Somebody else changed a topic's tables, so that they no longer match the state."""


class StateError(EbbtideError):
    """A topic's state that is lost, edited or unreadable, or that a change would make wrong."""


class UnreadableTableError(EbbtideError):
    """A table that the catalog lists but that cannot be opened."""


class NotCoveredError(EbbtideError):
    """A case that this version refuses rather than handle wrongly."""


class UnfinishedWorkError(EbbtideError):
    """Work that a killed job left on the topic, beside which another job may not begin."""


class SafetyError(EbbtideError):
    """A plan that would do more than a guard allows."""


class PlanError(EbbtideError):
    """A kept plan that may not be executed: unknown, closed, edited, or without an approval."""


class PlanExceededError(EbbtideError):
    """An execution that would remove more than its plan has, or repair otherwise."""


class HoldError(EbbtideError):
    """Holds that cannot be read, or that forbid what was asked."""


class AccessDeniedError(EbbtideError):
    """A service or a store that refuses the credentials it was given."""


class CommitConflictError(EbbtideError):
    """Another writer moved the table since it was read; reading again helps."""

    transient = True


class UnavailableError(EbbtideError):
    """A service that did not answer; later it may."""

    transient = True


def is_transient(error: BaseException) -> bool:
    """Return whether running the same thing again can help; an unforeseen error never says so."""
    return isinstance(error, EbbtideError) and error.transient


def standing_for(errors: Sequence[EbbtideError]) -> EbbtideError | None:
    """Return one error for the errors of several partitions or replicas; None for none.

    A retry is worth trying if it can help one of them, so the class is that of the first such
    error; its message has all of them in one line, each of another class with that class.
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
    """Return the error class that `runs` names; None for any other name."""
    kind = globals().get(name or "")
    return kind if isinstance(kind, type) and issubclass(kind, EbbtideError) else None


def exit_code(errors: Iterable[BaseException | None]) -> ExitCode:
    """Return a job's exit code after these errors of its topics."""
    failures = [error for error in errors if error is not None]
    if not failures:
        return ExitCode.DONE
    return ExitCode.TRANSIENT if any(map(is_transient, failures)) else ExitCode.FAILED
