"""Credentials of a store that looks at them, and a REST catalog that vends them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import NamedTuple

from tests.services.faulty_s3 import DENIED, EXPIRED, Asked
from tests.services.proxy import Proxy, Refusal

_SIGNED = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/s3/aws4_request")


class Credentials(NamedTuple):
    """Who asks a store, for a while where there is a token."""

    access_key: str
    secret_key: str = "secret"
    token: str | None = None

    def settings(self) -> dict[str, str]:
        """As a catalog's settings name them."""
        keys = {"s3.access-key-id": self.access_key, "s3.secret-access-key": self.secret_key}
        return keys if self.token is None else {**keys, "s3.session-token": self.token}


class Signature(NamedTuple):
    """The signer of a request, as its headers tell."""

    access_key: str
    region: str
    token: str | None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Signature | None:
        """None for a request that nobody signed."""
        signed = _SIGNED.search(headers.get("Authorization") or "")
        return signed and cls(signed[1], signed[2], headers.get("X-Amz-Security-Token"))


class CredentialCheck:
    """A fault of a store: it refuses whoever has not the valid credentials, and keeps who asked."""

    def __init__(self, valid: Credentials) -> None:
        self.valid = valid
        self.seen: set[Signature] = set()
        self.expired: set[str | None] = set()

    def __call__(self, asked: Asked) -> Refusal | None:
        """Refuse a request, or let it pass."""
        signature = Signature.of(asked.headers)
        if signature is None:
            return DENIED
        self.seen.add(signature)
        if signature.token in self.expired:
            return EXPIRED
        is_valid = (signature.access_key, signature.token) == (
            self.valid.access_key,
            self.valid.token,
        )
        return None if is_valid else DENIED


class VendedCheck(CredentialCheck):
    """The same of tokens that are issued anew; the one before is expired then.

    With `lasts` the token expires by itself, once, at the request of that number for data files.
    """

    def __init__(self) -> None:
        super().__init__(Credentials("vended", token="token-1"))
        self.lasts = 0
        self._data_requests = 0
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Refusal | None:
        """Refuse a request, or let it pass."""
        with self._lock:
            if self.lasts and "/data/" in asked.path:
                self._data_requests += 1
                if self._data_requests == self.lasts:
                    self.issue()
        return super().__call__(asked)

    def issue(self) -> None:
        """Let the token expire; the next one is vended from now on."""
        self.expired.add(self.valid.token)
        self.valid = self.valid._replace(token=f"token-{len(self.expired) + 1}")


class VendingCatalog(Proxy):
    """A REST catalog that hands the credentials of the moment out with each table."""

    def __init__(self, behind: str, check: VendedCheck, *, by_prefix: bool) -> None:
        super().__init__(behind)
        self._check = check
        self._by_prefix = by_prefix

    def changed(self, body: bytes) -> bytes:
        """The answer that holds a table's metadata, with credentials."""
        try:
            answer = json.loads(body)
        except ValueError:
            return body
        if not isinstance(answer, dict) or "metadata-location" not in answer:
            return body
        vended = self._check.valid.settings()
        if self._by_prefix:
            wrong = Credentials("wrong").settings()
            answer["storage-credentials"] = [
                {"prefix": "s3", "config": wrong},
                {"prefix": answer["metadata"]["location"], "config": vended},
            ]
        else:
            answer["config"] = {**answer.get("config", {}), **vended}
        return json.dumps(answer).encode()
