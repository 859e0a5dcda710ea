"""What every test needs before Spark starts in its process."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from ebbtide.runs.application import STRICT
from tests.commit_points import CommitPoints
from tests.fresh_seed import FRESH_SEED
from tests.slowest_files import begun_at, slowest_files

# Spark's Python workers run in this environment, whatever `python3` is on the path.
os.environ["PYSPARK_PYTHON"] = str(Path(__file__).resolve().parent.parent / "conf" / "python")
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ[STRICT] = "yes"

# A busy machine must not fail a test, and a landing must not depend on the examples drawn.
settings.register_profile("ebbtide", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ebbtide")


# What helpers assert is shown in full when it fails, as it is of tests.
pytest.register_assert_rewrite(
    "tests.tables", "tests.stages", "tests.jobs", "tests.nights", "tests.services"
)


def pytest_configure(config: pytest.Config) -> None:
    """Fail a whole run in which no test killed a job at some commit point."""
    config.pluginmanager.register(CommitPoints(Path(__file__).parent), "commit points")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    items.sort(key=lambda item: begun_at(item.nodeid))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the files that took longest, fixtures included."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    phases = [(r.nodeid, r.duration) for r in reports if isinstance(r, pytest.TestReport)]
    terminalreporter.line(f"fresh seed: {FRESH_SEED}")
    terminalreporter.section("slowest files")
    for file, seconds in slowest_files(phases):
        terminalreporter.line(f"{seconds:7.1f} s  {file}")
