"""A store on a bad day: what it says is tried again, or the job says that trying again helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from ebbtide.errors import AccessDeniedError, ConfigurationError, UnavailableError
from ebbtide.iceberg.catalog import java_table
from ebbtide.lake.reader import open_lake
from ebbtide.runner.outages import explained
from ebbtide.settings.names import TopicName
from ebbtide.stores.store import Store
from tests.lake_sandbox import LakeSandbox
from tests.services.cells import CellSandbox
from tests.services.faulty_s3 import (
    BUSY,
    DENIED,
    EXPIRED,
    FULL,
    Fault,
    FaultyS3,
    every,
    writes,
)
from tests.services.proxy import Refusal
from tests.services.s3_api import BUCKET, S3Api
from tests.stores.nights import NIGHT_MS, view_after_a_night
from tests.tables.logs import FIRST_MS
from tests.tables.nights import clean, ingest, mark

TIMEOUT_MS = 2000
UNKNOWN = Refusal(403, "NotSignedUp")
BAD_BUCKET = Refusal(400, "InvalidBucketName")
JOBS = ("ingest_segments", "mark_tombstones", "clean_log")


@pytest.fixture
def proxy(s3: S3Api) -> Iterator[FaultyS3]:
    with FaultyS3(s3.endpoint) as running:
        yield running


@pytest.fixture
def behind_proxy(s3: S3Api, proxy: FaultyS3, tmp_path: Path) -> LakeSandbox:
    """A lake whose store is asked through the proxy."""
    settings = {
        **s3.settings(),
        "warehouse": f"s3://{BUCKET}/{tmp_path.name}",
        "s3.endpoint": proxy.endpoint,
        "s3.retry.num-retries": "3",
        "s3.retry.min-wait-ms": "100",
        "s3.retry.max-wait-ms": "500",
        "http-client.apache.socket-timeout-ms": str(TIMEOUT_MS),
    }
    return CellSandbox(tmp_path / "behind-proxy", settings)


@pytest.mark.services
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(every(4, BUSY), id="every fourth request is refused as busy"),
        pytest.param(every(3, Refusal(seconds=0.5)), id="every third answer comes late"),
        pytest.param(every(40, Refusal(500, "InternalError", 2 * TIMEOUT_MS / 1000)), id="hangs"),
    ],
)
def test_a_night_on_a_store_with_hiccups_is_as_any_other(
    behind_proxy: LakeSandbox,
    sandbox: LakeSandbox,
    proxy: FaultyS3,
    cluster: str,
    log: Path,
    fault: Fault,
) -> None:
    name = TopicName(cluster, "t")
    ingest(sandbox.session, str(name), log, FIRST_MS)
    expected = view_after_a_night(sandbox, name)
    behind = behind_proxy.session
    with proxy.having(fault):
        ingest(behind, str(name), log, FIRST_MS)
        view = view_after_a_night(behind_proxy, name)
    assert view == expected
    assert proxy.refused >= 5


def of_data(fault: Fault) -> Fault:
    """A fault of data files; Iceberg tries for minutes to read a table's metadata."""
    return lambda asked: fault(asked) if "/data/" in asked.path else None


def job(number: int, lake: LakeSandbox, name: str, log: Path) -> None:
    """The first, second or third job of a topic's life."""
    spark = lake.session
    if number == 0:
        ingest(spark, name, log, FIRST_MS)
    elif number == 1:
        mark(spark, name)
    else:
        clean(spark, name, NIGHT_MS)


REFUSALS = [
    pytest.param(every(1, BUSY), UnavailableError, id="busy"),
    pytest.param(every(1, EXPIRED), UnavailableError, id="expired credentials"),
    pytest.param(writes(FULL), UnavailableError, id="full"),
    pytest.param(every(1, DENIED), AccessDeniedError, id="denied"),
    pytest.param(every(1, UNKNOWN), AccessDeniedError, id="denied by another code"),
]
# An answer to HEAD, by which Python begins, has no code: there it may pass.
REJECTED = pytest.param(every(1, BAD_BUCKET), ConfigurationError, id="a bucket that no store takes")


@pytest.mark.services
@pytest.mark.parametrize(("fault", "error"), REFUSALS)
def test_a_job_says_what_a_store_refuses_and_the_next_one_ends_it(
    behind_proxy: LakeSandbox,
    sandbox: LakeSandbox,
    proxy: FaultyS3,
    cluster: str,
    log: Path,
    fault: Fault,
    error: type[Exception],
) -> None:
    name = TopicName(cluster, "t")
    for number, what in enumerate(JOBS):
        with proxy.having(of_data(fault)), pytest.raises(Exception) as raised:  # noqa: PT011
            job(number, behind_proxy, str(name), log)
        assert proxy.refused, what
        assert type(explained(raised.value)) is error, what
        job(number, behind_proxy, str(name), log)
    ingest(sandbox.session, str(name), log, FIRST_MS)
    assert view_after_a_night(behind_proxy, name) == view_after_a_night(sandbox, name)


@pytest.mark.parametrize(("fault", "error"), [*REFUSALS, REJECTED])
def test_what_a_store_refuses_the_jvm_is_told_apart_too(
    behind_proxy: LakeSandbox, proxy: FaultyS3, fault: Fault, error: type[Exception]
) -> None:
    session = behind_proxy.session
    session.sql("CREATE TABLE IF NOT EXISTS lake.test.files (n INT)")
    io = java_table(session, "lake.test.files").io()
    with proxy.having(fault), pytest.raises(Py4JJavaError) as raised:
        io.newOutputFile(f"s3://{BUCKET}/{proxy.refused}.bin").createOrOverwrite().close()
    assert type(explained(raised.value)) is error


def test_an_answer_to_head_names_no_cause_so_we_name_those_there_are(
    behind_proxy: LakeSandbox, s3: S3Api, proxy: FaultyS3
) -> None:
    """Nothing else tells an expired token from a wrong region."""
    session = behind_proxy.session
    session.sql("CREATE TABLE IF NOT EXISTS lake.test.files (n INT)")
    asked = java_table(session, "lake.test.files").io().newInputFile(f"s3://{BUCKET}/f")
    settings = {**s3.settings(), "s3.endpoint": proxy.endpoint, "s3.retry.num-retries": "0"}
    way_out = "expected a request that the store accepts, found.*400.*expired.*region.*run again$"
    with proxy.having(every(1, EXPIRED)):
        with pytest.raises(Py4JJavaError) as raised:
            asked.getLength()
        explanation = explained(raised.value)
        with (
            pytest.raises(UnavailableError, match=way_out),
            Store.of(settings).reading(f"s3://{BUCKET}/f"),
        ):
            pass
    assert isinstance(explanation, UnavailableError)
    assert re.search(way_out, str(explanation))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(*refusal.values[:2], id=refusal.id)
        for refusal in REFUSALS
        if refusal.id != "full"
    ],
)
def test_airflows_side_says_what_a_store_refuses(
    behind_proxy: LakeSandbox,
    proxy: FaultyS3,
    cluster: str,
    log: Path,
    fault: Fault,
    error: type[Exception],
) -> None:
    name = f"{cluster}.t"
    ingest(behind_proxy.session, name, log, FIRST_MS)
    with open_lake(behind_proxy.home / "conf" / "spark-defaults.conf") as lake:
        with proxy.having(fault), pytest.raises(error):
            lake.topic(name)
        assert lake.contents(name)[0].records == 7
