"""Random logs in adopted tables, through Kafka's own cleaner too: what is left is the same.

`python -m tests.jobs.clean_adopted` compares as many as one asks for.
"""

from pathlib import Path

import pytest

from tests.jobs.clean_adopted.comparison import Case, differences
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted_layouts import LAYOUTS, SPARK_SOURCE

FEW = [Case(SPARK_SOURCE, 2, 24, 3, nights=2)]
# Each night takes its time for all logs of a table, however many there are.
OTHERS = [layout for layout in LAYOUTS if layout is not SPARK_SOURCE]
MANY = [
    Case(SPARK_SOURCE, 2, 48, 3),
    *(Case(other, 3 + n, 24, 2 + n % 2, nights=2) for n, other in enumerate(OTHERS)),
]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FEW, id="24 logs"),
        pytest.param(MANY, id="logs in every layout", marks=pytest.mark.long),
    ],
)
def test_kafka_leaves_the_same(
    cases: list[Case], sandbox: LakeSandbox, cluster: str, tmp_path: Path, kafka_jars: Path
) -> None:
    assert not differences(sandbox.session, cases, f"{cluster}.t", tmp_path, kafka_jars)
