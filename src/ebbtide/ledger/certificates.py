"""Certificates of erasure: rows of `lake.ebbtide.certificates`, chained by the hash of each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebbtide.ledger.own_tables import OwnTable

NOT_FOUND, FOUND, INCOMPLETE = "not found", "found", "incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRow:
    """A signed certificate, and what a page shows of it."""

    certificate: str
    number: int
    previous: str
    digest: str
    topic: str
    run_id: str
    erasure: str | None
    at: datetime
    result: str
    keys: int
    objects: int
    bytes: int
    envelope: str
    public_key: str


CERTIFICATES = OwnTable(
    name="certificates",
    columns="""
    certificate STRING, number BIGINT COMMENT 'place in the chain, from 1',
    previous STRING COMMENT 'digest of the certificate before it',
    digest STRING COMMENT 'SHA-256 of the signed statement, in hex',
    topic STRING, run_id STRING,
    erasure STRING COMMENT 'run id of the erasure; null: none was named',
    `at` TIMESTAMP,
    result STRING COMMENT 'not found, found, or incomplete: an object could not be read',
    keys BIGINT COMMENT 'number of keys that were searched for',
    objects BIGINT COMMENT 'number of objects that were searched', bytes BIGINT,
    envelope STRING COMMENT 'DSSE envelope in JSON with an in-toto Statement',
    public_key STRING COMMENT 'PEM of the key that checks the signature'
    """,
    day="at",
    build=CertificateRow,
)
