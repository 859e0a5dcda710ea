"""What a fresh seed finds refuses no landing, is reported, and decides from then on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh_seed import FRESH_SEED, read_seeds, seeds, store_seed

ROOT = Path(__file__).resolve().parent.parent
CONFTEST = """
from pathlib import Path
from tests.fresh_seed import FreshSeeds

def pytest_configure(config):
    config.addinivalue_line("markers", "fresh: random")
    config.pluginmanager.register(FreshSeeds(Path(__file__).parent / "seeds.json"))
"""
RANDOM = """
import pytest
from tests.fresh_seed import FRESH_SEED

@pytest.mark.parametrize("seed", [1, pytest.param(FRESH_SEED, marks=pytest.mark.fresh)])
def test_it(seed):
    assert seed {is_right}, "this differs"
"""


def run(directory: Path, is_right: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_random.py").write_text(RANDOM.format(is_right=is_right))
    known = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", "-ra"],
        cwd=directory,
        env={
            **known,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "EBBTIDE_TEST_SEED": "4711",
            **environment,
        },
        capture_output=True,
        text=True,
    )


def stored(directory: Path) -> object:
    path = directory / "seeds.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_a_failure_of_a_fresh_seed_fails_an_ordinary_run(tmp_path: Path) -> None:
    done = run(tmp_path, "== 1")
    assert done.returncode == 1, done.stdout
    assert stored(tmp_path) == {"test_random.py": [4711]}


def test_it_refuses_no_landing_and_is_shown_with_how_to_repeat_it(tmp_path: Path) -> None:
    done = run(tmp_path, "== 1", CI="1")
    assert done.returncode == 0, done.stdout
    assert "found by the fresh seed" in done.stdout
    assert "EBBTIDE_TEST_SEED=4711 pytest test_random.py::test_it" in done.stdout
    assert "this differs" in done.stdout
    assert stored(tmp_path) == {"test_random.py": [4711]}


def test_a_fixed_seed_refuses_a_landing(tmp_path: Path) -> None:
    done = run(tmp_path, "!= 1", CI="1")
    assert done.returncode == 1, done.stdout
    assert stored(tmp_path) == {}


def test_what_was_stored_decides_with_the_fixed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "seeds.json"
    monkeypatch.setattr("tests.fresh_seed.STORED", path)
    store_seed("tests/test_fresh_seed.py", 9)
    store_seed("tests/test_fresh_seed.py", 7)
    store_seed("tests/test_other.py", 3)
    assert read_seeds() == {"tests/test_fresh_seed.py": [7, 9], "tests/test_other.py": [3]}
    *decisive, fresh = seeds(__file__, 1, 7)
    assert decisive == [1, 7, 9]
    assert fresh.values == (FRESH_SEED,)
    assert [mark.name for mark in fresh.marks] == ["fresh"]
