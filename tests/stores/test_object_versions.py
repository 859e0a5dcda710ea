"""A bucket with versions: what is deleted is still there, and is said to be until it is gone."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.object_versions import noncurrent_versions
from ebbtide.iceberg.topics import load
from ebbtide.jobs.certify_erasure.search import find_objects
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.settings.names import TopicName
from tests.services.cells import CellSandbox
from tests.services.s3_api import BUCKET, KEY, REGION, S3Api
from tests.stores.nights import NIGHT_MS
from tests.tables.logs import FIRST_MS
from tests.tables.nights import clean, ingest, mark, set_properties

pytestmark = pytest.mark.long

VERSIONED = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
AT_ONCE = {
    "ebbtide.rewrite.deleted.ratio": "0",
    "ebbtide.undo.retention.ms": "0",
    "history.expire.max-snapshot-age-ms": "0",
}
_FIELDS = ("Key", "VersionId", "IsLatest")
LOCKED = (
    "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>{}"
    "</ObjectLockConfiguration>"
)
A_DAY = "<Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>1</Days></DefaultRetention></Rule>"
RETENTION = (
    b"<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2126-01-01T00:00:00Z</RetainUntilDate>"
    b"</Retention>"
)


def ask(s3: S3Api, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    # moto checks no signature, but finds the service by it.
    scope = f"{KEY}/20260101/{REGION}/s3/aws4_request"
    signed = {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host",
        "Content-Type": "application/xml",
        **headers,
    }
    request = Request(f"{s3.endpoint}/{BUCKET}{path}", body, signed, method=method)
    with urlopen(request) as answer:
        data: bytes = answer.read()
    return data


def lake_on(s3: S3Api, tmp_path: Path) -> CellSandbox:
    settings = {"warehouse": f"s3://{BUCKET}/lake", **s3.settings()}
    return CellSandbox(tmp_path / "on-s3", settings)


def versions_of(s3: S3Api) -> Iterator[tuple[str, bool]]:
    """The address of each version of an object, and whether it is the latest."""
    listed = ET.fromstring(ask(s3, "GET", "?versions"))
    names = {"s3": listed.tag.partition("}")[0].lstrip("{")}
    for version in listed.findall("s3:Version", names):
        key, number, is_latest = (version.findtext(f"s3:{name}", "", names) for name in _FIELDS)
        yield f"/{quote(key)}?versionId={number}", is_latest == "true"


def delete_noncurrent(s3: S3Api, **headers: str) -> int:
    """Delete the noncurrent versions, as the bucket's lifecycle would; their number."""
    noncurrent = [version for version, is_latest in versions_of(s3) if not is_latest]
    for version in noncurrent:
        ask(s3, "DELETE", version, **headers)
    return len(noncurrent)


def lock_all(s3: S3Api) -> None:
    """Lock each version that there is."""
    for version, _ in versions_of(s3):
        ask(s3, "PUT", f"{version}&retention", RETENTION)


def test_nothing_is_off_the_disk_while_a_noncurrent_version_is_there(
    tmp_path: Path, cluster: str, log: Path
) -> None:
    with S3Api(tmp_path) as s3:
        lake, name = lake_on(s3, tmp_path), TopicName(cluster, "t")
        spark = lake.session
        ingest(spark, str(name), log, FIRST_MS)
        set_properties(spark, str(name), AT_ONCE)
        mark(spark, str(name))
        clean(spark, str(name), NIGHT_MS)
        assert noncurrent_versions(open_table(spark, name.records_table)) == (0, "")
        ask(s3, "PUT", "?versioning", VERSIONED)

        result = execute_expire_snapshots(load(spark, name)).topic
        assert result["files_freed"]
        count = result["still_in"]["object_versions"]
        left = LeftOnDisk.of_result(result)
        assert left is not None
        assert left.still_in_words.startswith(f"{count:,} noncurrent versions of objects")
        reach = " ".join(item["what"] for item in find_objects(spark, [name]).out_of_reach)
        assert f"noncurrent versions below s3://{BUCKET}/lake/{cluster}" in reach

        assert delete_noncurrent(s3) >= count
        assert execute_expire_snapshots(load(spark, name)).topic["still_in"] == {}


def test_nothing_is_off_the_disk_while_a_version_is_locked(
    tmp_path: Path, cluster: str, log: Path
) -> None:
    with S3Api(tmp_path) as s3:
        ask(s3, "PUT", "?versioning", VERSIONED)
        ask(s3, "PUT", "?object-lock", LOCKED.format("").encode())
        lake, name = lake_on(s3, tmp_path), TopicName(cluster, "t")
        spark = lake.session
        ingest(spark, str(name), log, FIRST_MS)
        lock_all(s3)
        set_properties(spark, str(name), AT_ONCE)
        mark(spark, str(name))
        clean(spark, str(name), NIGHT_MS)
        result = execute_expire_snapshots(load(spark, name)).topic
        assert result["files_freed"]
        count = result["still_in"]["object_versions"]

        with pytest.raises(HTTPError) as refused:
            delete_noncurrent(s3)
        assert refused.value.code == 403
        still_in = execute_expire_snapshots(load(spark, name)).topic["still_in"]
        assert still_in == {"object_versions": count}

        past_the_lock = {"x-amz-bypass-governance-retention": "true"}
        assert delete_noncurrent(s3, **past_the_lock) >= count
        assert execute_expire_snapshots(load(spark, name)).topic["still_in"] == {}


def test_a_bucket_that_locks_each_object_is_refused(
    tmp_path: Path, cluster: str, log: Path
) -> None:
    with S3Api(tmp_path) as s3:
        ask(s3, "PUT", "?versioning", VERSIONED)
        ask(s3, "PUT", "?object-lock", LOCKED.format(A_DAY).encode())
        lake = lake_on(s3, tmp_path)
        with pytest.raises(ConfigurationError, match="expected a bucket without a default retent"):
            ingest(lake.session, f"{cluster}.t", log, FIRST_MS)


def test_a_store_that_cannot_be_asked_is_not_called_empty(
    tmp_path: Path, cluster: str, log: Path
) -> None:
    with S3Api(tmp_path) as s3:
        lake, name = lake_on(s3, tmp_path), TopicName(cluster, "t")
        ingest(lake.session, str(name), log, FIRST_MS)
        table = open_table(lake.session, name.records_table)
    assert noncurrent_versions(table).unknown
