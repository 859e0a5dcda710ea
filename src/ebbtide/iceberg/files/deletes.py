"""The two ways in which rows leave: whole segments as metadata, single rows as vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step, commit, own_summary, snapshot_properties
from ebbtide.iceberg.files.data_files import planned_tasks
from ebbtide.iceberg.topics import snapshot_after
from ebbtide.spark.conditions import any_expression
from ebbtide.spark.jvm import iceberg_class, java_class

# Always true, and nothing that Iceberg could judge by a file's bounds: a DELETE that covers whole
# files would drop them by a commit in whose summary nobody can write whose it is.
_BY_ROWS = "bit_count(segment) >= 0"


def delete_segments(
    spark: SparkSession,
    table: str,
    snapshot: int,
    segments: Mapping[int, Sequence[int]],
    step: Step,
    properties: Mapping[str, str],
) -> int | None:
    """Drop whole physical segments, {partition: segments}; the snapshot of the metadata commit.

    Their files are those of `snapshot`: what an ingest has added to one since then stays.
    """
    loaded = java_table(spark, table)
    delete = loaded.newDelete().validateFilesExist()
    for task in planned_tasks(loaded, snapshot, segments_filter(spark, segments)):
        delete = delete.deleteFile(task.file())
    for name, value in own_summary(properties).items():
        delete = delete.set(name, value)
    return commit(step, partial(snapshot_after, spark, table, delete.commit))


def segments_filter(spark: SparkSession, segments: Mapping[int, Sequence[int]]) -> Any:
    """Iceberg's expression for physical segments, {partition: segments}."""
    expressions = iceberg_class(spark, "expressions.Expressions")
    to_long = java_class(spark, "java.lang.Long")
    # `in` and `and` are words of Python, so these Java methods are asked for by name.
    one_of, both = getattr(expressions, "in"), getattr(expressions, "and")
    in_segments = (
        both(
            expressions.equal("partition", partition),
            one_of("segment", [to_long(base) for base in bases]),
        )
        for partition, bases in segments.items()
    )
    return any_expression(spark, in_segments)


def delete_rows(
    spark: SparkSession, table: str, condition: str, step: Step, properties: Mapping[str, str]
) -> int | None:
    """Run `DELETE FROM table WHERE condition`; the newest snapshot then.

    Segment bounds in the condition must be literals.
    """
    delete = partial(spark.sql, f"DELETE FROM {table} WHERE ({condition}) AND {_BY_ROWS}")
    with snapshot_properties(spark, properties):
        return commit(step, partial(snapshot_after, spark, table, delete))
