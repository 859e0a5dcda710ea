"""The process that runs a DAG several times, and what it prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ebbtide.local.commands import failure, start

SUCCEEDED = "success"  # Airflow's word for the state
# As `ebbtide.orchestration.several_runs` prints it.
_ENDED = re.compile(r"^ebbtide: the run has ended: (\w+)$")


@dataclass(frozen=True, slots=True)
class DagRuns:
    """A process that waits for runs to do; it imports Airflow while others work."""

    process: subprocess.Popen[str]

    @classmethod
    def of(cls, dag: str) -> Self:
        """Start the process."""
        return cls(start([sys.executable, "-m", "ebbtide.orchestration.several_runs", dag]))

    def run(
        self, conf: Mapping[str, Any], log: Path, cause: Callable[[], str] | None = None
    ) -> Iterator[str]:
        """Run the DAG, pass on what it prints line by line, and keep all of it in `log`.

        Raise StepError where the run fails, with the cause or with the end of the output.
        """
        state = "with its process"
        with suppress(BrokenPipeError):  # the output tells why the process has ended
            self._ask(conf)
        with log.open("w") as full:
            for line in self.process.stdout or ():
                if ended := _ENDED.match(line.rstrip("\n")):
                    state = ended[1]
                    break
                full.write(line)
                full.flush()
                yield line
        if state != SUCCEEDED:
            raise failure(f"the run ended: {state}", log, cause)

    def _ask(self, conf: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(conf)}\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.process.terminate()
        self.process.communicate()
