"""Recognise failures that pass by themselves: a lock, a full disk, a service without an answer.

They are recognised by the classes in the chain of causes, of Java and of Python; a message tells
too little. A service that refuses the credentials is told apart from these.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from ebbtide.errors import AccessDeniedError, EbbtideError, UnavailableError
from ebbtide.moments import iso_seconds

_PASSING = frozenset(
    {
        "java.io.IOException",
        "java.net.SocketException",
        "java.net.SocketTimeoutException",
        "java.net.UnknownHostException",
        "java.nio.file.FileSystemException",
        "java.sql.SQLRecoverableException",
        "java.sql.SQLTransientException",
        "java.util.concurrent.TimeoutException",
        "org.apache.iceberg.exceptions.RuntimeIOException",
        "org.apache.iceberg.exceptions.ServiceFailureException",
        "org.apache.iceberg.exceptions.ServiceUnavailableException",
        "org.apache.iceberg.exceptions.CommitStateUnknownException",
        "software.amazon.awssdk.core.exception.RetryableException",
        "software.amazon.awssdk.core.exception.ApiCallTimeoutException",
    }
)
_DENIED = frozenset(
    {
        "org.apache.iceberg.exceptions.ForbiddenException",
        "org.apache.iceberg.exceptions.NotAuthorizedException",
    }
)
# Subclasses of passing errors that do not pass: a retry meets them again.
_LASTING = _DENIED | frozenset(
    {
        "com.fasterxml.jackson.core.JacksonException",
        "java.io.CharConversionException",
        "java.io.EOFException",
        "java.io.FileNotFoundException",
        "java.io.ObjectStreamException",
        "java.net.MalformedURLException",
        "java.nio.charset.CharacterCodingException",
        "java.nio.file.AccessDeniedException",
        "java.nio.file.FileAlreadyExistsException",
        "java.nio.file.NoSuchFileException",
        "java.nio.file.NotDirectoryException",
        "java.security.AccessControlException",
        "java.util.zip.ZipException",
        "org.apache.hadoop.fs.FileAlreadyExistsException",
        "org.apache.hadoop.fs.PathIOException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        "org.apache.hadoop.security.AccessControlException",
        "org.apache.iceberg.exceptions.NotFoundException",
    }
)
# What an object store answered, by HTTP's status and the store's own code.
_OF_AWS = "software.amazon.awssdk.awscore.exception.AwsServiceException"
_PASSING_CODES = frozenset({"ExpiredToken", "RequestTimeout", "SlowDown", "TokenRefreshRequired"})
# A file or a snapshot that was there when the work was planned.
_GONE = frozenset(
    {
        "java.io.FileNotFoundException",
        "java.nio.file.NoSuchFileException",
        "org.apache.iceberg.exceptions.NotFoundException",
    }
)
# Iceberg's TableMetadata: a table whose newest commit lies in this machine's future.
_CLOCK = re.compile(
    r"Invalid update timestamp (\d+): before .* (\d+)|Expected sorted .* log entries"
)
# What a file system says of a file or folder that may not be written.
_NO_PERMISSION = re.compile(r"Permission denied|Read-only file system|Operation not permitted")
_OF_FILES = frozenset({"java.io.IOException", "org.apache.iceberg.exceptions.RuntimeIOException"})
_NO_SNAPSHOT = re.compile(r"Cannot find (?:a )?snapshot")
_SQL = "java.sql.SQLException"
_SQLITE = "org.sqlite.SQLiteException"
# SQLite's result codes: busy, locked, disk I/O error, disk full.
_SQLITE_CODES = frozenset({5, 6, 10, 13})
# SQLSTATE: connection lost, serialization and deadlock, too few resources, server going or coming.
_SQL_STATES = re.compile(r"08(?!P01)|40001|40P01|53|57P0[123]")
_ERRNOS = frozenset(
    getattr(errno, name)
    for name in """
    EAGAIN EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EDQUOT EHOSTDOWN EHOSTUNREACH EINTR EIO EMFILE
    ENETDOWN ENETRESET ENETUNREACH ENFILE ENOBUFS ENOLCK ENOSPC EPIPE ESTALE ETIMEDOUT
    """.split()
)
# In a Python worker: Spark hands on the text of the error only.
_IN_A_WORKER = re.compile(r"^(?:\w+\.)*\w*Error: (?:.*?)\[Errno (\d+)\].*$", re.MULTILINE)
# An object store's error has no number in Python.
_OF_A_STORE = re.compile(
    r"AWS Error (?:NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING"
    r"|REQUEST_TIMEOUT|UNKNOWN)"
)


class _Thrown(NamedTuple):
    """One Java exception; `classes` are its own and those it extends."""

    classes: tuple[str, ...]
    message: str
    sql_code: int = 0
    sql_state: str = ""
    status: int = 0
    code: str = ""

    def in_words(self) -> str:
        """Format the class and message."""
        return f"{self.classes[0]}: {self.message}"


def explained(error: BaseException) -> BaseException:
    """Return an outage or a refusal as an error of ours, and any other error unchanged."""
    if isinstance(error, EbbtideError):
        return error
    outcome: EbbtideError
    if (clock := clock_of(error)) is not None:
        outcome = UnavailableError(
            "expected this machine's clock at or after the table's newest commit, found "
            f"{clock}: the clock went back, or another machine's is ahead. Nothing was committed. "
            "Correct the clock and run again"
        )
    elif (denied := _no_permission(error)) is not None:
        outcome = AccessDeniedError(
            f"expected files and folders of the table that this user may write, found {denied}; "
            "grant it, and run again"
        )
    elif (refused := _refusal_of(error)) is not None:
        outcome = AccessDeniedError(
            f"expected a catalog and a store that these credentials may use, found {refused}; "
            "correct the catalog's settings, or grant them access"
        )
    elif (outage := outage_of(error)) is not None:
        outcome = UnavailableError(
            f"expected the catalog and its storage to answer, found {outage}; run again once they "
            "do"
        )
    else:
        return error
    outcome.__cause__ = error
    return outcome


def in_words(error: BaseException) -> str:
    """Return the error's text; of Java's in a line, with its first cause.

    Py4J itself names only the call in its first line.
    """
    thrown = [each for link in _chain(error) for each in _thrown(link)]
    if isinstance(error, EbbtideError) or not thrown:
        return str(error)
    words = list(dict.fromkeys(_first_line(each.in_words()) for each in (thrown[0], thrown[-1])))
    return ", caused by ".join(words)


def clock_of(error: BaseException) -> str | None:
    """Return what Iceberg says of a commit that is older than the table's newest."""
    for link in _chain(error):
        for each in _thrown(link):
            if found := _CLOCK.search(each.message):
                if found[1] is None:
                    return each.message
                times = [iso_seconds(int(ms)) for ms in found.groups()]
                return f"{times[0]} with a commit of {times[1]}"
    return None


def _no_permission(error: BaseException) -> str | None:
    """Return what a file system denied."""
    for link in _chain(error):
        for each in _thrown(link):
            if _OF_FILES.intersection(each.classes) and _NO_PERMISSION.search(each.message):
                return _first_line(each.in_words())
    return None


def _refusal_of(error: BaseException) -> str | None:
    """Return in one line what refused the credentials; None where nothing did."""
    thrown = [each for link in _chain(error) for each in _thrown(link)]
    refused = [each.in_words() for each in thrown if _is_denied(each)]
    return _first_line(refused[-1]) if refused else None


def _is_denied(thrown: _Thrown) -> bool:
    if _DENIED.intersection(thrown.classes):
        return True
    return thrown.status in (401, 403) and thrown.code not in _PASSING_CODES


def is_of_gone_files(error: BaseException) -> bool:
    """Return whether a table's file or snapshot was not there: other tools may have replaced it."""
    thrown = [each for link in _chain(error) for each in _thrown(link)]
    return any(
        _GONE.intersection(each.classes) or _NO_SNAPSHOT.search(each.message) for each in thrown
    )


def outage_of(error: BaseException) -> str | None:
    """Return in one line the cause that passes by itself; None for any other error."""
    chain = list(_chain(error))
    thrown = [each for link in chain for each in _thrown(link)]
    if any(_LASTING.intersection(each.classes) for each in thrown):
        return None
    passing = [each.in_words() for each in thrown if _is_passing(each)]
    passing += [message for link in chain if (message := _of_python(link))]
    return _first_line(passing[-1]) if passing else None


def _is_passing(thrown: _Thrown) -> bool:
    if _SQLITE in thrown.classes:
        return thrown.sql_code in _SQLITE_CODES
    if thrown.status:  # an answer to HEAD has no code, also where a token has expired
        is_unnamed = thrown.status == 400 and not thrown.code
        return thrown.status >= 500 or is_unnamed or thrown.code in _PASSING_CODES
    if _PASSING.intersection(thrown.classes):
        return True
    return _SQL in thrown.classes and bool(_SQL_STATES.match(thrown.sql_state))


def _of_python(error: BaseException) -> str | None:
    if isinstance(error, OSError):
        is_passing = error.errno in _ERRNOS or isinstance(error, TimeoutError | ConnectionError)
        is_passing = is_passing or (error.errno is None and bool(_OF_A_STORE.search(str(error))))
        return f"{type(error).__name__}: {error}" if is_passing else None
    if not isinstance(error, Py4JError | CapturedException):
        return None
    matches = [match for match in _IN_A_WORKER.finditer(str(error)) if int(match[1]) in _ERRNOS]
    return matches[-1].group() if matches else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes in Python, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _thrown(error: BaseException) -> Iterator[_Thrown]:
    """Yield what Java threw behind a Python error, with causes and suppressed exceptions."""
    first = error.java_exception if isinstance(error, Py4JJavaError) else None
    if isinstance(error, CapturedException):
        first = error._origin
    waiting = [first]
    for _ in range(100):  # a chain may be a circle
        if not waiting:
            return
        java = waiting.pop(0)
        if java is None:
            continue
        yield _described(java)
        waiting += [*java.getSuppressed(), java.getCause()]


def _described(java: Any) -> _Thrown:
    classes = []
    kind = java.getClass()
    while kind is not None:
        classes.append(kind.getName())
        kind = kind.getSuperclass()
    message = str(java.getMessage() or "no message")
    if _OF_AWS in classes:
        details = java.awsErrorDetails()
        code = "" if details is None else details.errorCode() or ""
        return _Thrown(tuple(classes), message, status=java.statusCode(), code=code)
    if _SQL not in classes:
        return _Thrown(tuple(classes), message)
    return _Thrown(tuple(classes), message, java.getErrorCode(), java.getSQLState() or "")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
