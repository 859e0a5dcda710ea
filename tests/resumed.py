"""Go on with a run of tests that was stopped: files that have passed are left out.

What has passed counts for the sources it ran on alone. The list is a file of lines: the sources'
mark, then a test file each.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.durations import file_of

ROOT = Path(__file__).resolve().parent.parent
# What was passed when the run began, as all of its processes are to see it.
_BEGUN_WITH = "EBBTIDE_TESTS_PASSED"


def mark_of_sources() -> str:
    """Return what differs as soon as a file of the checkout does."""
    diff = subprocess.run(["git", "diff", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    named = ["git", "ls-files", "--others", "--exclude-standard"]
    files = subprocess.run(named, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    mark = hashlib.sha256(head.stdout + diff.stdout)
    for name in files.splitlines():
        mark.update(name.encode() + (ROOT / name).read_bytes())
    return mark.hexdigest()


def read_passed(path: Path, mark: str) -> list[str]:
    """Return the files that have passed on these sources."""
    lines = path.read_text().splitlines() if path.exists() else []
    return lines[1:] if lines[:1] == [mark] else []


class Resumed:
    """Plugin: leaves out files that have passed, and writes down those that pass."""

    def __init__(self, path: Path, mark: str) -> None:
        self.path = path
        self.is_worker = _BEGUN_WITH in os.environ and "PYTEST_XDIST_WORKER" in os.environ
        if self.is_worker:
            self.passed = os.environ[_BEGUN_WITH].split("\n")
        else:
            self.passed = read_passed(path, mark)
            os.environ[_BEGUN_WITH] = "\n".join(self.passed)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([mark, *self.passed]) + "\n")
        self.left: Counter[str] = Counter()
        self.failed: set[str] = set()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        done = [item for item in items if file_of(item.nodeid) in self.passed]
        if done:
            items[:] = [item for item in items if file_of(item.nodeid) not in self.passed]
            config.hook.pytest_deselected(items=done)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._expect(ids)

    def _expect(self, ids: Collection[str]) -> None:
        if ids and not self.left:
            self.left = Counter(map(file_of, ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(file_of(report.nodeid))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        file = file_of(nodeid)
        self.left[file] -= 1
        if not self.is_worker and self.left[file] == 0 and file not in self.failed:
            with self.path.open("a") as passed:
                passed.write(f"{file}\n")

    def pytest_report_header(self) -> str:
        return f"{len(self.passed)} files have passed before and are left out" * bool(self.passed)
