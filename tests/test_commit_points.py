"""A whole run fails on a commit point that no test hit; a run of some tests does not."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.commit_points import MARKS_OF_OTHER_RUNS, missed

ROOT = Path(__file__).resolve().parent.parent
PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
# What `make test` leaves out.
DESELECTED = shlex.split(PYTEST["addopts"])[-1]
CONFTEST = """
from pathlib import Path
from tests.commit_points import CommitPoints

def pytest_configure(config):
    config.pluginmanager.register(CommitPoints(Path(__file__).parent, lambda: ["a", "b"]))
"""
HITS = "from tests.commit_points import record_hit\n\ndef test_it():\n    record_hit({step!r})\n"
MARKED = "import pytest\n\n@pytest.mark.{mark}\ndef test_it():\n    pass\n"
NEVER = "no test killed a job before the commit "


def run(directory: Path, hits: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run files of one test each, which hit these steps."""
    (directory / "conftest.py").write_text(CONFTEST)
    for name, step in hits.items():
        (directory / f"test_{name}.py").write_text(HITS.format(step=step))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", "."]
    # Other plugins take longer to load than these tests to run.
    command += ["-p", "xdist.plugin"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *options], cwd=directory, env=environment, capture_output=True, text=True
    )


IN_PROCESSES = pytest.mark.parametrize(
    "options", [[], ["--numprocesses", "2", "--dist", "loadfile"]], ids=["one process", "two"]
)


@IN_PROCESSES
def test_a_whole_run_that_hit_every_step_passes(tmp_path: Path, options: list[str]) -> None:
    """Also if each was hit in a process of its own."""
    done = run(tmp_path, {"one": "a", "two": "b"}, *options)
    assert done.returncode == 0, done.stdout
    assert NEVER not in done.stdout


@IN_PROCESSES
def test_a_whole_run_fails_naming_the_step_that_no_test_hit(
    tmp_path: Path, options: list[str]
) -> None:
    done = run(tmp_path, {"one": "a", "two": "a"}, *options)
    assert done.returncode == 1, done.stdout
    assert "2 passed" in done.stdout
    assert NEVER + "b" in done.stdout
    assert NEVER + "a" not in done.stdout


@IN_PROCESSES
def test_a_run_without_the_tests_that_have_runs_of_their_own_is_whole(
    tmp_path: Path, options: list[str]
) -> None:
    """As `make test` is, by what pyproject.toml adds to every command."""
    for mark in MARKS_OF_OTHER_RUNS:
        (tmp_path / f"test_{mark}.py").write_text(MARKED.format(mark=mark))
    done = run(tmp_path, {"one": "a", "two": "a"}, *options, "-m", DESELECTED)
    assert "2 passed" in done.stdout, done.stdout
    assert done.returncode == 1, done.stdout
    assert NEVER + "b" in done.stdout


def test_a_run_without_tests_of_another_mark_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "test_broker.py").write_text(MARKED.format(mark="broker"))
    done = run(tmp_path, {"one": "a", "two": "a"}, "-m", f"{DESELECTED} and not broker")
    assert "2 passed, 1 deselected" in done.stdout, done.stdout
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["test_one.py"],
        ["-k", "one"],
        ["test_one.py::test_it", "test_two.py"],
        ["--numprocesses", "2", "-k", "one"],
        ["--collect-only"],
    ],
    ids=" ".join,
)
def test_a_run_of_some_tests_is_not_judged(tmp_path: Path, options: list[str]) -> None:
    done = run(tmp_path, {"one": "a", "two": "a"}, *options)
    assert done.returncode == 0, done.stdout
    assert NEVER not in done.stdout


def test_a_run_that_failed_anyway_names_its_failure_only(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("def test_it():\n    assert False\n")
    done = run(tmp_path, {"one": "a"})
    assert done.returncode == 1
    assert NEVER not in done.stdout


def test_missed_steps_keep_their_order() -> None:
    assert missed(["c", "b", "a"], ["b"]) == ["c", "a"]
