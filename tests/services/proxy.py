"""An HTTP proxy on a loopback port; what stands for it may answer itself, or change an answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


class Refusal(NamedTuple):
    """An answer of an S3 API in place of the one behind; 0 for that one, after `seconds`."""

    status: int = 0
    code: str = ""
    seconds: float = 0.0

    def body(self) -> bytes:
        """As S3 words an error."""
        return f"<Error><Code>{self.code}</Code><Message>{self.code}</Message></Error>".encode()


class Proxy:
    """A proxy in front of a server, while its block runs."""

    def __init__(self, behind: str) -> None:
        self.behind = urlsplit(behind).netloc
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

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """None where a request goes on to the server behind."""
        return None

    def changed(self, body: bytes) -> bytes:
        """The body of an answer as it is handed on."""
        return body

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.body()
                refusal = proxy.refusal(self.command, self.path, self.headers)
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
                body = answer.read()
                if body:
                    body = proxy.changed(body)
                    length = None
                self.send(answer.status, kept, body, length)
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
