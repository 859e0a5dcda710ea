"""A proxy in front of an S3 API that answers some requests itself, as a store on a bad day."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tests.services.proxy import Proxy, Refusal

WRITES = {"PUT", "POST"}


class Asked(NamedTuple):
    """One request as a fault sees it; `number` counts from 1 while the fault lasts."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]


Fault = Callable[[Asked], Refusal | None]


def every(nth: int, refusal: Refusal) -> Fault:
    """Each `nth` request."""
    return lambda asked: refusal if asked.number % nth == 0 else None


def writes(refusal: Refusal) -> Fault:
    """All that would store something."""
    return lambda asked: refusal if asked.method in WRITES else None


BUSY = Refusal(503, "SlowDown")
EXPIRED = Refusal(400, "ExpiredToken")
DENIED = Refusal(403, "AccessDenied")
FULL = Refusal(507, "XMinioStorageFull")


class FaultyS3(Proxy):
    """The proxy while its block runs; `having` gives it a fault for a while."""

    def __init__(self, behind: str) -> None:
        super().__init__(behind)
        self.fault: Fault | None = None
        self.refused = 0
        self._asked = 0
        self._lock = threading.Lock()

    @contextmanager
    def having(self, fault: Fault) -> Iterator[None]:
        """Have the fault until the block ends; `refused` counts what it was answered with."""
        with self._lock:
            self.fault, self.refused, self._asked = fault, 0, 0
        try:
            yield
        finally:
            self.fault = None

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """What the fault of the moment does to a request."""
        with self._lock:
            if self.fault is None:
                return None
            self._asked += 1
            fault = self.fault(Asked(self._asked, method, path, headers))
            self.refused += fault is not None
            return fault
