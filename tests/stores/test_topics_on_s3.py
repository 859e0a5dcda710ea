"""Topics whose files and whose sources lie in an S3 API: the same rows, and few requests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import catalog_store, java_table, table_exists
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.own_tables import RUNS
from ebbtide.runner.command_line import parse_job
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.runner.on_topics import run_topics
from tests.services.s3_api import BUCKET, S3Api
from tests.stores.nights import NIGHT_MS, view_after_a_night
from tests.tables.logs import FIRST_MS
from tests.tables.nights import ANY_SHARE, at, clean, ingest, mark, night

pytestmark = pytest.mark.long

MOST_REQUESTS = 6  # for a data file that a job reads


def ingest_from(lake: LakeSandbox, uri: str, name: TopicName) -> None:
    store = catalog_store(lake.session)
    source = Source.of_uri(uri, at(FIRST_MS), settings=ANY_SHARE, store=store)
    assert ingest_segments(lake.session, name, source).error is None


@pytest.mark.parametrize(("on_s3", "scheme"), [("s3", "s3"), ("s3a", "s3a")], indirect=["on_s3"])
def test_a_night_leaves_on_a_store_what_it_leaves_on_a_disk(
    sandbox: LakeSandbox, on_s3: LakeSandbox, s3: S3Api, cluster: str, log: Path, scheme: str
) -> None:
    name = TopicName(cluster, "t")
    ingest(sandbox.session, str(name), log, FIRST_MS)
    ingest_from(on_s3, s3.upload(log, f"logs/{cluster}"), name)
    assert view_after_a_night(on_s3, name) == view_after_a_night(sandbox, name)
    location = str(java_table(on_s3.session, name.records_table).location())
    assert location.startswith(f"{scheme}://{BUCKET}/")
    with open_lake(on_s3.home / "conf" / "spark-defaults.conf") as lake:
        contents = lake.contents(str(name))[0]
        assert (contents.records, contents.file_bytes > 0) == (5, True)


def test_a_job_refuses_a_setting_by_name_before_it_begins(on_s3: LakeSandbox, cluster: str) -> None:
    setting = "spark.sql.catalog.lake.s3.sse.type"
    on_s3.session.conf.set(setting, "kms")
    arguments = ["--topic", f"{cluster}.t", "--now", "2026-11-22T01:00:00+00:00", "--run-id", "r"]
    args = parse_job("clean_log", arguments)
    refusal = r"^expected .* that ebbtide can follow, found s3\.sse\.type = kms\. Remove"
    with pytest.raises(ConfigurationError, match=refusal):
        run_topics(on_s3.session, args, args.topic, lambda *_: pytest.fail("a topic was begun"))
    on_s3.session.conf.unset(setting)
    assert not table_exists(on_s3.session, RUNS.in_catalog())


def test_a_round_asks_little_of_each_data_file_and_an_idle_one_nothing(
    on_s3: LakeSandbox, s3: S3Api, cluster: str, log: Path
) -> None:
    name = f"{cluster}.t"
    ingest(on_s3.session, name, log, FIRST_MS)
    mark(on_s3.session, name)
    begun = len(s3.requests())
    assert clean(on_s3.session, name, NIGHT_MS).rows_removed == 2
    asked = Counter(of_data_files(s3, begun))
    assert asked
    assert max(asked.values()) <= MOST_REQUESTS
    idle = len(s3.requests())
    assert clean(on_s3.session, name, NIGHT_MS).rows_removed == 0
    assert of_data_files(s3, idle) == []


def test_no_object_is_a_marker_of_a_directory(
    on_s3: LakeSandbox, s3: S3Api, cluster: str, log: Path
) -> None:
    name = f"{cluster}.t"
    ingest(on_s3.session, name, log, FIRST_MS)
    night(on_s3.session, name, NIGHT_MS)
    written = [asked.key for asked in s3.requests() if asked.method == "PUT"]
    assert [key for key in written if key.endswith("/") and not key.startswith("logs/")] == []


def of_data_files(s3: S3Api, since: int) -> list[str]:
    """The data file of each request, from one of them on."""
    return [asked.key for asked in s3.requests()[since:] if "/data/" in asked.key]
