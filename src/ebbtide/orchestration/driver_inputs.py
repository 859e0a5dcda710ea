"""What a driver is given: arguments, environment variables, a file for a request, and paths.

Nothing here imports Airflow, so that commands begin at once. Linux takes at most 128 KiB in one
argument or variable, and some 2 MB in all of them.
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

# One argument or variable, and all arguments together, with room for what Spark adds.
MAX_VALUE_BYTES = 100_000
MAX_ARGUMENTS_BYTES = 1_000_000


def options_of_params(params: Mapping[str, Any], asked: Iterable[JobParam]) -> list[str]:
    """Return the job's arguments; RequestError for a URI that the log of spark-submit would show.

    Those of a variable are none: no command line may show them.
    """
    shown = (param for param in asked if param.flag and not param.variable)
    return [text for param in shown for text in param.to_arguments(params.get(param.name))]


def hidden_of_params(params: Mapping[str, Any], asked: Iterable[JobParam]) -> dict[str, str]:
    """Return the driver's variables; a list gets a line an item."""
    values = {}
    for param in asked:
        if param.variable and (value := params.get(param.name)):
            lines = value if isinstance(value, list | tuple) else [value]
            values[param.variable] = "\n".join(map(str, lines))
            check_size(values[param.variable], param.name, "put them into a file")
    return values


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """Files that this user's driver alone can read and write, as long as the job runs."""

    directory: Path
    request: Path | None = None  # a DeleteRecords request

    @property
    def plan(self) -> Path:
        """The path to which a job that only plans writes its plan."""
        return self.directory / "plan.txt"

    @property
    def causes(self) -> Path:
        """The path to which a job writes the causes that no row in runs records."""
        return self.directory / "causes.jsonl"

    def read_causes(self) -> list[str]:
        """Return the causes, each in one line with its topic."""
        lines = self.causes.read_text().splitlines() if self.causes.exists() else []
        read = [json.loads(line) for line in lines]
        return [
            ("" if topic is None else f"{topic}: ") + cause_line(error_class, message)
            for topic, error_class, message in read
        ]

    def read_plan(self) -> str:
        """Return the plan, if the job wrote one."""
        return self.plan.read_text() if self.plan.exists() else ""


@contextmanager
def driver_files(request: Mapping[str, Any] | None = None) -> Iterator[DriverFiles]:
    """Yield a directory of this user's own, with the request in it, removed afterwards."""
    with TemporaryDirectory(prefix="ebbtide-") as directory:  # of mode 0700
        file = Path(directory) / "request.json"
        if request is not None:
            file.touch(mode=0o600)
            file.write_text(json.dumps(request))
        yield DriverFiles(Path(directory), None if request is None else file)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise RequestError where the operating system would refuse the command line."""
    option = "the arguments"
    for argument in arguments:
        option = argument if argument.startswith("--") else option
        check_size(argument, option, "make it shorter")
    size_bytes = sum(len(argument.encode()) + 1 for argument in arguments)
    if size_bytes > MAX_ARGUMENTS_BYTES:
        raise RequestError(
            f"expected at most {MAX_ARGUMENTS_BYTES:,} bytes of arguments, found {size_bytes:,} in "
            f"{len(arguments):,}; name fewer topics a run"
        )


def check_size(value: str, name: str, remedy: str) -> None:
    """Raise RequestError where the operating system would refuse the value."""
    size_bytes = len(value.encode())
    if size_bytes > MAX_VALUE_BYTES:
        raise RequestError(
            f"expected at most {MAX_VALUE_BYTES:,} bytes in {name}, found {size_bytes:,}; {remedy}"
        )


@dataclass(frozen=True, slots=True)
class Paths:
    """`root` holds jobs/ and dags/; `home` holds what is made at set-up and at run time."""

    root: Path
    home: Path

    @property
    def jobs(self) -> Path:
        """One spark-submit main a file."""
        return self.root / "jobs"

    @property
    def package_zip(self) -> Path:
        """The package as Spark's executors import it."""
        return self.home / "ebbtide.zip"

    @property
    def logs(self) -> Path:
        """Full output of what `make run` shows condensed."""
        return self.home / "logs"


def paths() -> Paths:
    """Return the paths that EBBTIDE_ROOT and EBBTIDE_HOME name."""
    return Paths(root=_directory("EBBTIDE_ROOT"), home=_directory("EBBTIDE_HOME"))


def _directory(variable: str) -> Path:
    path = os.environ.get(variable)
    if not path:
        raise ConfigurationError(
            f"expected {variable} in the environment, found it unset: "
            "load .ebbtide/conf/airflow.env, which `make setup` writes, or set it as "
            "docs/deploy.md says"
        )
    return Path(path)
