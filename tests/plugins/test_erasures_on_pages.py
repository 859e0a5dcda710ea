"""The page of erasures: who asked, how far each is, and its certificates to download."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures import append_erasures
from ebbtide.iceberg.own_tables import append_own, create_own
from ebbtide.ledger.certificates import CERTIFICATES, CertificateRow
from ebbtide.ledger.own_tables import ERASURES, LOGGED, REPORTED, KeyRow
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure
from tests.lake_sandbox import LakeSandbox, state_of
from tests.plugins.html import text_of

pytestmark = pytest.mark.usefixtures("known_dags")
PEOPLE = TopicName("log", "people")
NOW = datetime.now(UTC).replace(microsecond=0, second=0)
ALICE, BOB = "a" * 64, "b" * 64


def asked(run_id: str, ago: timedelta) -> Erasure:
    now_ms = int((NOW - ago).timestamp() * 1000)
    return Erasure(run_id=run_id, now_ms=now_ms, requested_by="ann <a@b>", reason="request 17")


def certificate(number: int, erasure: str | None, result: str) -> CertificateRow:
    return CertificateRow(
        certificate=f"certify_erasure-{number}",
        number=number,
        previous="0" * 64,
        digest=str(number) * 64,
        topic=str(PEOPLE),
        run_id=f"manual__{number}",
        erasure=erasure,
        at=NOW,
        result=result,
        keys=2,
        objects=12,
        bytes=5_000_000,
        envelope=f'{{"payload": "{number}"}}',
        public_key="-----BEGIN PUBLIC KEY-----\n",
    )


@pytest.fixture
def erased(lake: LakeSandbox) -> LakeSandbox:
    spark = lake.session
    create_own(spark, ERASURES)
    create_own(spark, CERTIFICATES)
    first = asked("manual__a", timedelta(days=2))
    logged = [KeyRow(ALICE, 0, 3), KeyRow(ALICE, 1, 1), KeyRow(BOB)]
    reported = [
        row._replace(left=row.partition, out_of_table_at=None if row.partition else first.now_ms)
        for row in logged[:2]
    ]
    append_erasures(spark, PEOPLE, first, LOGGED, logged)
    append_erasures(spark, PEOPLE, first, REPORTED, [*reported, logged[2]])
    append_erasures(spark, PEOPLE, asked("manual__b", timedelta(hours=1)), LOGGED, logged[:1])
    rows = [
        certificate(1, "manual__a", "found"),
        certificate(2, "manual__a", "not found"),
        certificate(3, None, "incomplete"),
    ]
    append_own(spark, CERTIFICATES, rows, Step.CERTIFICATE)
    return lake


def test_requests_and_their_certificates(viewer: Any, erased: LakeSandbox) -> None:
    page = viewer.get("/ebbtide/erasures")
    text = text_of(page.text)
    stamp = f"{NOW:%Y-%m-%d %H:%M}"
    first, second = f"{NOW - timedelta(days=2):%Y-%m-%d %H:%M}", NOW - timedelta(hours=1)
    assert f"{second:%Y-%m-%d %H:%M} log.people ann <a@b> request 17 1 0 - - - - Certify" in text, (
        text
    )
    both = f"{stamp} not found {stamp} found"
    assert f"{first} log.people ann <a@b> request 17 2 1 1 - - {both} Certify" in text
    assert "Certificates without a request in this list" in text
    assert f"{stamp} log.people 2 12 5.0 MB {stamp} incomplete" in text
    assert "forms/certify_erasure?topic=log.people&amp;erasure=manual__a" in page.text
    assert "certificates/certify_erasure-3/public_key" in page.text

    one = text_of(viewer.get("/ebbtide/erasures?topic=log.orders").text)
    assert "Erasures of log.orders" in one
    assert "No erasure was requested in the last 366 days." in one
    form = viewer.get("/ebbtide/forms/certify_erasure?topic=log.people&erasure=manual__a").text
    assert 'value="manual__a"' in form


def test_the_dates_of_a_request_are_those_of_the_runs_since(viewer: Any, lake: LakeSandbox) -> None:
    """The run of the request ended before any round: then nothing had left the table."""
    name = TopicName("log", "patients")
    lake.topic(str(name), {0: state_of(), 1: state_of()})
    asked_at = asked("manual__p", timedelta(days=3))
    create_own(lake.session, ERASURES)
    found = [KeyRow(ALICE, p, 2, tombstone_offset=offset, left=2) for p, offset in ((0, 7), (1, 9))]
    append_erasures(lake.session, name, asked_at, REPORTED, found)
    address = f"/ebbtide/erasures?topic={name}"
    shown = "log.patients ann <a@b> request 17 1 0"

    def night(ago: timedelta, cleaned_to: dict[int, int], **left: Any) -> None:
        numbers = {p: {"cleaned_to": end} for p, end in cleaned_to.items()}
        when = {"started": NOW - ago, "ended": NOW - ago, "run_id": f"{ago}"}
        lake.run(str(name), "clean_log", partitions=numbers, **when)
        result = LeftOnDisk(**left).result()
        lake.run(str(name), "expire_snapshots", topic=dict(result), **when)

    night(timedelta(days=2), {0: 8, 1: 9})  # one tombstone is not covered
    assert f"{shown} 4 - - - Certify" in text_of(viewer.get(address).text)
    out = NOW - timedelta(days=1)
    soon = NOW + timedelta(days=2)
    night(timedelta(days=1), {1: 10}, rows_due=2)
    waits = "2 deleted rows are in files that the next expire_snapshots rewrites"
    assert f"{shown} 0 {out:%Y-%m-%d %H:%M} {waits} - Certify" in text_of(viewer.get(address).text)
    age = {"undo_until_ms": int(soon.timestamp() * 1000), "old_files_ms": 1}
    night(timedelta(hours=2), {}, **age, oldest_snapshot_ms=1)
    text = text_of(viewer.get(address).text)
    assert f"{shown} 0 {out:%Y-%m-%d %H:%M} {soon:%Y-%m-%d %H:%M} UTC - Certify" in text
    off = NOW - timedelta(hours=1)
    night(timedelta(hours=1), {})
    text = text_of(viewer.get(address).text)
    assert f"{shown} 0 {out:%Y-%m-%d %H:%M} {off:%Y-%m-%d %H:%M} UTC - Certify" in text


def test_a_certificate_and_its_key_are_files(viewer: Any, erased: LakeSandbox) -> None:
    file = viewer.get("/ebbtide/certificates/certify_erasure-2")
    assert (file.text, file.headers["content-type"]) == ('{"payload": "2"}', "application/json")
    assert file.headers["content-disposition"] == 'attachment; filename="certify_erasure-2.json"'
    key = viewer.get("/ebbtide/certificates/certify_erasure-2/public_key")
    assert key.text == "-----BEGIN PUBLIC KEY-----\n"
    assert key.headers["content-disposition"] == 'attachment; filename="certify_erasure-2.pem"'
    missing = viewer.get("/ebbtide/certificates/certify_erasure-9")
    assert missing.status_code == 404
    assert "found none with the id certify_erasure-9" in text_of(missing.text)


def test_a_lake_without_erasures(viewer: Any, lake: LakeSandbox) -> None:
    assert "No erasure was requested in the last 366 days." in text_of(
        viewer.get("/ebbtide/erasures").text
    )
