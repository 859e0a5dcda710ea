"""The key that signs certificates of erasure, and timestamps of its signatures (RFC 3161).

The key is a file outside the lake, or in a cloud's key management. If none is named, the first use
creates a file that only its owner can read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from rfc3161_client import (
    HashAlgorithm,
    PKIStatus,
    TimestampRequestBuilder,
    decode_timestamp_response,
)
from securesystemslib.exceptions import Error as SignerError
from securesystemslib.signer import CryptoSigner, Signer, SSlibKey

from ebbtide.errors import ConfigurationError, UnavailableError
from ebbtide.ledger.erasure_secrets import created, own_folder

SIGNING_KEY, PUBLIC_KEY = "EBBTIDE_SIGNING_KEY", "EBBTIDE_SIGNING_PUBLIC_KEY"
TIMESTAMP_URL = "EBBTIDE_TIMESTAMP_URL"
TIMESTAMP_SECONDS = 30


class CertificateSigner(NamedTuple):
    """A key that signs certificates, and the PEM of its public key."""

    signer: Signer
    public_pem: str


def certificate_signer() -> CertificateSigner:
    """Return the signer of certificates.

    The key is the file or the URI in EBBTIDE_SIGNING_KEY, or a file of ebbtide's own. Raise
    ConfigurationError if it cannot sign.
    """
    named, public = os.environ.get(SIGNING_KEY), os.environ.get(PUBLIC_KEY)
    try:
        if named and ":" in named:
            if not public:
                raise ConfigurationError(
                    f"expected the path of the public key of {named} in {PUBLIC_KEY}, found none. "
                    "Download the public key as PEM, and set the variable to its path"
                )
            pem = Path(public).read_bytes()
            key = SSlibKey.from_crypto(load_pem_public_key(pem))
            return CertificateSigner(Signer.from_priv_key_uri(named, key), pem.decode())
        if named:
            stored = Path(named).read_bytes()
        else:
            stored = created(own_folder() / "signing.pem", new_signing_key)
        private = load_pem_private_key(stored, None)
        pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return CertificateSigner(CryptoSigner(private), pem.decode())
    except (OSError, ValueError, TypeError, ImportError, SignerError) as error:
        raise ConfigurationError(
            f"expected a private key that can be read in {SIGNING_KEY}, found: {error}. Make one "
            "with `openssl genpkey -algorithm ed25519 -out signing.pem`"
        ) from error


def timestamp(signature: bytes) -> bytes | None:
    """Return the timestamp of a signature by the authority in EBBTIDE_TIMESTAMP_URL (RFC 3161).

    Return None without an authority. Raise UnavailableError if it grants none.
    """
    url = os.environ.get(TIMESTAMP_URL)
    if not url:
        return None
    asked = TimestampRequestBuilder().data(signature).hash_algorithm(HashAlgorithm.SHA256).build()
    request = Request(url, asked.as_bytes(), {"Content-Type": "application/timestamp-query"})
    try:
        with urlopen(request, timeout=TIMESTAMP_SECONDS) as reply:
            answer = bytes(reply.read())
        granted = decode_timestamp_response(answer)
        if granted.status != PKIStatus.GRANTED or granted.tst_info.nonce != asked.nonce:
            raise ValueError(f"status {granted.status}, {granted.status_string}")
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"expected a timestamp from {url}, found: {error}. Nothing was certified. Run the job "
            f"again, or unset {TIMESTAMP_URL}"
        ) from error
    return answer


def new_signing_key() -> bytes:
    """Return a new private key in PEM (Ed25519)."""
    private = Ed25519PrivateKey.generate()
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
