"""The key that signs certificates, and the secrets of topics: made once, read by their owner."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from ebbtide.errors import ConfigurationError, UnavailableError
from ebbtide.runner.signing import (
    PUBLIC_KEY,
    SIGNING_KEY,
    TIMESTAMP_URL,
    certificate_signer,
    timestamp,
)
from ebbtide_verify.certificate import Certificate, InvalidError, signed_before
from tests.verify.timestamp_authority import Authority, timestamp_authority


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in (SIGNING_KEY, PUBLIC_KEY, TIMESTAMP_URL):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_use_makes_a_key_that_stays(home: Path) -> None:
    first, second = certificate_signer(), certificate_signer()
    assert first.public_pem == second.public_pem
    assert mode(home / "keys" / "signing.pem") == 0o600
    assert mode(home / "keys") == 0o700
    signature = first.signer.sign(b"a")
    load_pem_public_key(first.public_pem.encode()).verify(  # type: ignore[union-attr,call-arg]
        bytes.fromhex(signature.signature), b"a"
    )


# -- what is not understood


def test_a_named_key_is_never_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SIGNING_KEY, str(tmp_path / "none.pem"))
    with pytest.raises(ConfigurationError, match="openssl genpkey -algorithm ed25519"):
        certificate_signer()
    (tmp_path / "none.pem").write_text("no key")
    with pytest.raises(ConfigurationError, match="expected a private key that can be read"):
        certificate_signer()


def test_a_key_of_a_cloud_needs_its_public_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SIGNING_KEY, "nokms:key")
    with pytest.raises(ConfigurationError, match=f"public key of nokms:key in {PUBLIC_KEY}"):
        certificate_signer()
    (tmp_path / "public.pem").write_text(public_pem())
    monkeypatch.setenv(PUBLIC_KEY, str(tmp_path / "public.pem"))
    with pytest.raises(ConfigurationError, match="Unsupported private key scheme nokms"):
        certificate_signer()


def public_pem() -> str:
    public = Ed25519PrivateKey.generate().public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def test_a_key_by_its_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    path, public = tmp_path / "ours.pem", tmp_path / "public.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    monkeypatch.setenv(SIGNING_KEY, str(path))
    pem = certificate_signer().public_pem
    public.write_text(pem)
    monkeypatch.setenv(SIGNING_KEY, f"file2:{path}")
    monkeypatch.setenv(PUBLIC_KEY, str(public))
    by_uri = certificate_signer()
    assert by_uri.public_pem == pem
    assert by_uri.signer.sign(b"a").signature == key.sign(b"a").hex()


def test_no_place_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EBBTIDE_HOME")
    with pytest.raises(ConfigurationError, match=r"EBBTIDE_HOME, found neither\. Set one"):
        certificate_signer()


# -- timestamps


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with timestamp_authority(tmp_path_factory.mktemp("authority")) as started:
        yield started


def test_without_an_authority_there_is_no_timestamp() -> None:
    assert timestamp(b"a") is None


def test_a_timestamp_says_before_when_a_signature_was_made(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TIMESTAMP_URL, authority.url)
    answer, roots = timestamp(b"a"), authority.root.read_bytes()
    certificate = Certificate({}, "", "", b"a", answer)
    assert abs(signed_before(certificate, roots) - datetime.now(UTC)) < timedelta(minutes=5)
    with pytest.raises(InvalidError, match="expected a timestamp of the signature"):
        signed_before(certificate._replace(signature=b"b"), roots)
    with pytest.raises(InvalidError, match="found none in the certificate"):
        signed_before(certificate._replace(timestamp=None), roots)
    with pytest.raises(InvalidError, match="expected a timestamp of the signature"):
        signed_before(certificate, other_root())


def other_root() -> bytes:
    key, name = Ed25519PrivateKey.generate(), x509.Name([])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(1))
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def test_no_timestamp_no_certificate(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "refuses", True)
    monkeypatch.setenv(TIMESTAMP_URL, authority.url)
    with pytest.raises(UnavailableError, match="Nothing was certified"):
        timestamp(b"a")
    monkeypatch.setenv(TIMESTAMP_URL, "http://127.0.0.1:1/")
    with pytest.raises(UnavailableError, match="expected a timestamp from http://127"):
        timestamp(b"a")
