"""Random logs in adopted tables, through Kafka's own cleaner too: what is left is the same.

`python -m tests.stages.clean_adopted` compares as many as one asks for.
"""

from pathlib import Path

from tests.lake_sandbox import LakeSandbox
from tests.stages.clean_adopted.comparison import Case, differences
from tests.tables.adopted_layouts import LAYOUTS, SPARK_SOURCE


def test_kafka_leaves_the_same(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, kafka_jars: Path
) -> None:
    """48 logs and 5 nights in one layout, 24 logs and 2 nights in each of the others.

    Each night takes its time for all logs of a table, however many there are.
    """
    others = [layout for layout in LAYOUTS if layout is not SPARK_SOURCE]
    cases = [Case(SPARK_SOURCE, 2, 48, 3)]
    cases += [Case(of, 3 + n, 24, 2 + n % 2, nights=2) for n, of in enumerate(others)]
    assert not differences(sandbox.session, cases, f"{cluster}.t", tmp_path, kafka_jars)
