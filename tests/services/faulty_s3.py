"""A proxy in front of an S3 API that answers some requests itself, as a store on a bad day."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}
WRITES = {"PUT", "POST"}


class Asked(NamedTuple):
    """One request as a fault sees it; `number` counts from 1 while the fault lasts."""

    number: int
    method: str
    path: str


class Refusal(NamedTuple):
    """What the store answers instead; `seconds` pass before it answers, or before all is well."""

    status: int = 0
    code: str = ""
    seconds: float = 0.0

    def body(self) -> bytes:
        """As S3 words an error."""
        return f"<Error><Code>{self.code}</Code><Message>{self.code}</Message></Error>".encode()


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


class FaultyS3:
    """The proxy while its block runs; `having` gives it a fault for a while."""

    def __init__(self, behind: str) -> None:
        self.behind = urlsplit(behind).netloc
        self.fault: Fault | None = None
        self.refused = 0
        self._asked = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def having(self, fault: Fault) -> Iterator[None]:
        """Have the fault until the block ends; `refused` counts what it was answered with."""
        with self._lock:
            self.fault, self.refused, self._asked = fault, 0, 0
        try:
            yield
        finally:
            self.fault = None

    def refusal(self, method: str, path: str) -> Refusal | None:
        """What the fault of the moment does to a request."""
        with self._lock:
            if self.fault is None:
                return None
            self._asked += 1
            found = self.fault(Asked(self._asked, method, path))
            self.refused += found is not None
            return found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.body()
                refusal = proxy.refusal(self.command, self.path)
                if refusal is not None:
                    time.sleep(refusal.seconds)
                    if refusal.status:
                        self.send(
                            refusal.status, [("Content-Type", "application/xml")], refusal.body()
                        )
                        return
                self.forward(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

            def body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                chunks = []
                while length := int(self.rfile.readline().split(b";")[0], 16):
                    chunks.append(self.rfile.read(length))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass  # trailers
                return b"".join(chunks)

            def forward(self, body: bytes) -> None:
                behind = http.client.HTTPConnection(proxy.behind, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
                behind.request(self.command, self.path, body or None, headers)
                answer = behind.getresponse()
                kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in HOP_BY_HOP]
                length = answer.getheader("Content-Length")
                self.send(answer.status, kept, answer.read(), length)
                behind.close()

            def send(
                self,
                status: int,
                headers: list[tuple[str, str]],
                body: bytes,
                length: str | None = None,
            ) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                if status != 204:  # HEAD tells a length and sends nothing
                    self.send_header("Content-Length", length or str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        return Handler
