"""Write the logs of a run that is no scheduler's where Airflow's UI looks for them.

Such a run prints its tasks' output and writes no file, so the UI would show none of it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

STARTING = re.compile(r"\[DAG TEST\] starting task_id=(\S+) map_index=(-?\d+)")
ENDING = re.compile(r"\[DAG TEST\] end task task_id=(\S+)")


@dataclass(slots=True)
class TaskLogs:
    """Takes the output line by line; what a task says goes into the file of that try."""

    dag: str
    folder: Path
    current: Path | None = None
    tries: dict[Path, int] = field(default_factory=dict)

    def see(self, line: str, run_id: str) -> None:
        """Take in one line of output of the run."""
        if started := STARTING.search(line):
            self._start(run_id, started[1], int(started[2]))
        if self.current is not None:
            with self.current.open("a") as file:
                file.write(line)
        if ENDING.search(line):
            self.current = None

    def _start(self, run_id: str, task: str, map_index: int) -> None:
        """Begin a task's log under Airflow's default log_filename_template."""
        where = self.folder / f"dag_id={self.dag}" / f"run_id={run_id}" / f"task_id={task}"
        if map_index >= 0:
            where /= f"map_index={map_index}"
        self.tries[where] = self.tries.get(where, 0) + 1
        where.mkdir(parents=True, exist_ok=True)
        self.current = where / f"attempt={self.tries[where]}.log"


def log_folder() -> Path:
    """Return Airflow's base_log_folder."""
    home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    given = os.environ.get("AIRFLOW__LOGGING__BASE_LOG_FOLDER")
    return Path(given or f"{home}/logs").expanduser()
