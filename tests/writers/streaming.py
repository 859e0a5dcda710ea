"""The application stream.py in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import BIN
from tests.services.process import Server
from tests.waiting import PATIENCE_S

STREAM = Path(__file__).with_name("stream.py")
END_SECONDS = PATIENCE_S


class Streaming(Server):
    """Structured Streaming to tables, each given with the name of its shape in stream.py."""

    start_seconds = 240.0

    def __init__(
        self,
        directory: Path,
        bootstrap_servers: str,
        lake: LakeSandbox,
        topic: str,
        tables: Mapping[str, str],
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        command = [str(BIN / "spark-submit"), str(STREAM), "--bootstrap", bootstrap_servers]
        command += ["--topic", topic, "--directory", str(directory)]
        command += [f"{shape}={table}" for table, shape in tables.items()]
        environment = {**lake.environment(), "PATH": f"{BIN}:{os.environ['PATH']}"}
        output = directory / "stream.log"
        super().__init__("Structured Streaming", command, 0, output, environment)

    def answers(self) -> bool:
        """Whether each query has had a batch."""
        return (self.directory / "started").exists()

    def end(self) -> None:
        """Let it write all that the topic holds and end; it must not have failed."""
        assert self._process is not None
        (self.directory / "stop").touch()
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        assert status == 0, f"Structured Streaming ended with {status}:\n{self.tail()}"
