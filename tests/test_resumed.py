"""A run that was stopped goes on with the files that have not passed yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resumed import mark_of_sources, read_passed

ROOT = Path(__file__).resolve().parent.parent
CONFTEST = """
from pathlib import Path
from tests.resumed import Resumed

def pytest_configure(config):
    here = Path(__file__).parent
    config.pluginmanager.register(Resumed(here / "passed", (here / "mark").read_text()))
"""
FILES = {
    "one": "def test_a(): pass\ndef test_b(): pass\n",
    "two": "import pathlib\ndef test_c(): assert pathlib.Path(__file__).with_name('ok').exists()\n",
    "three": "def test_d(): pass\n",
}
TWO_PROCESSES = ["-p", "xdist.plugin", "--numprocesses", "2", "--dist", "loadfile"]


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST)
    for name, text in FILES.items():
        (directory / f"test_{name}.py").write_text(text)
    known = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST_", "EBBTIDE_TESTS"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", *options],
        cwd=directory,
        env={**known, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("options", [[], TWO_PROCESSES], ids=["one process", "two"])
def test_files_that_passed_are_left_out_until_the_sources_change(
    tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "mark").write_text("v1")
    done = run(tmp_path, *options)
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert sorted(read_passed(tmp_path / "passed", "v1")) == ["test_one.py", "test_three.py"]

    (tmp_path / "ok").touch()
    done = run(tmp_path, *options)
    assert "2 files have passed before and are left out" in done.stdout
    assert "1 passed" in done.stdout, done.stdout
    assert len(read_passed(tmp_path / "passed", "v1")) == 3

    (tmp_path / "mark").write_text("v2")
    assert read_passed(tmp_path / "passed", "v2") == []
    done = run(tmp_path, *options)
    assert "4 passed" in done.stdout, done.stdout


def test_a_run_that_is_stopped_has_written_down_what_passed(tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("v1")
    done = run(tmp_path, "-x", "test_one.py", "test_two.py", "test_three.py")
    assert done.returncode == 1
    assert read_passed(tmp_path / "passed", "v1") == ["test_one.py"]


def test_the_mark_of_the_sources_is_the_same_until_one_changes(tmp_path: Path) -> None:
    assert mark_of_sources() == mark_of_sources()
    stray = ROOT / "tests" / "a_file_that_is_not_there_otherwise.txt"
    before = mark_of_sources()
    stray.write_text(tmp_path.name)
    try:
        assert mark_of_sources() != before
    finally:
        stray.unlink()
    assert mark_of_sources() == before
