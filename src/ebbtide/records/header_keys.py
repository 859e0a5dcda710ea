"""Header keys that are not UTF-8: a table holds them as a consumer shows them, and their bytes too.

Kafka's clients send such keys, and its brokers store them. A column of strings cannot. So ingest
adds one more header to the record, which names the place and the bytes of each such key.
"""

from __future__ import annotations

from collections.abc import Sequence

HEADER_KEYS_HEADER = "ebbtide.header.keys"
HeaderPairs = list[tuple[bytes, bytes | None]]


def shown_key(key: bytes) -> str:
    """Return a header's key as a consumer shows it: U+FFFD replaces what is not UTF-8."""
    return key.decode(errors="replace")


def kept_keys(keys: Sequence[bytes]) -> bytes | None:
    """Return the value of the header that keeps the keys which are not UTF-8, or None if none is.

    A record whose own last header has that header's name gets one too.
    """
    odd = [f"{i}={key.hex()}" for i, key in enumerate(keys) if shown_key(key).encode() != key]
    is_alike = bool(keys) and keys[-1] == HEADER_KEYS_HEADER.encode()
    return " ".join(odd).encode() if odd or is_alike else None


def with_own_keys(headers: HeaderPairs) -> HeaderPairs:
    """Return a stored record's headers with its own keys, without the header that kept them."""
    if not headers or headers[-1][0] != HEADER_KEYS_HEADER.encode():
        return headers
    own, kept = headers[:-1], headers[-1][1] or b""
    try:
        for place in kept.decode().split():
            number, _, digits = place.partition("=")
            shown, content = own[int(number)]
            key = bytes.fromhex(digits)
            if shown_key(key).encode() != shown:
                return headers  # a producer's own header, from before ingest kept keys
            own[int(number)] = (key, content)
    except (ValueError, IndexError):
        return headers
    return own
