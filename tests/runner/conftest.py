from pathlib import Path

import pytest

from tests.lake_sandbox import LakeSandbox


@pytest.fixture
def lake(tmp_path: Path) -> LakeSandbox:
    """A lake of the test's own."""
    return LakeSandbox(tmp_path / "home")
