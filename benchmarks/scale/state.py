"""Say how large a topic's state and metadata are, and how long planning and a change take.

    python -m benchmarks.scale.state CLUSTER.TOPIC

The last line is JSON, seconds and bytes.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, current_snapshot, load
from ebbtide.lake.reader import open_lake
from ebbtide.settings.names import STATE_SUFFIX, TopicName
from ebbtide.state.topic_state import to_properties

REPEATS = 5


def main() -> None:
    name = TopicName.parse(sys.argv[1])
    spark = SparkSession.builder.appName("state").getOrCreate()
    load(spark, name)
    loads, changes = [], []
    for number in range(REPEATS):
        started = time.perf_counter()
        topic = load(spark, name)
        loads.append(time.perf_counter() - started)
        started = time.perf_counter()
        compare_and_set(topic, Step.ROUND_STATE, lambda now, n=number: _moved(now, n))
        changes.append(time.perf_counter() - started)
    times = {"load_s": median(loads), "change_s": median(changes), "plan_s": _plan_s(topic)}
    print(json.dumps({**times, **_sizes(spark, name)}))


def _plan_s(topic: Topic) -> float:
    """Seconds in which all segments of both tables are planned once."""
    ends = {partition: state.log_end_offset for partition, state in topic.partitions.items()}
    started = time.perf_counter()
    for table in (topic.name.records_table, topic.name.batches_table):
        snapshot = current_snapshot(topic.spark, table)
        if snapshot is not None:
            plan_segments(topic.spark, table, snapshot, ends)
    return time.perf_counter() - started


def _moved(topic: Topic, number: int) -> PropertyChanges:
    """All partitions' states, one of them another than before."""
    partition, state = next(iter(topic.partitions.items()))
    return to_properties(partition, state.moved(cleaned_at_ms=number))


def _sizes(spark: SparkSession, name: TopicName) -> dict[str, int]:
    with open_lake() as lake:
        state = lake.topic(str(name)).properties
    tables = {"records": name.records_table, "batches": name.batches_table}
    tables["state"] = f"lake.{name.cluster}{STATE_SUFFIX}.{name.topic}"
    io = {f"{what}_metadata_bytes": _metadata_bytes(spark, table) for what, table in tables.items()}
    return {"state_bytes": sum(len(n) + len(v) for n, v in state.items()), **io}


def _metadata_bytes(spark: SparkSession, table: str) -> int:
    loaded = java_table(spark, table)
    location = loaded.operations().current().metadataFileLocation()
    return int(loaded.io().newInputFile(location).getLength())


if __name__ == "__main__":
    main()
