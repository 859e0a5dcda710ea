"""Which commit points the tests really killed a job at; a whole run fails on one that none hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

# Tests of these marks have runs of their own: pyproject.toml leaves them out of every other.
MARKS_OF_OTHER_RUNS = frozenset({"browser", "compose", "long", "pairs", "services"})

_hit: set[str] = set()


def record_hit(step: str) -> None:
    """Note that a job ended at this commit point; called by whatever ends it there."""
    _hit.add(str(step))


def all_steps() -> list[str]:
    """Every commit point, in order."""
    from ebbtide.iceberg.commits import Step  # here, since it brings Spark

    return [str(step) for step in Step]


class CommitPoints:
    """Plugin: gathers what the processes of a run hit, and fails the run for what none hit.

    A run is judged if it took every test of every file below `directory`, other than those that
    have runs of their own, and none of them failed.
    """

    def __init__(self, directory: Path, steps: Callable[[], Sequence[str]] = all_steps) -> None:
        self.directory = directory
        self.steps = steps
        self.is_whole = False
        self.is_narrowed = False
        self.files_of_other_runs: set[Path] = set()
        self.missed: list[str] = []

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Tell tests that have a run of their own from tests that this run was to leave out."""
        of_other_runs = [item for item in items if is_of_another_run(item)]
        self.files_of_other_runs |= {item.path for item in of_other_runs}
        self.is_narrowed |= len(of_other_runs) < len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        taken = {item.path for item in session.items} | self.files_of_other_runs
        is_every_file = taken >= set(self.directory.rglob("test_*.py"))
        is_narrowed = self.is_narrowed or any("::" in arg for arg in session.config.args)
        self.is_whole = is_every_file and not is_narrowed and not session.config.option.collectonly

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take over what a process of xdist's hit; one that crashed has no output."""
        output: dict[str, Any] = getattr(node, "workeroutput", {})
        self.is_whole |= output.get("is_whole", False)
        _hit.update(output.get("hit", ()))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output.update(hit=sorted(_hit), is_whole=self.is_whole)
        elif self.is_whole and exitstatus == pytest.ExitCode.OK:
            self.missed = missed(self.steps(), _hit)
            if self.missed:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.missed:
            terminalreporter.section("commit points", red=True)
        for step in self.missed:
            terminalreporter.line(f"FAILED: no test killed a job before the commit {step}")


def is_of_another_run(item: pytest.Item) -> bool:
    """Whether the test has a mark that every other run leaves out."""
    return any(mark.name in MARKS_OF_OTHER_RUNS for mark in item.iter_markers())


def missed(steps: Iterable[str], hit: Iterable[str]) -> list[str]:
    """The steps that are not among those hit, in order."""
    hit = set(hit)
    return [step for step in steps if step not in hit]
