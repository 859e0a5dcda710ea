"""A request to erase a key, from Airflow's form to a certificate that a stranger checks.

The archive has a replica in an S3 API. Nothing of the request needs a shell: form, approval, dates
and certificate are in the browser. The replica's own nights are those of a second installation.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.settings.names import TopicName
from ebbtide_verify.__main__ import CONTRADICTED, HOLDS
from ebbtide_verify.scan import Sought, search
from tests.browser.running_airflow import Person
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.services.airflow_api import AirflowApi
from tests.services.airflow_services import LOGIN, Airflow
from tests.services.cells import CLUSTER, FIRST_NIGHT, SAMPLE, run_job
from tests.services.postgresql import PostgreSql
from tests.services.s3_api import BUCKET, S3Api

pytestmark = pytest.mark.services

FLIGHTS = TopicName(CLUSTER, "flights")
COPY = TopicName("copies", "flights", "offsite")
# Nothing is retained longer than it must: each step of an erasure is one nightly run.
AT_ONCE = {
    "ebbtide.max.delete.ratio": "1",
    "ebbtide.rewrite.deleted.ratio": "0",
    "ebbtide.undo.retention.ms": "0",
    "history.expire.max-snapshot-age-ms": "0",
    "kafka.delete.retention.ms": "0",
    "kafka.min.cleanable.dirty.ratio": "0",
}
NIGHTS = ("2026-11-24T01:00:00+00:00", "2026-11-25T01:00:00+00:00", "2026-11-26T01:00:00+00:00")
UV = Path(sys.prefix, "bin", "uv")


@pytest.fixture
def lake(s3: S3Api, tmp_path: Path) -> LakeSandbox:
    """The sample log, which no source continues, and its replica."""
    lake = LakeSandbox(tmp_path / "home")
    lake.add_catalog(COPY.catalog, {**s3.settings(), "warehouse": f"s3://{BUCKET}/copies"})
    fill(lake)
    run_job(lake, "replicate_log", "--topic", str(FLIGHTS), "--now", FIRST_NIGHT)
    configure(lake, COPY, AT_ONCE)
    return lake


def fill(lake: LakeSandbox) -> None:
    source = ("--source", str(SAMPLE), "--cluster", CLUSTER, "--topic", str(FLIGHTS))
    run_job(lake, "ingest_segments", *source, "--now", FIRST_NIGHT)
    settings = {**AT_ONCE, "ebbtide.source": "", "ebbtide.replicas": f"{COPY.catalog}.copies"}
    configure(lake, FLIGHTS, settings)


def configure(lake: LakeSandbox, name: TopicName, settings: dict[str, str]) -> None:
    changes = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    run_job(lake, "configure_topic", "--topic", str(name), *changes, "--now", FIRST_NIGHT)


@pytest.fixture
def airflow(lake: LakeSandbox, tmp_path: Path) -> Iterator[Airflow]:
    server = PostgreSql(tmp_path)
    try:
        with server, Airflow(lake, server, {}) as running:
            yield running
    finally:
        server.remove()


def test_from_the_form_to_a_certificate_that_a_stranger_checks(
    chromium: Any, airflow: Airflow, lake: LakeSandbox, s3: S3Api, tmp_path: Path
) -> None:
    key = a_key(lake)
    assert objects_with(lake, s3, key)
    api = airflow.api()
    person = Person(chromium, airflow.url, LOGIN[0], password=LOGIN[1]).log_in()
    erase_by_form(person, api, key)
    for night in NIGHTS:
        a_night(lake, api, night)
    assert objects_with(lake, s3, key) == []

    # The page has both dates; then the erasure is certified.
    page = person.open(f"erasures?topic={FLIGHTS}")
    row = page.get_by_role("row").filter(has_text="privacy office")
    *_, out_of_table, off_disk, _, _ = row.inner_text().split("\t")
    assert "-" not in (out_of_table.strip(), off_disk.strip()), row.inner_text()
    row.get_by_role("link", name="Certify the erasure").click()
    page.get_by_label("Keys", exact=True).fill(key)
    person.press("Certify")
    person.wait_for("success triggered by")
    page = person.open(f"erasures?topic={FLIGHTS}")
    row = page.get_by_role("row").filter(has_text="privacy office")
    assert "not found" in row.inner_text(), row.inner_text()
    certificate, public_key = tmp_path / "certificate.json", tmp_path / "public.pem"
    download(page, row.locator("a[download]").first, certificate)
    download(page, page.get_by_role("link", name="Public key"), public_key)

    # A stranger has the certificate, the key, the store's address and nothing else.
    stranger = Stranger(tmp_path / "env", s3)
    done = stranger.verify(certificate, public_key, key)
    assert done.returncode == HOLDS, done.stdout + done.stderr
    text = certificate.read_bytes()
    place = text.index(b'"payload": "') + 40
    certificate.write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
    assert stranger.verify(certificate, public_key, key).returncode == CONTRADICTED

    # The log is lost, and comes from its files once more.
    for table in (FLIGHTS.records_table, FLIGHTS.batches_table, FLIGHTS.state_table):
        lake.session.sql(f"DROP TABLE {table} PURGE")
    fill(lake)
    run_job(lake, "mark_tombstones", "--topic", str(FLIGHTS), "--now", NIGHTS[-1])
    assert objects_with(lake, s3, key) == []


def a_key(lake: LakeSandbox) -> str:
    """A key that has several records, the last of which is no tombstone."""
    rows = lake.session.sql(
        f"SELECT decode(key, 'utf-8') AS key FROM {FLIGHTS.committed_view} WHERE key IS NOT NULL "
        "GROUP BY key HAVING count(*) > 3 AND max_by(is_tombstone, offset) = false "
        "ORDER BY key LIMIT 1"
    )
    (row,) = rows.collect()
    return str(row["key"])


def erase_by_form(person: Person, api: AirflowApi, key: str) -> None:
    """Ask by Airflow's own form, and approve on the run's page."""
    page, before = person.page, api.runs("erase_keys")
    page.goto("/dags/erase_keys")
    page.get_by_test_id("trigger-dag-button").first.click()
    asked = {"topic": str(FLIGHTS), "keys": key, "requested_by": "privacy office", "reason": "17"}
    for name, text in asked.items():
        page.locator(f"[id='element_{name}']").fill(text)
    page.get_by_role("button", name="Delivery and certificate", exact=True).click()
    page.locator("[id='switch:element_append'] [data-part='control']").click()
    page.get_by_test_id("trigger-dag-submit").click()
    run_id = api.wait_for_a_run("erase_keys", before)
    person.open(f"runs/{run_id}?dag=erase_keys")
    person.press("Approve")
    person.wait_for("success triggered by")


def a_night(lake: LakeSandbox, api: AirflowApi, now: str) -> None:
    """One of both installations; a primary's tombstones wait until its replica has them."""
    api.must_succeed("replicate_log", {"topics": [str(FLIGHTS)], "now": now})
    api.must_succeed("nightly_retention", {"topics": [str(FLIGHTS)], "now": now})
    for job in ("mark_tombstones", "clean_log", "expire_snapshots"):
        run_job(lake, job, "--topic", str(COPY), "--now", now)


def objects_with(lake: LakeSandbox, s3: S3Api, key: str) -> list[str]:
    """The files of both stores that have a byte of the key."""
    import pyarrow.fs

    store = s3.file_system()
    selector = pyarrow.fs.FileSelector(f"{BUCKET}/copies", recursive=True)
    objects = {
        info.path: store.open_input_file(info.path).read()
        for info in store.get_file_info(selector)
        if info.is_file
    }
    for path in (lake.home / "lake").rglob("*"):
        if path.is_file() and path.suffix != ".db":
            objects[str(path)] = path.read_bytes()
    sought = Sought([key.encode()])
    return sorted(name for name, data in objects.items() if search(data, sought))


def download(page: Any, link: Any, to: Path) -> None:
    with page.expect_download() as waiting:
        link.click()
    waiting.value.save_as(to)


class Stranger:
    """An environment that has ebbtide-verify alone."""

    def __init__(self, home: Path, s3: S3Api) -> None:
        self.home, self.s3 = home, s3
        python = home / "bin" / "python"
        for words in (("venv", home), ("pip", "install", "--python", python, ROOT / "verify")):
            subprocess.run([UV, *words, "--quiet"], check=True)

    def verify(
        self, certificate: Path, public_key: Path, key: str
    ) -> subprocess.CompletedProcess[str]:
        keys = self.home / "keys.txt"
        keys.write_text(key.encode().hex())
        words: list[Any] = [self.home / "bin" / "ebbtide-verify", certificate]
        words += ["--public-key", public_key, "--keys-file", keys]
        settings = self.s3.settings()
        for name in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key"):
            words += ["--property", f"{name}={settings[name]}"]
        words += ["--property", f"s3.region={settings['client.region']}"]
        return subprocess.run(words, capture_output=True, text=True, check=False)
