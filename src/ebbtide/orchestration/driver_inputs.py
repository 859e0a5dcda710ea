"""Inputs of a Spark driver: arguments, environment variables, a request file, and paths.

Nothing here imports Airflow, so that commands start fast. Linux allows 128 KiB in one argument or
variable, and about 2 MB in all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ebbtide.errors import (
    ConfigurationError,
    RequestError,
)
from ebbtide.orchestration.outcome import cause_line
from ebbtide.specs.params import JobParam

# Limits of one argument or variable, and of all arguments, with room for Spark's own.
MAX_VALUE_BYTES = 100_000
MAX_ARGUMENTS_BYTES = 1_000_000


def options_of_params(params: Mapping[str, Any], asked: Iterable[JobParam]) -> list[str]:
    """Return the job's arguments, without the Params that `hidden_of_params` passes.

    Raise RequestError for a URI with credentials: spark-submit's log would show them.
    """
    shown = (param for param in asked if param.flag and not param.variable)
    return [text for param in shown for text in param.to_arguments(params.get(param.name))]


def hidden_of_params(params: Mapping[str, Any], asked: Iterable[JobParam]) -> dict[str, str]:
    """Return the driver's environment variables. A list becomes one line per item."""
    values = {}
    for param in asked:
        if param.variable and (value := params.get(param.name)):
            lines = value if isinstance(value, list | tuple) else [value]
            values[param.variable] = "\n".join(map(str, lines))
            check_size(values[param.variable], param.name, "Put them into a file")
    return values


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """Files that only this user can access, while the job runs."""

    directory: Path
    request: Path | None = None  # a DeleteRecords request

    @property
    def plan(self) -> Path:
        """The file to which a job that only plans writes its plan."""
        return self.directory / "plan.txt"

    @property
    def causes(self) -> Path:
        """The file to which a job writes causes of failures that `runs` does not record."""
        return self.directory / "causes.jsonl"

    def read_causes(self) -> list[str]:
        """Return the causes as one line each, with the topic."""
        lines = self.causes.read_text().splitlines() if self.causes.exists() else []
        read = [json.loads(line) for line in lines]
        return [
            ("" if topic is None else f"{topic}: ") + cause_line(error_class, message)
            for topic, error_class, message in read
        ]

    def read_plan(self) -> str:
        """Return the plan, or "" if the job wrote none."""
        return self.plan.read_text() if self.plan.exists() else ""


@contextmanager
def driver_files(request: Mapping[str, Any] | None = None) -> Iterator[DriverFiles]:
    """Yield a private directory that contains the request. Delete it when the block ends."""
    with TemporaryDirectory(prefix="ebbtide-") as directory:  # of mode 0700
        file = Path(directory) / "request.json"
        if request is not None:
            file.touch(mode=0o600)
            file.write_text(json.dumps(request))
        yield DriverFiles(Path(directory), None if request is None else file)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise RequestError if the operating system would refuse the command line."""
    option = "the arguments"
    for argument in arguments:
        option = argument if argument.startswith("--") else option
        check_size(argument, option, "Make the value shorter")
    size_bytes = sum(len(argument.encode()) + 1 for argument in arguments)
    if size_bytes > MAX_ARGUMENTS_BYTES:
        raise RequestError(
            f"expected at most {MAX_ARGUMENTS_BYTES:,} bytes of arguments, found {size_bytes:,} in "
            f"{len(arguments):,}. Name fewer topics per run"
        )


def check_size(value: str, name: str, remedy: str) -> None:
    """Raise RequestError if the operating system would refuse the value."""
    size_bytes = len(value.encode())
    if size_bytes > MAX_VALUE_BYTES:
        raise RequestError(
            f"expected at most {MAX_VALUE_BYTES:,} bytes in {name}, found {size_bytes:,}. {remedy}"
        )


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of an installation."""

    root: Path  # with jobs/ and dags/
    home: Path  # with files made at set-up and at run time

    @property
    def jobs(self) -> Path:
        """The directory of the jobs' main files for spark-submit."""
        return self.root / "jobs"

    @property
    def package_zip(self) -> Path:
        """The package's archive, which Spark's executors import."""
        return self.home / "ebbtide.zip"

    @property
    def logs(self) -> Path:
        """The directory with the full output of `make run`."""
        return self.home / "logs"


def paths() -> Paths:
    """Return the directories named by EBBTIDE_ROOT and EBBTIDE_HOME."""
    return Paths(root=_directory("EBBTIDE_ROOT"), home=_directory("EBBTIDE_HOME"))


def _directory(variable: str) -> Path:
    path = os.environ.get(variable)
    if not path:
        raise ConfigurationError(
            f"expected {variable} in the environment, found none. "
            "Load .ebbtide/conf/airflow.env, which `make setup` writes, or set it as "
            "docs/deploy.md shows"
        )
    return Path(path)
