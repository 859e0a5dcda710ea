"""A bucket with versions: what is deleted is still there, and is said to be until it is gone."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

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


def ask(s3: S3Api, method: str, path: str, body: bytes | None = None) -> bytes:
    # moto checks no signature, but finds the service by it.
    scope = f"{KEY}/20260101/{REGION}/s3/aws4_request"
    signed = {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host",
        "Content-Type": "application/xml",
    }
    request = Request(f"{s3.endpoint}/{BUCKET}{path}", body, signed, method=method)
    with urlopen(request) as answer:
        data: bytes = answer.read()
    return data


def delete_noncurrent(s3: S3Api) -> int:
    """Delete the noncurrent versions, as the bucket's lifecycle would; their number."""
    listed = ET.fromstring(ask(s3, "GET", "?versions"))
    names = {"s3": listed.tag.partition("}")[0].lstrip("{")}
    deleted = 0
    for version in listed.findall("s3:Version", names):
        found = {name: version.findtext(f"s3:{name}", "", names) for name in _FIELDS}
        if found["IsLatest"] == "false":
            ask(s3, "DELETE", f"/{quote(found['Key'])}?versionId={found['VersionId']}")
            deleted += 1
    return deleted


_FIELDS = ("Key", "VersionId", "IsLatest")


def test_nothing_is_off_the_disk_while_a_noncurrent_version_is_there(
    tmp_path: Path, cluster: str, log: Path
) -> None:
    with S3Api(tmp_path) as s3:
        settings = {"warehouse": f"s3://{BUCKET}/lake", **s3.settings()}
        lake, name = CellSandbox(tmp_path / "on-s3", settings), TopicName(cluster, "t")
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


def test_a_store_that_cannot_be_asked_is_not_called_empty(
    tmp_path: Path, cluster: str, log: Path
) -> None:
    with S3Api(tmp_path) as s3:
        settings = {"warehouse": f"s3://{BUCKET}/lake", **s3.settings()}
        lake, name = CellSandbox(tmp_path / "on-s3", settings), TopicName(cluster, "t")
        ingest(lake.session, str(name), log, FIRST_MS)
        table = open_table(lake.session, name.records_table)
    assert noncurrent_versions(table).unknown
