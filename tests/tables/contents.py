"""All that a topic's tables hold, to be compared as a whole."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import PartitionState


class Contents(NamedTuple):
    """All that the tables hold of a topic."""

    records: list[dict[str, Any]]
    batches: list[dict[str, Any]]
    states: dict[int, PartitionState]


def contents(spark: SparkSession, name: TopicName) -> Contents:
    """Rows in the order of the log."""
    tables = (
        spark.table(name.records_table).orderBy("partition", "offset"),
        spark.table(name.batches_table).orderBy("partition", "base_offset"),
    )
    records, batches = (table.toArrow().to_pylist() for table in tables)
    return Contents(records, batches, load(spark, name).partitions)
