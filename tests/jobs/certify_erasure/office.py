"""The jobs of an erasure of one topic, and its certificates."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
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

from ebbtide.errors import ExitCode
from ebbtide.ledger.erasure_secrets import SECRETS
from ebbtide.runner.signing import SIGNING_KEY
from ebbtide.specs.erase_request import KEYS
from ebbtide_verify.__main__ import main as verify
from jobs import certify_erasure, erase_keys
from tests.tables.bench import Bench
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


def open_office(
    bench: Bench,
    jobs: Jobs,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    segments: Sequence[Sequence[Message]] = SEGMENTS,
    key: str = ALICE,
) -> Office:
    """An office with a signing key and a secret of its own, which is to erase the key."""
    bench.log(segments, LOG, NIGHT_MS)
    bench.set(AT_ONCE)
    signing = Ed25519PrivateKey.generate()
    private, secrets = home / "signing.pem", home / "secrets"
    private.write_bytes(signing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (home / "public.pem").write_bytes(public)
    secrets.mkdir()
    (secrets / str(bench.name)).write_bytes(SECRET)
    monkeypatch.setenv(SIGNING_KEY, str(private))
    monkeypatch.setenv(SECRETS, str(secrets))
    monkeypatch.setenv(KEYS, key)
    monkeypatch.setenv("EBBTIDE_GIVEN_REQUESTED_BY", "ann")
    monkeypatch.setenv("EBBTIDE_GIVEN_REASON", "request 17")
    return Office(bench, jobs, home)
