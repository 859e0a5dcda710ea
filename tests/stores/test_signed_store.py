"""A store of another maker that checks each request's signature."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.errors import AccessDeniedError
from ebbtide.lake.reader import open_lake
from ebbtide.runner.outages import explained
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.services.cells import CellSandbox
from tests.services.s3_api import BUCKET
from tests.services.s3_proxy import S3Proxy
from tests.stores.nights import NIGHT_MS, view_after_a_night
from tests.tables.logs import FIRST_MS
from tests.tables.nights import clean, ingest

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Proxy]:
    with S3Proxy(tmp_path_factory.mktemp("s3proxy")) as server:
        yield server


def lake_in(store: S3Proxy, home: Path, prefix: str) -> LakeSandbox:
    """Return a lake whose files are in the store."""
    return CellSandbox(home, {**store.settings(), "warehouse": f"s3://{BUCKET}/{prefix}"})


def test_a_night_leaves_there_what_it_leaves_on_a_disk(
    store: S3Proxy, sandbox: LakeSandbox, cluster: str, log: Path, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    lake = lake_in(store, tmp_path / "home", cluster)
    for lake_sandbox in (sandbox, lake):
        ingest(lake_sandbox.session, str(name), log, FIRST_MS)
    assert view_after_a_night(lake, name) == view_after_a_night(sandbox, name)
    with open_lake(lake.home / "conf" / "spark-defaults.conf") as opened:
        contents = opened.contents(str(name))[0]
        assert (contents.records, contents.file_bytes > 0) == (5, True)


@pytest.mark.parametrize("wrong", ["access-key-id", "secret-access-key"])
def test_a_wrong_key_is_refused_in_a_sentence(
    store: S3Proxy, cluster: str, log: Path, tmp_path: Path, wrong: str
) -> None:
    name = f"{cluster}.t"
    lake = lake_in(store, tmp_path / "home", cluster)
    ingest(lake.session, name, log, FIRST_MS)
    with (lake.home / "conf" / "spark-defaults.conf").open("a") as file:
        file.write(f"spark.sql.catalog.lake.s3.{wrong} wrong\n")
    with (
        open_lake(lake.home / "conf" / "spark-defaults.conf") as opened,
        pytest.raises(AccessDeniedError, match=r"^.*expected a store that these credentials may"),
    ):
        opened.topic(name)
    session = lake.session.newSession()
    for setting, value in lake.catalogs().items():
        session.conf.set(setting, value)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        clean(session, name, NIGHT_MS)
    refused = explained(raised.value)
    assert isinstance(refused, AccessDeniedError)
    assert str(refused).startswith("expected a catalog and a store that these credentials may use")
