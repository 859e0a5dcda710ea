"""The process that runs a DAG several times, and what it prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.local.commands import failure, start

SUCCEEDED = "success"  # Airflow's word for the state
# As `ebbtide.orchestration.several_runs` prints it.
_ENDED = re.compile(r"^ebbtide: the run has ended: (\w+)$")


@dataclass(frozen=True, slots=True)
class DagRuns:
    """A process that waits for runs to do; it imports Airflow while others work."""

    process: subprocess.Popen[str]

    def run(
        self, conf: Mapping[str, Any], log: Path, cause: Callable[[], str] | None = None
    ) -> Iterator[str]:
        """Run the DAG, pass on what it prints line by line, and keep all of it in `log`.

        Raise StepError where the run fails, with the cause or with the end of the output.
        """
        assert self.process.stdin is not None
        state = "with its process"
        with suppress(BrokenPipeError):  # the output tells why the process has ended
            self.process.stdin.write(f"{json.dumps(conf)}\n")
            self.process.stdin.flush()
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


@contextmanager
def running(command: Sequence[str]) -> Iterator[DagRuns]:
    """Start the process; it ends with the block, at once if that fails."""
    process = start(command)
    try:
        yield DagRuns(process)
    except BaseException:
        process.terminate()
        raise
    finally:
        process.communicate()


def several_runs(dag: str) -> list[str]:
    """Return the command that runs a DAG for each line of its input."""
    return [sys.executable, "-m", "ebbtide.orchestration.several_runs", dag]
