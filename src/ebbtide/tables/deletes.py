"""The two ways in which rows leave: whole segments as metadata, single rows as vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.tables.commits import Step, commit, snapshot_properties
from ebbtide.tables.files import planned_tasks
from ebbtide.tables.java import iceberg_class, java_class
from ebbtide.tables.topics import java_table


def delete_segments(
    spark: SparkSession,
    table: str,
    snapshot: int,
    segments: Mapping[int, Sequence[int]],
    step: Step,
    properties: Mapping[str, str],
) -> None:
    """Drop whole physical segments, {partition: segments}, as one metadata commit.

    Their files are those of `snapshot`: what an ingest has added to one since then stays.
    """
    loaded = java_table(spark, table)
    delete = loaded.newDelete().validateFilesExist()
    for task in planned_tasks(loaded, snapshot, segments_filter(spark, segments)):
        delete = delete.deleteFile(task.file())
    for name, value in properties.items():
        delete = delete.set(name, value)
    commit(step, delete.commit)


def segments_filter(spark: SparkSession, segments: Mapping[int, Sequence[int]]) -> Any:
    """Iceberg's expression for physical segments, {partition: segments}."""
    expressions = iceberg_class(spark, "expressions.Expressions")
    to_long = java_class(spark, "java.lang.Long")
    # `in`, `or` and `and` are words of Python, so these Java methods are asked for by name.
    matches = expressions.alwaysFalse()
    for partition, bases in segments.items():
        in_segments = getattr(expressions, "in")("segment", [to_long(b) for b in bases])
        in_partition = expressions.equal("partition", partition)
        both = getattr(expressions, "and")(in_partition, in_segments)
        matches = getattr(expressions, "or")(matches, both)
    return matches


def delete_rows(
    spark: SparkSession, table: str, condition: str, step: Step, properties: Mapping[str, str]
) -> None:
    """Run `DELETE FROM table WHERE condition`; segment bounds in it must be literals."""
    with snapshot_properties(spark, properties):
        commit(step, lambda: spark.sql(f"DELETE FROM {table} WHERE {condition}"))
