"""Prepare a driver's inputs: arguments, environment variables, and a file for a request.

Linux takes at most 128 KiB in one argument or variable, and some 2 MB in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ebbtide.errors import RequestError
from ebbtide.log.settings.credentials import check_uri
from ebbtide.orchestration.outcome import cause_line

# One argument or variable, and all arguments together, with room for what Spark adds.
MAX_VALUE_BYTES = 100_000
MAX_ARGUMENTS_BYTES = 1_000_000


def options_of_params(params: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    """Return job arguments for Params: true is a bare option, a list repeats it, null is none.

    False is none, too. Raise RequestError for a URI with credentials, which the log of
    spark-submit would show.
    """
    arguments: list[str] = []
    for name, option in options.items():
        value = params.get(name)
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            for one in _values(value):
                arguments += [option, check_uri(str(one))]
    return arguments


def hidden_of_params(params: Mapping[str, Any], hidden: Mapping[str, str]) -> dict[str, str]:
    """Return variables for Params that no command line may show; a list gets a line an item."""
    values = {
        variable: "\n".join(map(str, _values(params[name])))
        for name, variable in hidden.items()
        if params.get(name)
    }
    for name, variable in hidden.items():
        check_size(values.get(variable, ""), name, "put them into a file")
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


def _values(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else [value]
