from pathlib import Path

import pytest

from tests import airflow_env  # noqa: F401  before anything of Airflow
from tests.lake_sandbox import LakeSandbox


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeSandbox:
    """A lake of the test's own."""
    sandbox = LakeSandbox(tmp_path / "home")
    for name, value in sandbox.environment().items():
        monkeypatch.setenv(name, value)
    return sandbox
