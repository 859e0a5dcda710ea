"""Each topic's secret, by which the ledger and certificates name erased keys without their bytes.

A secret is a file outside the lake. An erased key is named by its HMAC with the secret. Once the
file is deleted, no one can find out which keys the ledger names.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ebbtide.errors import ConfigurationError
from ebbtide_verify import fingerprint, hmac_of

log = logging.getLogger(__name__)

SECRETS = "EBBTIDE_ERASURE_SECRETS"
SECRET_BYTES = 32


class Secret(NamedTuple):
    """A topic's secret, and the fingerprint that identifies it."""

    value: bytes
    fingerprint: str

    def name(self, key: bytes) -> str:
        """Return the HMAC of a key in hex."""
        return hmac_of(self.value, key)

    def name_all(self, keys: Iterable[bytes]) -> str:
        """Return one HMAC of a set of keys, in hex. Their order does not matter."""
        return self.name("".join(sorted(map(self.name, set(keys)))).encode())


class KeyNames(NamedTuple):
    """The names that a key may have in the table of erasures, also in rows of an older version."""

    secret: Secret | None  # None: no file has it

    @classmethod
    def of(cls, topic: str) -> KeyNames:
        """Return the names by the topic's secret, if it can be read."""
        return cls(known_secret(topic))

    def names(self, key: bytes) -> list[str]:
        """Return the names of a key, the current one first."""
        sha256 = hashlib.sha256(key).hexdigest()
        return [sha256] if self.secret is None else [self.secret.name(key), sha256]


def secret_of(topic: str) -> Secret:
    """Return the topic's secret. The first use creates it.

    Raise ConfigurationError if its file cannot be read or written.
    """
    path = _path(topic)
    try:
        value = created(path, partial(secrets.token_bytes, SECRET_BYTES))
    except OSError as error:
        raise ConfigurationError(
            f"expected a folder for the topics' secrets in {SECRETS}, found: {error}. Name a "
            "folder outside the lake that the job may write"
        ) from error
    return _checked(path, value)


def known_secret(topic: str) -> Secret | None:
    """Return the topic's secret, or None if its file does not exist.

    Raise ConfigurationError if the file cannot be read: erased keys would not be recognised.
    """
    path = _path(topic)
    try:
        return _checked(path, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(
            f"expected the secret of {topic} in a file that the job may read, found: {error}. "
            f"Give the job the right to read {path}, or name another folder in {SECRETS}"
        ) from error


def _checked(path: Path, value: bytes) -> Secret:
    if len(value) < SECRET_BYTES:
        raise ConfigurationError(
            f"expected at least {SECRET_BYTES} bytes in {path}, found {len(value)}. Restore the "
            "file from a backup"
        )
    return Secret(value, fingerprint(value))


def _path(topic: str) -> Path:
    named = os.environ.get(SECRETS)
    folder = Path(named) if named else own_folder() / "secrets"
    return folder / quote(topic, safe="@~")


def own_folder() -> Path:
    """Return the folder of keys and secrets, for an installation that names none."""
    home = os.environ.get("EBBTIDE_HOME")
    if not home:
        raise ConfigurationError(
            f"expected the folder of secrets in {SECRETS}, or EBBTIDE_HOME, found neither. Set one"
        )
    return Path(home, "keys")


def created(path: Path, new: Callable[[], bytes]) -> bytes:
    """Return a file's bytes. If it does not exist, one of all concurrent processes creates it."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{uuid.uuid4().hex}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(new())
    try:
        with suppress(FileExistsError):
            os.link(fresh, path)
            log.info("created %s", path)
    finally:
        fresh.unlink()
    return path.read_bytes()
