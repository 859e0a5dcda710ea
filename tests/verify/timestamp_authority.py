"""A timestamp authority (RFC 3161) on loopback: OpenSSL answers."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CONFIGURATION = """
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
[tsa]
basicConstraints = critical, CA:false
extendedKeyUsage = critical, timeStamping
keyUsage = critical, digitalSignature
[authority]
serial = {home}/serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
"""
_NEW = "req -newkey rsa:2048 -nodes -config ts.cnf -subj"


class Authority:
    """Its URL, and the root of its certificates in PEM."""

    def __init__(self, home: Path) -> None:
        self.home, self.refuses = home, False
        (home / "ts.cnf").write_text(_CONFIGURATION.format(home=home))
        (home / "serial").write_text("01")
        self._openssl(
            f"{_NEW} /CN=root -x509 -days 30 -extensions ca -keyout root.key -out root.pem"
        )
        self._openssl(f"{_NEW} /CN=tsa -keyout tsa.key -out tsa.csr")
        self._openssl(
            "x509 -req -in tsa.csr -CA root.pem -CAkey root.key -CAcreateserial -days 30 "
            "-out tsa.pem -extfile ts.cnf -extensions tsa"
        )
        self.root = home / "root.pem"
        self.url = ""

    def _openssl(self, arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments.split()], cwd=self.home, check=True, capture_output=True
        )

    def answer(self, query: bytes) -> bytes:
        """The answer to a query; a refusal has no token."""
        (self.home / "query").write_bytes(b"" if self.refuses else query)
        self._openssl(
            "ts -reply -config ts.cnf -section authority -queryfile query -signer tsa.pem "
            "-inkey tsa.key -chain tsa.pem -out answer"
        )
        return (self.home / "answer").read_bytes()


@contextmanager
def timestamp_authority(home: Path) -> Iterator[Authority]:
    """Start one on a free port of loopback."""
    authority = Authority(home)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = authority.answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        authority.url = f"http://127.0.0.1:{server.server_port}/"
        try:
            yield authority
        finally:
            server.shutdown()
            thread.join()
