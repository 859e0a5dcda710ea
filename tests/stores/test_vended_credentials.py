"""Credentials that a REST catalog vends with a table, and that expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.errors import UnavailableError
from ebbtide.iceberg import catalog as tables_of_catalogs
from ebbtide.lake.reader import open_lake
from ebbtide.settings.names import TopicName
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING
from tests.lake_sandbox import LakeSandbox
from tests.services.cells import CellSandbox
from tests.services.faulty_s3 import FaultyS3
from tests.services.rest_catalog import RestCatalog
from tests.services.s3_api import BUCKET, REGION, S3Api
from tests.stores.credentials import Signature, VendedCheck, VendingCatalog
from tests.stores.nights import NIGHT_MS, view_after_a_night
from tests.tables.logs import FIRST_MS
from tests.tables.nights import clean, ingest, mark

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def store(s3: S3Api) -> Iterator[FaultyS3]:
    with FaultyS3(s3.endpoint) as running:
        yield running


@pytest.fixture
def check() -> VendedCheck:
    return VendedCheck()


@pytest.fixture(params=["config", "storage-credentials"])
def vending(
    request: pytest.FixtureRequest,
    s3: S3Api,
    store: FaultyS3,
    check: VendedCheck,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LakeSandbox]:
    """A lake whose settings hold no keys; its catalog vends them.

    A token lasts longer than a table stays open; here both end at once.
    """
    monkeypatch.setattr(tables_of_catalogs, "_OPEN_FOR_S", 0)
    settings = {**s3.settings(), "s3.endpoint": store.endpoint, "s3.retry.num-retries": "1"}
    without_keys = {name: settings[name] for name in settings if "key" not in name}
    warehouse = f"s3://{BUCKET}/{tmp_path.name}"
    is_by_prefix = request.param == "storage-credentials"
    with (
        RestCatalog(tmp_path, warehouse, s3.settings()) as rest,
        VendingCatalog(rest.settings()["uri"], check, by_prefix=is_by_prefix) as catalog,
        store.having(check),
    ):
        lake = {"type": "rest", "uri": catalog.endpoint, **without_keys}
        sandbox = CellSandbox(tmp_path / "vending", lake)
        if is_by_prefix:  # one of the two by tasks instead of the driver's threads
            sandbox.session.conf.set(DRIVER_ROWS_SETTING, "0")
        yield sandbox


def test_a_night_needs_no_credentials_beside_the_vended_ones(
    vending: LakeSandbox,
    sandbox: LakeSandbox,
    store: FaultyS3,
    check: VendedCheck,
    cluster: str,
    log: Path,
) -> None:
    name = TopicName(cluster, "t")
    for lake in (sandbox, vending):
        ingest(lake.session, str(name), log, FIRST_MS)
    check.issue()
    view = view_after_a_night(vending, name)
    with open_lake(vending.home / "conf" / "spark-defaults.conf") as lake:
        assert lake.live_rows(str(name)) == {0: 5}
    assert view == view_after_a_night(sandbox, name)
    assert store.refused == 0
    tokens = ("token-1", "token-2")
    assert check.seen == {Signature("vended", REGION, token) for token in tokens}


def test_a_token_that_expires_while_a_job_reads_is_asked_for_anew(
    vending: LakeSandbox, sandbox: LakeSandbox, check: VendedCheck, cluster: str, log: Path
) -> None:
    name = TopicName(cluster, "t")
    for lake in (sandbox, vending):
        ingest(lake.session, str(name), log, FIRST_MS)
        mark(lake.session, str(name))
    check.lasts = 3
    with pytest.raises(UnavailableError, match="ExpiredToken"):
        clean(vending.session, str(name), NIGHT_MS)
    assert view_after_a_night(vending, name) == view_after_a_night(sandbox, name)
