"""Check a certificate of erasure without Spark and Airflow."""

import hmac


def hmac_of(secret: bytes, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a key's bytes in hex, by which a certificate names it."""
    return hmac.digest(secret, key, "sha256").hex()


def fingerprint(secret: bytes) -> str:
    """Return the fingerprint of a topic's secret. The secret cannot be found from it."""
    return hmac_of(secret, b"fingerprint of a secret of ebbtide")[:16]
