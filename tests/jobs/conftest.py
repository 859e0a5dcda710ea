from pathlib import Path

import pytest

from tests.kafka.conftest import kafka_jars as kafka_jars
from tests.lake_sandbox import LakeSandbox


@pytest.fixture
def lake(tmp_path: Path) -> LakeSandbox:
    """A lake of the test's own."""
    return LakeSandbox(tmp_path / "home")
