"""No round changes what a reader gets of a key, also one for what is due in a log that is dirty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import pytest

from tests.jobs.clean_adopted.random_logs import KEYS, Left, RandomTopic, random_topic
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, clean
from tests.tables.adopted_layouts import SPARK_SOURCE

LOGS = 24
# Most nights leave a log dirty below this, and tombstones of it due.
DIRTY_RATIO = "0.6"


@pytest.mark.parametrize(
    ("seed", "nights"), [(1, 3), *(pytest.param(n, 5, marks=pytest.mark.long) for n in (2, 3))]
)
def test_the_latest_value_of_each_key_stays(
    sandbox: LakeSandbox, cluster: str, seed: int, nights: int
) -> None:
    spark, layout, name = sandbox.session, SPARK_SOURCE, f"{cluster}.t"
    topic = dirty_topic(seed, nights)
    layout.create(spark, name, 2)
    settings = {f"kafka.{setting}": value for setting, value in topic.config.items()}
    went = 0
    for number, now_ms in enumerate(topic.nights_ms):
        layout.append(spark, name, list(chain.from_iterable(log[number] for log in topic.logs)))
        if not number:
            closed = {**settings, "kafka.segment.ms": "1"}
            adopt(spark, name, closed, layout.choices, now_ms=now_ms - 1)
        clean(spark, name, now_ms)
        live: dict[int, Left] = {partition: {} for partition in range(LOGS)}
        for partition, offset, _ in layout.live(spark, name):
            live[partition][offset] = None
        for partition, log in enumerate(topic.logs):
            written = list(chain.from_iterable(log[: number + 1]))
            left = [record for record in written if record.offset in live[partition]]
            assert latest(left) == latest(written), f"partition {partition}, night {number}"
            went += len(tombstones(written)) - len(tombstones(left))
    assert went, "no tombstone was removed: the test shows nothing"


def dirty_topic(seed: int, nights: int) -> RandomTopic:
    """Logs that a round in the usual order would pass by on some nights."""
    topic = random_topic(seed, LOGS, nights)
    changed = {"min.cleanable.dirty.ratio": DIRTY_RATIO, "delete.retention.ms": "1"}
    return topic._replace(config={**topic.config, **changed})


def latest(records: Sequence[Record]) -> Mapping[str, int]:
    """The offset of the value that a reader gets of each key; none of a deleted key."""
    last = {record.key: record for record in records}
    return {k: last[k].offset for k in KEYS if k in last and k and last[k].value is not None}


def tombstones(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.value is None]
