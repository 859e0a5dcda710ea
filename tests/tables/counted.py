"""Jobs between two looks at the tables, as every job does its work, and what the count must be."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from ebbtide.iceberg.foreign_changes import Counted, count_own
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import seen_of, told_rows


def looking(spark: SparkSession, name: TopicName, job: Callable[[], JobOutcome]) -> JobOutcome:
    """Run the job as `run_topics` does."""
    count_own(load(spark, name))
    outcome = job()
    assert_counted(spark, name)
    return outcome


def assert_counted(spark: SparkSession, name: TopicName) -> None:
    """The state tells each table's newest snapshot, and the rows that it has."""
    topic = count_own(load(spark, name))
    for table in Counted.of(name):
        seen = seen_of(topic.properties, table.what)
        current = current_snapshot(spark, table.table)
        assert seen is not None
        assert seen.snapshot == current
        rows = spark.table(table.table).groupBy("partition", "segment").count().collect()
        assert told_rows(topic.properties, table.what) == {(p, s): count for p, s, count in rows}
