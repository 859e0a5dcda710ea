"""A key is erased, searched for in every byte, and what was found is signed and checked."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from ebbtide.errors import CommitConflictError, ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.certify_erasure import search
from ebbtide.jobs.certify_erasure import stage as job
from ebbtide.jobs.certify_erasure.stage import plan_certificate
from ebbtide.ledger.erasure_secrets import SECRETS
from ebbtide.runner.signing import SIGNING_KEY
from ebbtide.specs.erase_request import KEYS
from ebbtide_verify import hmac_of
from ebbtide_verify.__main__ import CONTRADICTED, HOLDS
from ebbtide_verify.__main__ import main as verify
from jobs import certify_erasure, clean_log, erase_keys, expire_snapshots
from tests.tables.bench import Bench
from tests.tables.clocks import let_newest_be_ahead
from tests.tables.fixtures import Meanwhile
from tests.tables.logs import Message
from tests.tables.nights import DAY_MS, at
from tests.tables.planned import Jobs

NIGHT_MS = 1_000 * DAY_MS
ALICE, BOB = "alice@example.org", "bob@example.org"
LOG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
SEGMENTS = [
    [Message(ALICE, "one"), Message(BOB, "1"), Message("c", "1")],
    [Message(ALICE, "two"), Message("d", "1")],
]
# Nothing is retained longer than it must: each step of an erasure is one run.
AT_ONCE = {
    "ebbtide.source": "",
    "ebbtide.rewrite.deleted.ratio": "0",
    "ebbtide.undo.retention.ms": "0",
    "history.expire.max-snapshot-age-ms": "0",
    "kafka.delete.retention.ms": "0",
}
SECRET = b"s" * 32


class Office:
    """Runs the jobs of an erasure, and reads its certificates."""

    def __init__(self, bench: Bench, jobs: Jobs, home: Path) -> None:
        self.bench, self.jobs, self.home = bench, jobs, home
        self.topic = ("--topic", str(bench.name))

    def run(self, module: Any, *more: str, nights: int = 0) -> int:
        now = ("--now", at(NIGHT_MS + nights * DAY_MS).isoformat())
        return self.jobs.run(module, *self.topic, *now, *more)

    def erase(self) -> str:
        assert self.run(erase_keys, "--append") == ExitCode.DONE
        return self.jobs.run_id

    def certify(self, *more: str) -> dict[str, Any]:
        """Certify, which succeeds; what the certificate says."""
        assert self.run(certify_erasure, *more) == ExitCode.DONE
        return self.says()[-1]

    def rows(self) -> list[Any]:
        table = self.bench.spark.table("lake.ebbtide.certificates")
        mine = table.where(f"topic = '{self.bench.name}'")
        return list(mine.orderBy("number").collect())

    def says(self) -> list[dict[str, Any]]:
        payloads = [json.loads(row["envelope"])["payload"] for row in self.rows()]
        return [json.loads(base64.b64decode(payload))["predicate"] for payload in payloads]

    def downloaded(self) -> Path:
        """The newest certificate, as a file."""
        path = self.home / "certificate.json"
        path.write_text(self.rows()[-1]["envelope"])
        return path

    def verify(self, *keys: str) -> int:
        key = ("--public-key", str(self.home / "public.pem"))
        given: tuple[str, ...] = ()
        if keys:
            file = self.home / "keys.txt"
            file.write_text("\n".join(text.encode().hex() for text in keys))
            given = ("--keys-file", str(file))
        return verify([str(self.downloaded()), *key, *given])


@pytest.fixture
def office(empty: Bench, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Office:
    empty.log(SEGMENTS, LOG, NIGHT_MS)
    empty.set(AT_ONCE)
    key = Ed25519PrivateKey.generate()
    private, secrets = tmp_path / "signing.pem", tmp_path / "secrets"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    secrets.mkdir()
    (secrets / str(empty.name)).write_bytes(SECRET)
    monkeypatch.setenv(SIGNING_KEY, str(private))
    monkeypatch.setenv(SECRETS, str(secrets))
    monkeypatch.setenv(KEYS, ALICE)
    monkeypatch.setenv("EBBTIDE_GIVEN_REQUESTED_BY", "ann")
    monkeypatch.setenv("EBBTIDE_GIVEN_REASON", "request 17")
    return Office(empty, jobs, tmp_path)


def test_a_key_is_found_until_its_last_byte_is_gone(office: Office) -> None:
    erasure = office.erase()
    says = office.certify("--erasure", erasure)
    assert says["found"]
    assert {hit["kind"] for hit in says["found"]} == {"data file"}
    assert {hit["sought"] for hit in says["found"]} == {hmac_of(SECRET, ALICE.encode())}
    assert says["asked"]["by"] == "ann"
    assert says["asked"]["reason"] == "request 17"
    assert office.rows()[-1]["result"] == "found"
    assert office.verify(ALICE) == HOLDS

    assert office.run(clean_log, nights=1) == ExitCode.DONE
    assert office.run(expire_snapshots, nights=1) == ExitCode.DONE
    says = office.certify("--erasure", erasure)
    assert says["found"] == says["unread"] == []
    assert office.rows()[-1]["result"] == "not found"
    assert office.verify(ALICE) == HOLDS
    assert "Airflow's database" in {item["what"] for item in says["out_of_reach"]}
    assert ALICE not in json.dumps(office.says())


def test_offsets_are_found_until_their_files_are_gone(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS)
    asked = ("--partition", "0", "--first-offset", "1", "--end-offset", "2")
    says = office.certify(*asked)
    assert says["sought"]["keys"] == []
    assert says["sought"]["rows"]["first"] == 1
    assert [(hit["kind"], hit["sought"]) for hit in says["found"]] == [("data file", "rows")]
    assert office.verify() == HOLDS
    first = Path(says["found"][0]["object"].removeprefix("file://"))
    first.rename(first.with_name("moved.parquet"))
    says = office.certify(*asked)
    assert [hit["kind"] for hit in says["found"]] == ["in no snapshot"]
    assert "it is missing" in {item["why"] for item in says["out_of_reach"]}
    beyond = ("--partition", "0", "--first-offset", "5", "--end-offset", "9")
    assert office.certify(*beyond)["found"] == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), "expected keys, a file of keys or a range of offsets, found none"),
        (("--partition", "0"), "found partition=0, first_offset=None, end_offset=None"),
        (
            ("--partition", "0", "--first-offset", "3", "--end-offset", "3"),
            "expected a partition, a first offset and a larger end offset",
        ),
    ],
)
def test_what_is_no_search(
    office: Office, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], expected: str
) -> None:
    monkeypatch.delenv(KEYS)
    assert office.run(certify_erasure, *asked) == ExitCode.FAILED
    assert expected in str(office.jobs.last_run().error)


def test_keys_and_a_file_of_keys(office: Office) -> None:
    assert office.run(certify_erasure, "--keys-file", "/keys") == ExitCode.FAILED
    assert "expected either keys or a file of keys, found both" in str(office.jobs.last_run().error)


def test_keys_are_those_of_the_erasure(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    assert office.run(certify_erasure, "--erasure", "none") == ExitCode.FAILED
    assert "found none, which erased no key" in str(office.jobs.last_run().error)
    erasure = office.erase()
    monkeypatch.setenv(KEYS, BOB)
    assert office.run(certify_erasure, "--erasure", erasure) == ExitCode.FAILED
    error = str(office.jobs.last_run().error)
    assert (
        f"expected the 1 keys that run {erasure} erased, found 1 keys, of which it erased 0"
        in error
    )


@pytest.mark.long
def test_a_file_that_no_snapshot_has_is_searched_too(office: Office) -> None:
    data = [hit["object"] for hit in office.certify()["found"]]
    (first, *_) = data
    orphan = Path(first.removeprefix("file://")).with_name("left.parquet")
    orphan.write_bytes(Path(first.removeprefix("file://")).read_bytes())
    found = {hit["object"]: hit["kind"] for hit in office.certify()["found"]}
    assert found[f"file://{orphan}"] == "in no snapshot"


@pytest.mark.long
def test_an_object_that_cannot_be_read_is_named(office: Office) -> None:
    (first, *_) = [hit["object"] for hit in office.certify()["found"]]
    orphan = Path(first.removeprefix("file://")).with_name("left.parquet")
    orphan.write_bytes(b"PAR1 and no footer PAR1")
    says = office.certify()
    assert [item["object"] for item in says["unread"]] == [f"file://{orphan}"]
    assert office.rows()[-1]["result"] == "incomplete"
    assert "1 objects could not be read" in office.jobs.last_run().topic_result["note"]


def test_a_table_that_cannot_be_opened_is_not_called_searched(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, lost = search.find_table, office.bench.name.records_table

    def find(spark: Any, name: str) -> Any:
        if name == lost:
            raise OSError("the store is away")
        return opens(spark, name)

    monkeypatch.setattr(search, "find_table", find)
    says = office.certify()
    unread = {"object": lost, "why": "it cannot be opened: the store is away"}
    assert (says["found"], says["unread"]) == ([], [unread])
    assert office.rows()[-1]["result"] == "incomplete"


@pytest.mark.long
def test_a_bit_of_a_searched_object(office: Office) -> None:
    (first, *_) = [hit["object"] for hit in office.certify()["found"]]
    path = Path(first.removeprefix("file://"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert office.verify(ALICE) == CONTRADICTED


@pytest.mark.long
def test_two_certificates_at_a_time_are_a_chain(office: Office, meanwhile: Meanwhile) -> None:
    meanwhile(Step.CERTIFICATE, office.certify)
    office.certify()
    rows = office.rows()
    assert rows[1]["previous"] == rows[0]["digest"]
    assert rows[1]["number"] == rows[0]["number"] + 1


@pytest.mark.parametrize(
    "ahead",
    [pytest.param(timedelta(minutes=-10), marks=pytest.mark.long), timedelta(minutes=10)],
)
def test_the_clock_of_the_newest_certificate_does_not_matter(
    office: Office, ahead: timedelta
) -> None:
    office.certify()
    let_newest_be_ahead(office.bench.spark, CERTIFICATES, ahead)
    office.certify()
    assert [row["number"] for row in office.rows()[-2:]] == [
        office.rows()[-1]["number"] - 1,
        office.rows()[-1]["number"],
    ]


def test_a_killed_run_leaves_no_certificate(office: Office, kill_at: list[Step]) -> None:
    before = len(office.rows()) if office.bench.spark.catalog.tableExists(CERTIFICATES) else 0
    kill_at.append(Step.CERTIFICATE)
    assert office.run(certify_erasure) == ExitCode.FAILED
    office.certify()
    assert len(office.rows()) == before + 1


CERTIFICATES = "lake.ebbtide.certificates"


def test_a_chain_that_others_append_to_all_the_time(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others_are_faster(*_: object, **__: object) -> None:
        raise CommitConflictError("another one")

    monkeypatch.setattr(job, "append_own", others_are_faster)
    plan = plan_certificate(office.bench.load(), [b"a"], run_id="r", erasure=None)
    with pytest.raises(CommitConflictError, match="expected to append a certificate within 5"):
        job.append_signed(plan, job._statement(plan, [], at(0), at(0)))


def test_an_erasure_ends_with_a_certificate(
    office: Office, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as no_key:
        no_key.setenv(SIGNING_KEY, str(tmp_path / "none.pem"))
        assert office.run(erase_keys, "--append", "--certify") == ExitCode.FAILED
        assert "expected a private key" in str(office.jobs.last_run().error)
        assert office.bench.load().partitions[0].log_end_offset == 5  # nothing was erased
    assert office.run(erase_keys, "--append", "--certify") == ExitCode.DONE
    result = office.jobs.last_run().topic_result
    row = office.rows()[-1]
    assert (row["erasure"], row["certificate"]) == (office.jobs.run_id, result["certificate"])
    assert result["found_in"] == {"data file": len(office.says()[-1]["found"])}
    assert f"certificate {row['certificate']}: " in result["note"]
