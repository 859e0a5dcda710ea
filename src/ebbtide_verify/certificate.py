"""A certificate of erasure: an in-toto Statement in a signed DSSE envelope, one of a chain.

Sources: in-toto Attestation Framework (Statement v1), DSSE v1.0.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificates
from rfc3161_client import VerificationError as TimestampError
from rfc3161_client import VerifierBuilder, decode_timestamp_response
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import Key, SSlibKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:ebbtide:erasure:v1"
FIRST = "0" * 64  # the previous certificate of the first one


class InvalidError(Exception):
    """A certificate that does not hold."""


class Certificate(NamedTuple):
    """A certificate whose signature was checked."""

    statement: Mapping[str, Any]
    digest: str  # of the signed bytes, SHA-256 in hex; the next certificate names it
    key_id: str
    signature: bytes
    timestamp: bytes | None  # the answer of a timestamp authority (RFC 3161), of the signature

    @property
    def predicate(self) -> Mapping[str, Any]:
        """The claims: the sought keys, the search, its hits, and the places out of reach."""
        predicate: Mapping[str, Any] = self.statement["predicate"]
        return predicate

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each object that was scanned, by URI."""
        return {
            subject["name"]: subject["digest"]["sha256"] for subject in self.statement["subject"]
        }


def public_key(pem: bytes) -> Key:
    """Return a key that checks signatures, from its PEM."""
    return SSlibKey.from_crypto(load_pem_public_key(pem))


def opened(envelope: bytes, keys: Sequence[Key]) -> Certificate:
    """Check an envelope's signature and its form. Raise InvalidError if either is wrong."""
    try:
        fields = json.loads(envelope)
        timestamp = base64.b64decode(text) if (text := fields.pop("timestamp", "")) else None
        parsed = Envelope.from_dict(fields)
        signers = parsed.verify(list(keys), 1)
    except VerificationError as error:
        raise InvalidError(f"expected a signature by a public key, found: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidError(
            f"expected a DSSE envelope in JSON, found {type(error).__name__}: {error}"
        ) from error
    if parsed.payload_type != PAYLOAD_TYPE:
        raise InvalidError(f"expected a payload {PAYLOAD_TYPE}, found {parsed.payload_type}")
    statement = json.loads(parsed.payload)
    for name, expected in (("_type", STATEMENT), ("predicateType", PREDICATE)):
        if statement.get(name) != expected:
            raise InvalidError(f"expected {name} {expected}, found {statement.get(name)}")
    digest, key_id = hashlib.sha256(parsed.payload).hexdigest(), next(iter(signers))
    signature = bytes.fromhex(parsed.signatures[key_id].signature)
    return Certificate(statement, digest, key_id, signature, timestamp)


def signed_before(certificate: Certificate, roots: bytes) -> datetime:
    """Return the time of the timestamp. Its signer must lead to one of the root certificates.

    Raise InvalidError if there is no such timestamp of the signature.
    """
    if certificate.timestamp is None:
        raise InvalidError("expected a timestamp, found none in the certificate")
    try:
        answer, builder = decode_timestamp_response(certificate.timestamp), VerifierBuilder()
        for root in load_pem_x509_certificates(roots):
            builder = builder.add_root_certificate(root)
        builder.build().verify_message(answer, certificate.signature)
    except (TimestampError, ValueError) as error:
        raise InvalidError(f"expected a timestamp of the signature, found: {error}") from error
    return answer.tst_info.gen_time


def check_chain(certificates: Sequence[Certificate]) -> None:
    """Check that each certificate names the one before it. The newest ones may be missing."""
    previous = FIRST
    for number, certificate in enumerate(certificates, 1):
        chain = certificate.predicate["chain"]
        if (chain["number"], chain["previous"]) != (number, previous):
            raise InvalidError(
                f"expected certificate {number} after digest {previous[:12]}, found "
                f"{chain['number']} after {chain['previous'][:12]}: one is lost, changed or added"
            )
        previous = certificate.digest
