"""Random logs in an adopted table, through Kafka's own cleaner too: what is left is the same.

`python -m tests.stages.clean_adopted` compares as many as one asks for.
"""

from pathlib import Path

from tests.lake_sandbox import LakeSandbox
from tests.stages.clean_adopted.comparison import differences


def test_kafka_leaves_the_same(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, kafka_jars: Path
) -> None:
    """48 logs in a table of format 3, 5 nights each; each night takes its time for all of them."""
    assert not differences(sandbox.session, f"{cluster}.t", 2, 48, tmp_path, kafka_jars, 3)
