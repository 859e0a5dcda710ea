"""Servers that tests start and end: real ones, on ports of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import LOOPBACK
from tests.waiting import PATIENCE_S

START_SECONDS = PATIENCE_S
STOP_SECONDS = 30.0
TAIL_LINES = 25


class ServiceError(Exception):
    """A server that did not start; the message ends with the tail of its output."""


class Server:
    """One process, between `start` and `stop`; it can be killed and started again."""

    start_seconds = START_SECONDS

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        output: Path,
        environment: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self.name = name
        self.host = host
        self.command = list(command)
        self.port = port
        self.output = output
        self.environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self._wait_until(self.answers, self.start_seconds)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def answers(self) -> bool:
        """Whether somebody listens on its port."""
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((self.host, self.port)) == 0

    def kill(self) -> None:
        """End it and its children at once, as a crash would."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and make it end if it does not."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait_until(self, is_there: Callable[[], bool], seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while not is_there():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServiceError(f"{self.name} did not start:\n{self.tail()}")
            time.sleep(0.1)

    def tail(self) -> str:
        """The end of what it said."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-TAIL_LINES:])
