"""Random logs in an adopted table, through Kafka's own cleaner too: what is left is the same.

`python -m tests.stages.clean_adopted` compares as many as one asks for.
"""

from pathlib import Path

import pytest

from tests.lake_sandbox import LakeSandbox
from tests.stages.clean_adopted.comparison import differences


@pytest.mark.parametrize("version", [2, 3])
def test_kafka_leaves_the_same(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, kafka_jars: Path, version: int
) -> None:
    """24 logs a table, 5 nights each."""
    name = f"{cluster}.t"
    assert not differences(sandbox.session, name, version, 24, tmp_path, kafka_jars, version)
