"""One check of an installation: what was expected, what is so, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ebbtide.text import one_line

Adds = Callable[[Callable[[], str]], Callable[[], str]]


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


class Checks:
    """Checks in the order in which they were added, each of which needs those before it."""

    def __init__(self) -> None:
        self._made: list[Callable[[], Check]] = []
        self.remedies: dict[str, str] = {}

    def add(self, name: str, expected: str, remedy: str, *, is_needed: bool = True) -> Adds:
        """Add a check; the decorated function returns what it found, or raises what is wrong."""

        def added(look: Callable[[], str]) -> Callable[[], str]:
            def check() -> Check:
                try:
                    return Check(name, Status.OK, expected, look())
                except Exception as error:  # a broken installation may raise anything
                    found = one_line(str(error)) or type(error).__name__
                status = Status.FAILED if is_needed else Status.WARNING
                return Check(name, status, expected, found, remedy)

            self._made.append(check)
            self.remedies[name] = remedy
            return look

        return added

    def make(self) -> list[Check]:
        """Make the checks in order."""
        return [check() for check in self._made]


def by_setup(*steps: str) -> str:
    """Return the remedy that makes a part of the installation: make, or steps of docs/deploy.md."""
    own = " and ".join(f"`{step}`" for step in steps)
    return f"run `make setup`, or in an Airflow of your own {own}"


class ProblemError(Exception):
    """What a check found instead of what was expected."""
