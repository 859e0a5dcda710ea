"""A broker that talks TLS only, and only to clients with a certificate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.kafka.broker import KafkaBroker


class TlsBroker(KafkaBroker):
    """Its clients and itself have one certificate, by an authority that nobody else knows."""

    def __init__(self, jars_dir: Path, work_dir: Path, **overrides: str) -> None:
        work_dir.mkdir(parents=True, exist_ok=True)
        self.authority, self.certificate, self.key = write_pems(work_dir)
        store = work_dir / "keystore.pem"
        store.write_text(self.key.read_text() + self.certificate.read_text())
        settings = {
            "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "ssl.client.auth": "required",
        }
        super().__init__(jars_dir, work_dir, **settings, **overrides)

    def client(self, user: str | None = None) -> dict[str, str]:
        """librdkafka's settings, files by their path and by their text."""
        return {
            **super().client(user),
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.certificate),
            "ssl.key.pem": self.key.read_text(),
        }


def write_pems(directory: Path) -> tuple[Path, Path, Path]:
    """Files of the authority's certificate, of one for this machine, and of its key."""
    keys = [generate_private_key(65537, 2048) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("ca", "localhost")
    ]
    authority = signed(names[0], keys[0], names[0], keys[0], is_authority=True)
    certificate = signed(names[1], keys[1], names[0], keys[0], is_authority=False)
    paths = tuple(directory / name for name in ("ca.pem", "certificate.pem", "key.pem"))
    paths[0].write_bytes(authority.public_bytes(Encoding.PEM))
    paths[1].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[2].write_bytes(keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths[0], paths[1], paths[2]


def signed(
    name: x509.Name, key: RSAPrivateKey, by: x509.Name, by_key: RSAPrivateKey, *, is_authority: bool
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(by_key, SHA256())
    )
