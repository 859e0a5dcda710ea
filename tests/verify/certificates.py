"""A small table, and signed certificates of it, made without Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pyiceberg.catalog.sql import SqlCatalog
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner

from ebbtide_verify import fingerprint, hmac_of
from ebbtide_verify.certificate import (
    FIRST,
    PAYLOAD_TYPE,
    PREDICATE,
    STATEMENT,
)
from ebbtide_verify.objects import reachable

ALICE, BOB = b"alice@example.org", b"bob@example.org"
SECRET = b"s" * 32


class Office:
    """Signs certificates of a lake with one table, and keeps them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "certificates"
        self.folder.mkdir()
        self._signer = CryptoSigner(Ed25519PrivateKey.generate())
        self.public_key = home / "public.pem"
        self.public_key.write_bytes(public_pem(self._signer))
        self.previous, self.number = FIRST, 0
        catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/lake"
        )
        catalog.create_namespace("log")
        self.table = catalog.create_table("log.people", pa.schema([("key", pa.binary())]))

    def append(self, *keys: bytes) -> None:
        self.table.append(pa.table({"key": pa.array(keys, pa.binary())}))

    def objects(self) -> list[str]:
        return list(reachable(self.table.metadata_location, read))

    def certify(self, *, found: Sequence[str] = (), **changed: Any) -> Path:
        """Sign a certificate of the table as it is; its path."""
        self.number += 1
        objects = self.objects()
        predicate = {
            "certificate": f"certify_erasure-{self.number}",
            "chain": {"number": self.number, "previous": self.previous},
            "topic": "log.people",
            "asked": {"by": "ann", "approved_by": "ben"},
            "sought": {
                "keys": [hmac_of(SECRET, ALICE)],
                "secret": fingerprint(SECRET),
                "rows": None,
            },
            "scan": {"ended": "2026-11-28T00:00:00+00:00", "bytes": 1000},
            "found": [{"object": uri, "place": "stored bytes"} for uri in found],
            "unread": [],
            "out_of_reach": [{"what": "backups", "why": "not known"}],
            "holds": [],
            **changed,
        }
        statement = {
            "_type": STATEMENT,
            "subject": [
                {"name": uri, "digest": {"sha256": hashlib.sha256(read(uri)).hexdigest()}}
                for uri in objects
            ],
            "predicateType": PREDICATE,
            "predicate": predicate,
        }
        payload = json.dumps(statement).encode()
        envelope = Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        self.previous = hashlib.sha256(payload).hexdigest()
        path = self.folder / f"{self.number}.json"
        path.write_text(json.dumps(envelope.to_dict()))
        return path


def public_pem(signer: CryptoSigner) -> bytes:
    return signer._private_key.public_key().public_bytes(  # type: ignore[no-any-return,attr-defined]
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def read(uri: str) -> bytes:
    return path_of(uri).read_bytes()
