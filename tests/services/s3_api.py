"""An S3 API: moto's server, which checks no signatures and keeps everything in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow.fs

from tests.lake_sandbox import EBBTIDE_HOME
from tests.ports import LOOPBACK, free_port
from tests.services.process import Server

MOTO = EBBTIDE_HOME / "services" / "bin" / "moto_server"
BUCKET = "archive"
KEY, SECRET = "tests-key", "tests-secret"
REGION = "eu-central-1"


# A line of its log, which colours some.
_REQUEST = re.compile(rf'"(?:\x1b\[[0-9;]*m)*([A-Z]+) /{BUCKET}/?(\S*) HTTP/')


def s3_settings(endpoint: str) -> dict[str, str]:
    """What a catalog says of an S3 API of the tests."""
    return {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "client.region": REGION,
    }


class Request(NamedTuple):
    """What an object was asked for."""

    method: str
    key: str


class S3Api(Server):
    """A server with one empty bucket."""

    def __init__(self, directory: Path, host: str = LOOPBACK) -> None:
        port = free_port(host)
        command = [str(MOTO), "-H", host, "-p", str(port)]
        super().__init__("the S3 API", command, port, directory / "s3.log", host=host)

    def start(self) -> None:
        """Start it, with its bucket."""
        super().start()
        file_system = self.file_system(allow_bucket_creation=True)
        file_system.create_dir(BUCKET)

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    def file_system(self, **more: bool) -> pyarrow.fs.S3FileSystem:
        """What looks into it beside ebbtide."""
        return pyarrow.fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region=REGION,
            scheme="http",
            endpoint_override=f"{self.host}:{self.port}",
            **more,
        )

    def settings(self) -> dict[str, str]:
        """What a catalog says of it."""
        # A busy machine must not fail a test: PyArrow alone waits three seconds.
        patience = {"http-client.apache.socket-timeout-ms": "60000"}
        return s3_settings(self.endpoint) | patience

    def requests(self) -> list[Request]:
        """All that it was asked, in order."""
        seen = _REQUEST.findall(self.output.read_text(errors="replace"))
        return [Request(method, unquote(key.partition("?")[0])) for method, key in seen]

    def upload(self, directory: Path, to: str) -> str:
        """Copy a directory's files into the bucket; its URI there."""
        pyarrow.fs.copy_files(
            str(directory), f"{BUCKET}/{to}", destination_filesystem=self.file_system()
        )
        return f"s3://{BUCKET}/{to}"
