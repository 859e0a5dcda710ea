"""A topic and its replica in stores of other keys, each of which looks at who asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ebbtide.iceberg.topics import load
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.lake.reader import find_replicas, open_lake
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.services.cells import CellSandbox
from tests.services.faulty_s3 import FaultyS3
from tests.services.s3_api import BUCKET, S3Api
from tests.stores.credentials import CredentialCheck, Credentials, Signature
from tests.stores.nights import NIGHT_MS
from tests.tables.kafka_view import view_of_table
from tests.tables.logs import FIRST_MS
from tests.tables.nights import ingest, night, set_properties

pytestmark = pytest.mark.long

OURS = Credentials("ours", "our-secret", "our-token")
THEIRS = Credentials("theirs", "their-secret", "their-token")
OUR_REGION, THEIR_REGION = "eu-west-3", "us-west-2"


class CheckedStore:
    """A store behind a proxy that lets one signer pass, and the settings of that signer."""

    def __init__(self, s3: S3Api, signer: Credentials, region: str) -> None:
        self.check = CredentialCheck(signer)
        self.proxy = FaultyS3(s3.endpoint)
        self.settings = {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": self.proxy.endpoint,
            "s3.path-style-access": "true",
            "client.region": region,
            "warehouse": f"s3://{BUCKET}/of-{signer.access_key}",
            **signer.settings(),
        }


@pytest.fixture
def stores(s3: S3Api) -> Iterator[tuple[CheckedStore, CheckedStore]]:
    pair = CheckedStore(s3, OURS, OUR_REGION), CheckedStore(s3, THEIRS, THEIR_REGION)
    with ExitStack() as stack:
        for store in pair:
            stack.enter_context(store.proxy)
            stack.enter_context(store.proxy.having(store.check))
        yield pair


@pytest.fixture
def lake(stores: tuple[CheckedStore, CheckedStore], tmp_path: Path) -> LakeSandbox:
    """A lake in the first store; its catalog `other` has its files in the second."""
    ours, theirs = stores
    lake = CellSandbox(tmp_path / "two-stores", ours.settings)
    lake.add_catalog("other", theirs.settings)
    return lake


def test_each_of_two_catalogs_is_asked_with_its_own_keys(
    lake: LakeSandbox,
    stores: tuple[CheckedStore, CheckedStore],
    cluster: str,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, replica = TopicName(cluster, "t"), TopicName(cluster, "t", "other")
    ingest(lake.session, str(name), log, FIRST_MS)
    set_properties(lake.session, str(name), {"ebbtide.replicas": f"other.{cluster}"})
    outcome = execute_replicate(plan_replicate(load(lake.session, name)), NIGHT_MS)
    assert outcome.error is None
    assert view_of_table(lake.session, replica, 0) == view_of_table(lake.session, name, 0)
    night(lake.session, str(name), NIGHT_MS)
    night(lake.session, str(replica), NIGHT_MS)
    assert view_of_table(lake.session, replica, 0) == view_of_table(lake.session, name, 0)
    monkeypatch.setenv("SPARK_CONF_DIR", str(lake.home / "conf"))
    with open_lake() as opened:
        (copy,) = find_replicas(opened.topic(str(name))) or ()
        assert copy.partitions[0].log_end_offset == 7
    ours, theirs = stores
    assert ours.check.seen == {Signature(OURS.access_key, OUR_REGION, OURS.token)}
    assert theirs.check.seen == {Signature(THEIRS.access_key, THEIR_REGION, THEIRS.token)}
    assert (ours.proxy.refused, theirs.proxy.refused) == (0, 0)
