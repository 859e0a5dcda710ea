"""One check of an installation: what was expected, what is so, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ebbtide.text import one_line


class Status(StrEnum):
    """How a check ended; a warning is something that works, but worse than it could."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `remedy` is empty where nothing is to be done."""

    name: str
    status: Status
    expected: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """A check to be made. `look` returns what it found, or raises what is wrong."""

    name: str
    expected: str
    remedy: str
    look: Callable[[], str]
    is_needed: bool = True

    def check(self) -> Check:
        """Look; whatever is raised is what was found."""
        try:
            return Check(self.name, Status.OK, self.expected, self.look())
        except Exception as error:  # a broken installation may raise anything
            found = one_line(str(error)) or type(error).__name__
        status = Status.FAILED if self.is_needed else Status.WARNING
        return Check(self.name, status, self.expected, found, self.remedy)


def by_setup(*steps: str) -> str:
    """Return the remedy that makes a part of the installation: make, or steps of docs/deploy.md."""
    own = " and ".join(f"`{step}`" for step in steps)
    return f"run `make setup`, or in an Airflow of your own {own}"


class ProblemError(Exception):
    """What a probe found instead of what was expected."""


def checked(probes: Iterable[Probe]) -> list[Check]:
    """Make the checks in order."""
    return [probe.check() for probe in probes]
