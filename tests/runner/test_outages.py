"""Which failures Airflow should try again: real exceptions of the JVM, and of Python."""

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import AccessDeniedError, ConfigurationError, UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.runner.outages import explained, in_words, outage_of
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import iceberg_class, java_class
from tests.lake_sandbox import LakeSandbox

REFUSED = "java.net.ConnectException"
FULL = "No space left on device"


def java_error(spark: SparkSession, *classes: str, message: str = "why") -> Py4JJavaError:
    """What a call that throws these raises here, the first caused by the second and so on."""
    java: Any = None
    for name in reversed(classes):
        kind = java_class(spark, name)
        inner, java = java, kind(message)
        if inner is not None:
            java.initCause(inner)
    return Py4JJavaError("An error occurred while calling o1.append", java)


@pytest.mark.parametrize(
    "classes",
    [
        pytest.param([REFUSED], id="connection refused"),
        pytest.param(["java.lang.RuntimeException", "java.net.SocketException"], id="reset"),
        pytest.param(["java.net.SocketTimeoutException"], id="timeout"),
        pytest.param(["java.net.UnknownHostException"], id="no such host for now"),
        pytest.param(["java.lang.RuntimeException", "java.io.IOException"], id="full disk"),
        pytest.param(["java.lang.Error", "java.io.IOException"], id="full disk as Hadoop says it"),
        pytest.param(["java.nio.file.FileSystemException"], id="file system"),
        pytest.param(["java.sql.SQLTransientConnectionException"], id="transient by JDBC"),
        pytest.param(
            ["org.apache.iceberg.exceptions.ServiceUnavailableException"], id="REST catalog"
        ),
    ],
)
def test_an_outage_is_found_by_its_class(sandbox: LakeSandbox, classes: list[str]) -> None:
    if classes[0].endswith("ServiceUnavailableException"):
        gateway = sandbox.session.sparkContext._gateway
        none = gateway.new_array(gateway.jvm.Object, 0)
        error = Py4JJavaError("x", java_class(sandbox.session, classes[0])("why", none))
    else:
        error = java_error(sandbox.session, *classes)
    explanation = explained(error)
    assert isinstance(explanation, UnavailableError)
    assert explanation.__cause__ is error
    assert str(explanation).startswith("expected an answer of the catalog and its storage, found ")


@pytest.mark.parametrize(
    "classes",
    [
        pytest.param(["java.lang.IllegalStateException"], id="a bug"),
        pytest.param(["java.io.FileNotFoundException"], id="a file that is gone"),
        pytest.param(["java.io.IOException", "java.io.EOFException"], id="a file cut short"),
        pytest.param(["java.nio.file.AccessDeniedException"], id="access denied"),
        pytest.param(
            ["java.io.IOException", "org.apache.hadoop.security.AccessControlException"],
            id="access denied by Hadoop",
        ),
        pytest.param(["java.sql.SQLException"], id="a query that is wrong"),
        pytest.param(["java.net.MalformedURLException"], id="a URL that is none"),
    ],
)
def test_any_other_error_stays_what_it_is(sandbox: LakeSandbox, classes: list[str]) -> None:
    error = java_error(sandbox.session, *classes)
    assert explained(error) is error


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        pytest.param(OSError(errno.ENOSPC, FULL), True, id="full disk"),
        pytest.param(OSError(errno.EDQUOT, "Disk quota exceeded"), True, id="quota"),
        pytest.param(ConnectionResetError(errno.ECONNRESET, "reset"), True, id="reset"),
        pytest.param(TimeoutError(), True, id="timeout"),
        pytest.param(
            OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject"), True, id="S3"
        ),
        pytest.param(OSError("AWS Error ACCESS_DENIED during GetObject"), False, id="S3 denied"),
        pytest.param(PermissionError(errno.EACCES, "denied"), False, id="access denied"),
        pytest.param(FileNotFoundError(errno.ENOENT, "gone"), False, id="no such file"),
        pytest.param(OSError("Couldn't deserialize thrift"), False, id="a broken file"),
        pytest.param(KeyError("x"), False, id="a bug"),
        pytest.param(ConfigurationError("expected x"), False, id="an error of ours"),
    ],
)
def test_pythons_errors(error: BaseException, is_outage: bool) -> None:
    assert isinstance(explained(error), UnavailableError) is is_outage


def test_the_cause_of_a_cause_counts() -> None:
    error = ValueError("not written")
    error.__cause__ = OSError(errno.ENOSPC, FULL)
    assert outage_of(error) == f"OSError: [Errno {errno.ENOSPC}] {FULL}"


def _raise(batches: Any) -> Any:
    raise OSError(errno.ENOSPC, FULL)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            lambda spark: spark.range(1).mapInArrow(_raise, "id long").toArrow(), id="DataFrame"
        ),
        pytest.param(
            lambda spark: spark.sparkContext.parallelize([1]).map(_raise).collect(), id="RDD"
        ),
    ],
)
def test_a_full_disk_in_a_task_is_an_outage(
    sandbox: LakeSandbox, run: Callable[[SparkSession], pa.Table]
) -> None:
    with pytest.raises(Exception, match=FULL) as raised:
        run(sandbox.session)
    assert outage_of(raised.value) == f"OSError: [Errno {errno.ENOSPC}] {FULL}"


def test_a_locked_catalog_is_an_outage(sandbox: LakeSandbox) -> None:
    sandbox.topic("log.locked")
    session = sandbox.session.newSession()
    for name, value in sandbox.catalogs().items():
        session.conf.set(name, value.replace("busy_timeout=30000", "busy_timeout=50"))
    topic = load(session, TopicName("log", "locked"))
    uri = sandbox.catalogs()["spark.sql.catalog.lake.uri"]
    file = Path(uri.removeprefix("jdbc:sqlite:").partition("?")[0])
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(Py4JJavaError) as raised:
            compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: {"kafka.segment.ms": "5"})
    finally:
        other.rollback()
        other.close()
    assert "[SQLITE_BUSY]" in (outage_of(raised.value) or "")


def test_a_folder_that_may_not_be_written_is_named(sandbox: LakeSandbox) -> None:
    classes = ["org.apache.iceberg.exceptions.RuntimeIOException", "java.io.FileNotFoundException"]
    inner = java_error(
        sandbox.session, classes[1], message="/lake/t/metadata/1 (Permission denied)"
    )
    explanation = explained(inner)
    assert isinstance(explanation, AccessDeniedError)
    assert str(explanation) == (
        "expected files and folders of the table that this user may write, found "
        "java.io.FileNotFoundException: /lake/t/metadata/1 (Permission denied). Grant the user "
        "write access, and run again"
    )


def test_a_missing_driver_of_a_database_is_named_without_its_password(sandbox: LakeSandbox) -> None:
    drivers = java_class(sandbox.session, "java.sql.DriverManager")
    with pytest.raises(Py4JJavaError) as raised:
        drivers.getConnection("jdbc:mariadb://h/d?password=secret")
    explanation = explained(raised.value)
    assert isinstance(explanation, ConfigurationError)
    assert str(explanation) == (
        "expected the Java driver of the catalog's database, found none for jdbc:mariadb://h/d. "
        "Put the driver's jar into .ebbtide/extra-jars and run `make setup`, or name it in "
        "spark.jars (docs/stores.md)"
    )


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        ("28P01", AccessDeniedError, "these credentials may use, found java.sql.SQLException: why"),
        ("28000", AccessDeniedError, "these credentials may use, found java.sql.SQLException: why"),
        ("42501", AccessDeniedError, "these credentials may use, found java.sql.SQLException: why"),
        ("3D000", ConfigurationError, "in spark-defaults.conf names, found: why. Create it, or"),
    ],
)
def test_what_a_database_refuses_is_a_sentence(
    sandbox: LakeSandbox, state: str, kind: type[Exception], said: str
) -> None:
    error = Py4JJavaError("x", java_class(sandbox.session, "java.sql.SQLException")("why", state))
    explanation = explained(error)
    assert type(explanation) is kind
    assert said in str(explanation)


@pytest.mark.parametrize(
    ("status", "name", "kind", "said"),
    [
        (400, "BadRequestException", ConfigurationError, "Malformed request: why"),
        (400, "IllegalArgumentException", ConfigurationError, "IllegalArgumentException: why"),
        (404, "Unknown", ConfigurationError, "Unable to process (code: 404, type: Unknown): why"),
        (429, "Busy", UnavailableError, "Unable to process (code: 429, type: Busy): why"),
        (501, "Unsupported", ConfigurationError, "UnsupportedOperationException: why"),
        (502, "BadGateway", UnavailableError, "Unable to process (code: 502, type: BadGateway)"),
    ],
)
def test_what_a_rest_catalog_answers_is_a_sentence(
    sandbox: LakeSandbox, status: int, name: str, kind: type[Exception], said: str
) -> None:
    """By Iceberg's own handler of answers."""
    response = iceberg_class(sandbox.session, "rest.responses.ErrorResponse").builder()
    response = response.responseCode(status).withType(name).withMessage("why").build()
    handler = iceberg_class(sandbox.session, "rest.ErrorHandlers").defaultErrorHandler()
    with pytest.raises(Exception, match="why") as raised:  # Spark has classes of its own for some
        handler.accept(response)
    explanation = explained(raised.value)
    assert type(explanation) is kind
    assert said in str(explanation)


def test_an_error_of_java_is_told_with_its_cause(sandbox: LakeSandbox) -> None:
    error = java_error(sandbox.session, "java.lang.IllegalStateException", "java.lang.Error")
    assert explained(error) is error
    assert in_words(error) == "java.lang.IllegalStateException: why, caused by java.lang.Error: why"
    assert in_words(ValueError("why")) == "why"


@pytest.mark.parametrize(
    "entry", ["last snapshot log entry at", "the latest metadata log entry timestamp"]
)
def test_a_clock_that_went_back_is_named(sandbox: LakeSandbox, entry: str) -> None:
    """The messages are those of Iceberg's TableMetadata."""
    message = f"Invalid update timestamp 1764198000000: before {entry} 1764201600000"
    explanation = explained(
        java_error(sandbox.session, "java.lang.IllegalArgumentException", message=message)
    )
    assert isinstance(explanation, UnavailableError)
    assert str(explanation) == (
        "expected this machine's clock at or after the table's newest commit, found "
        "2025-11-26T23:00:00+00:00 and a commit of 2025-11-27T00:00:00+00:00: this clock went "
        "back, or another machine's clock is ahead. Nothing was committed. Correct the clock and "
        "run again"
    )
