"""Seeds of random tests: fixed ones, those that once found a failure, and one that no run has had.

The fresh one is the same in all of a run's processes, and part of the tests' names. What it finds
may be older than the change that is to land, so it never refuses a landing: with CI set, the run
says what failed and passes. The seed is stored either way, and decides from then on.
EBBTIDE_TEST_SEED sets it, to repeat a run.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAME = "EBBTIDE_TEST_SEED"
_IS_LANDING = "CI"
_ROOT = Path(__file__).resolve().parent.parent
STORED = Path(__file__).parent / "seeds.json"
_FOUND = "a fresh seed found this: "

FRESH_SEED = int(os.environ.setdefault(_NAME, str(random.SystemRandom().randrange(2, 10**6))))


def seeds(file: str, *fixed: int, marks: tuple[Any, ...] = ()) -> list[Any]:
    """Return the seeds of a test file's random test as pytest's parameters.

    `marks` are for the fresh one.
    """
    stored = read_seeds().get(str(Path(file).resolve().relative_to(_ROOT)), [])
    decisive = dict.fromkeys([*fixed, *stored])
    return [*decisive, pytest.param(FRESH_SEED, marks=[pytest.mark.fresh, *marks])]


def read_seeds(path: Path | None = None) -> dict[str, list[int]]:
    """Return the seeds that have found failures, by test file."""
    path = path or STORED
    stored: dict[str, list[int]] = json.loads(path.read_text()) if path.exists() else {}
    return stored


def store_seed(file: str, seed: int, path: Path | None = None) -> None:
    """Store a seed, which decides from then on."""
    path = path or STORED
    stored = read_seeds(path)
    stored[file] = sorted({*stored.get(file, ()), seed})
    path.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n")


class FreshSeeds:
    """Plugin: stores a fresh seed that found a failure; in a landing, it fails nothing."""

    def __init__(self, stored: Path | None = None) -> None:
        self.stored = stored

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        outcome: Any = yield
        report: pytest.TestReport = outcome.get_result()
        if not report.failed or item.get_closest_marker("fresh") is None:
            return
        file = item.nodeid.partition("::")[0]
        store_seed(file, FRESH_SEED, self.stored)
        if _IS_LANDING in os.environ:
            report.outcome = "skipped"
            report.wasxfail = f"{_FOUND}{_NAME}={FRESH_SEED} pytest {item.nodeid.split('[')[0]}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.line(f"fresh seed: {FRESH_SEED}")
        for report in terminalreporter.stats.get("xfailed", ()):
            if str(getattr(report, "wasxfail", "")).startswith(_FOUND):
                terminalreporter.section("found by the fresh seed", yellow=True)
                terminalreporter.line(f"{report.wasxfail}: add {FRESH_SEED} to tests/seeds.json")
                terminalreporter.line(report.longreprtext)
