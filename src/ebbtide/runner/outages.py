"""Recognize transient failures: a lock, a full disk, a service that does not answer.

The exception classes in the chain of causes decide, in Java and Python; messages are not specific
enough. Refused credentials and rejected requests are not transient.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from ebbtide.errors import AccessDeniedError, ConfigurationError, EbbtideError, UnavailableError
from ebbtide.moments import iso_seconds
from ebbtide.stores.catalogs import shown
from ebbtide.stores.store import WHY_UNNAMED

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
# Subclasses of transient errors that are not transient: a retry fails again.
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
# An object store's answer, by HTTP status and the store's own code.
_OF_AWS = "software.amazon.awssdk.awscore.exception.AwsServiceException"
_PASSING_CODES = frozenset(
    {"ExpiredToken", "RequestTimeTooSkewed", "RequestTimeout", "SlowDown", "TokenRefreshRequired"}
)
# A missing file is not a rejected request.
_MISSING_CODES = frozenset({"", "NoSuchKey", "NoSuchUpload"})
# A REST catalog's answer without a class of Iceberg's, and its rejections that have one.
_OF_REST = "org.apache.iceberg.exceptions.RESTException"
_REST_STATUS = re.compile(r"\(code: (\d{3}),")
_REJECTED = frozenset(
    {
        "org.apache.iceberg.exceptions.BadRequestException",
        "org.apache.iceberg.exceptions.UnprocessableEntityException",
    }
)
# Throws an exception of Java's library if the server's answer names it.
_REST_HANDLERS = "org.apache.iceberg.rest.ErrorHandlers"
_OF_JAVA = frozenset(
    {"java.lang.IllegalArgumentException", "java.lang.UnsupportedOperationException"}
)
# HTTP: request timeout, conflict, precondition failed, too many requests.
_MAY_PASS = frozenset({408, 409, 412, 429})
# A file or snapshot that existed when the work was planned.
_GONE = frozenset(
    {
        "java.io.FileNotFoundException",
        "java.nio.file.NoSuchFileException",
        "org.apache.iceberg.exceptions.NotFoundException",
    }
)
# Iceberg's TableMetadata: the table's newest commit is later than this machine's clock.
_CLOCK = re.compile(
    r"Invalid update timestamp (\d+): before .* (\d+)|Expected sorted .* log entries"
)
# A file system's message for a file or folder that the user may not write.
_NO_PERMISSION = re.compile(r"Permission denied|Read-only file system|Operation not permitted")
_OF_FILES = frozenset({"java.io.IOException", "org.apache.iceberg.exceptions.RuntimeIOException"})
_NO_SNAPSHOT = re.compile(r"Cannot find (?:a )?snapshot")
_SQL = "java.sql.SQLException"
_SQLITE = "org.sqlite.SQLiteException"
# SQLite's result codes: busy, locked, disk I/O error, disk full.
_SQLITE_CODES = frozenset({5, 6, 10, 13})
# SQLSTATE: connection lost, serialization and deadlock, too few resources, server stops or starts.
_SQL_STATES = re.compile(r"08(?!P01)|40001|40P01|53|57P0[123]")
# SQLSTATE: the login is refused, or lacks a privilege; there is no such database.
_SQL_DENIED = re.compile(r"28|42501")
_SQL_NO_DATABASE = "3D000"
# Java's DriverManager. Its SQLSTATE is 08001, like that of a lost connection.
_NO_DRIVER = re.compile(r"No suitable driver found for (\S+)")
_ERRNOS = frozenset(
    getattr(errno, name)
    for name in """
    EAGAIN EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EDQUOT EHOSTDOWN EHOSTUNREACH EINTR EIO EMFILE
    ENETDOWN ENETRESET ENETUNREACH ENFILE ENOBUFS ENOLCK ENOSPC EPIPE ESTALE ETIMEDOUT
    """.split()
)
# An error in a Python worker: Spark passes on only its text.
_IN_A_WORKER = re.compile(r"^(?:\w+\.)*\w*Error: (?:.*?)\[Errno (\d+)\].*$", re.MULTILINE)
# An object store's error has no errno in Python.
_OF_A_STORE = re.compile(
    r"AWS Error (?:NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING"
    r"|REQUEST_TIMEOUT|UNKNOWN)"
)


class _Thrown(NamedTuple):
    """One Java exception."""

    classes: tuple[str, ...]  # its class, then the superclasses
    message: str
    sql_code: int = 0
    sql_state: str = ""
    status: int = 0
    code: str = ""

    def in_words(self) -> str:
        """Format the class and message in one line."""
        return _first_line(f"{self.classes[0]}: {self.message}")


def explained(error: BaseException) -> BaseException:
    """Return an outage or a refusal as an EbbtideError, and any other error unchanged."""
    if isinstance(error, EbbtideError):
        return error
    thrown = _all_thrown(error)
    outcome: EbbtideError
    if (clock := clock_of(error)) is not None:
        outcome = UnavailableError(
            "expected this machine's clock at or after the table's newest commit, found "
            f"{clock}: this clock went back, or another machine's clock is ahead. Nothing was "
            "committed. Correct the clock and run again"
        )
    elif denied := _lines_of(thrown, _is_of_a_file_not_writable):
        outcome = AccessDeniedError(
            f"expected files and folders of the table that this user may write, found {denied[0]}. "
            "Grant the user write access, and run again"
        )
    elif refused := _lines_of(thrown, _is_denied):
        outcome = AccessDeniedError(
            f"expected a catalog and a store that these credentials may use, found {refused[-1]}. "
            "Correct the catalog's settings in spark-defaults.conf, or grant the credentials access"
        )
    elif lasting := next(filter(None, map(_wrong_setting, thrown)), ""):
        outcome = ConfigurationError(lasting)
    elif (outage := outage_of(error)) in _lines_of(thrown, _is_unnamed):
        outcome = UnavailableError(
            f"expected a request that the store accepts, found {outage}, {WHY_UNNAMED}"
        )
    elif outage is not None:
        outcome = UnavailableError(
            f"expected an answer of the catalog and its storage, found {outage}. Run again once "
            "they answer"
        )
    else:
        return error
    outcome.__cause__ = error
    return outcome


def in_words(error: BaseException) -> str:
    """Return the error's text. For a Java exception, return one line with its root cause.

    Py4J's own first line names only the call.
    """
    thrown = _all_thrown(error)
    if isinstance(error, EbbtideError) or not thrown:
        return str(error)
    return ", caused by ".join(dict.fromkeys(each.in_words() for each in (thrown[0], thrown[-1])))


def clock_of(error: BaseException) -> str | None:
    """Return both times if a commit failed because the machine clock is behind, or None."""
    for each in _all_thrown(error):
        if found := _CLOCK.search(each.message):
            if found[1] is None:
                return each.message
            times = [iso_seconds(int(ms)) for ms in found.groups()]
            return f"{times[0]} and a commit of {times[1]}"
    return None


def is_of_gone_files(error: BaseException) -> bool:
    """Return whether a table's file or snapshot was missing; other tools may have replaced it."""
    return any(
        _GONE.intersection(each.classes) or _NO_SNAPSHOT.search(each.message)
        for each in _all_thrown(error)
    )


def outage_of(error: BaseException) -> str | None:
    """Return the transient cause in one line, or None if the error is not transient."""
    thrown = _all_thrown(error)
    if any(_LASTING.intersection(each.classes) for each in thrown):
        return None
    passing = _lines_of(thrown, _is_passing)
    passing += [_first_line(message) for link in _chain(error) if (message := _of_python(link))]
    return passing[-1] if passing else None


def _lines_of(thrown: Sequence[_Thrown], is_wanted: Callable[[_Thrown], bool]) -> list[str]:
    return [each.in_words() for each in thrown if is_wanted(each)]


def _is_of_a_file_not_writable(thrown: _Thrown) -> bool:
    return bool(_OF_FILES.intersection(thrown.classes) and _NO_PERMISSION.search(thrown.message))


def _is_denied(thrown: _Thrown) -> bool:
    if _DENIED.intersection(thrown.classes) or _SQL_DENIED.match(thrown.sql_state):
        return True
    return thrown.status in (401, 403) and thrown.code not in _PASSING_CODES


def _wrong_setting(thrown: _Thrown) -> str:
    """Return the message for a wrong setting of a catalog; "" for any other error."""
    if (driver := _NO_DRIVER.search(thrown.message)) is not None:
        return (
            f"expected the Java driver of the catalog's database, found none for "
            f"{shown(driver[1])}. Put the driver's jar into .ebbtide/extra-jars and run `make "
            "setup`, or name it in spark.jars (docs/stores.md)"
        )
    if thrown.sql_state == _SQL_NO_DATABASE:
        return (
            "expected the database that the catalog's uri in spark-defaults.conf names, found: "
            f"{_first_line(thrown.message)}. Create it, or correct the uri"
        )
    if _is_rejected(thrown):
        return (
            "expected a catalog and a store that accept ebbtide's requests, found "
            f"{thrown.in_words()}. Correct the catalog's settings in spark-defaults.conf, or see "
            "the server's log"
        )
    return ""


def _is_rejected(thrown: _Thrown) -> bool:
    """Return whether a server rejected the request for good."""
    if _REJECTED.intersection(thrown.classes):
        return True
    if thrown.status not in range(400, 500) or thrown.status in _MAY_PASS:
        return False
    is_unnamed = thrown.code in _MISSING_CODES and thrown.classes[0] != _OF_REST
    return not is_unnamed and thrown.code not in _PASSING_CODES


def _is_passing(thrown: _Thrown) -> bool:
    if _SQLITE in thrown.classes:
        return thrown.sql_code in _SQLITE_CODES
    if thrown.classes[0] == _OF_REST and thrown.status:
        return thrown.status >= 500 or thrown.status in (408, 429)
    if thrown.status:
        is_known = thrown.status >= 500 or thrown.code in _PASSING_CODES
        return is_known or _is_unnamed(thrown)
    if _PASSING.intersection(thrown.classes):
        return True
    return _SQL in thrown.classes and bool(_SQL_STATES.match(thrown.sql_state))


def _is_unnamed(thrown: _Thrown) -> bool:
    """Return whether a store answered 400 without a code, as it does to a HEAD request."""
    return _OF_AWS in thrown.classes and thrown.status == 400 and not thrown.code


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


def _all_thrown(error: BaseException) -> list[_Thrown]:
    """Return the Java exceptions of an error and of its causes in Python."""
    return [each for link in _chain(error) for each in _thrown(link)]


def _thrown(error: BaseException) -> Iterator[_Thrown]:
    """Yield the Java exceptions of a Python error, with causes and suppressed exceptions."""
    first = error.java_exception if isinstance(error, Py4JJavaError) else None
    if isinstance(error, CapturedException):
        first = error._origin
    waiting = [first]
    for _ in range(100):  # causes may form a cycle
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
    if classes[0] == _OF_REST and (status := _REST_STATUS.search(message)):
        return _Thrown(tuple(classes), message, status=int(status[1]))
    if classes[0] in _OF_JAVA and _is_of_rest(java):
        return _Thrown(tuple(classes), message, status=400, code=classes[0])
    if _SQL not in classes:
        return _Thrown(tuple(classes), message)
    return _Thrown(tuple(classes), message, java.getErrorCode(), java.getSQLState() or "")


def _is_of_rest(java: Any) -> bool:
    frames = java.getStackTrace()
    return len(frames) > 0 and str(frames[0].getClassName()).startswith(_REST_HANDLERS)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
