"""The live rows of an adopted table as records, by Spark's reader of Iceberg.

It knows every kind of delete, nested and renamed columns and all file formats; a row that others
have deleted is not among them (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError, ConfigurationError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.topics import Topic
from ebbtide.log.adopted.layout import LAYOUT, Column, Columns, Layout, NamedLayout
from ebbtide.log.adopted.shared_table import check_shares
from ebbtide.log.settings.names import TopicName, quoted


class AdoptedRows(NamedTuple):
    """An adopted table, and the columns that hold the parts of a record now.

    With `in_table`, only the rows of that one among the table's topics.
    """

    spark: SparkSession
    table: str
    ids: Layout
    layout: NamedLayout
    in_table: str | None = None

    @classmethod
    def of(cls, topic: Topic) -> AdoptedRows:
        """Find the columns of an adopted topic; ConfigurationError where one was dropped."""
        text = topic.properties.get(LAYOUT)
        if text is None:
            raise ConfigurationError(
                f"expected {LAYOUT} on {topic.name.records_table}, found that somebody removed it; "
                "adopt the table again"
            )
        return cls.of_layout(topic.spark, topic.name, Layout.parse(text))

    @classmethod
    def of_layout(cls, spark: SparkSession, name: TopicName, layout: Layout) -> AdoptedRows:
        """Find the columns of a layout in the topic's table."""
        check_shares(name, layout)
        table = name.records_table
        columns = Columns.readable(open_table(spark, table).metadata.schema, table)
        return cls(spark, table, layout, NamedLayout.of(layout, columns, table), name.in_table)

    def topics(self, snapshot: int) -> set[str]:
        """Return the topics that the table's column of them names."""
        if self.layout.topic is None:
            return set()
        found = self.at(snapshot).select("topic").distinct().collect()
        return {row["topic"] for row in found if row["topic"] is not None}

    def at(self, snapshot: int) -> DataFrame:
        """Return the live rows of a snapshot."""
        return self._records(self._read(snapshot))

    def with_deleted(self, snapshot: int) -> DataFrame:
        """Return the rows of a snapshot, also those that somebody has deleted: `is_deleted`."""
        return self._records(self._read(snapshot), F.col("_deleted").alias("is_deleted"))

    def _read(self, snapshot: int) -> DataFrame:
        """Return the table as of a snapshot.

        Iceberg reads an older one by its own schema, and then stumbles over columns that were
        renamed since. The newest one can be read by the current schema.
        """
        table = open_table(self.spark, self.table)
        made = table.metadata.existing(snapshot, str(table))
        if made.schema_id == table.metadata.schema["schema-id"]:
            return self.spark.read.option("versionAsOf", snapshot).table(self.table)
        if made == table.current:
            return self.spark.read.table(self.table)
        raise CommitConflictError(
            f"expected {self.table} with the schema of snapshot {snapshot}, found that somebody "
            "changed it meanwhile; run the job again"
        )

    def as_of(self, snapshot: int) -> DataFrame:
        """Return the live rows of an older snapshot; its columns are found by its own schema."""
        table = open_table(self.spark, self.table)
        made = table.metadata.existing(snapshot, str(table))
        columns = Columns.of(table.metadata.schema_of(made.schema_id))
        then = self._replace(layout=NamedLayout.of(self.ids, columns, self.table))
        return then._records(self.spark.read.option("versionAsOf", snapshot).table(self.table))

    def is_from(self, timestamp_ms: int) -> Expression:
        """Return whether a record's `timestamp` is at or after a time; null without one.

        It compares the column as it is, so that Iceberg prunes files by their bounds.
        """
        at = F.lit(timestamp_ms)
        is_number = self.layout.timestamp.type == "long"
        return F.col("timestamp") >= (at if is_number else F.timestamp_millis(at))

    def appended(self, after: int, until: int) -> DataFrame:
        """Return the rows that appends added after one snapshot until another."""
        reader = self.spark.read.option("start-snapshot-id", after)
        return self._records(reader.option("end-snapshot-id", until).table(self.table))

    def _records(self, rows: DataFrame, *more: Expression) -> DataFrame:
        """Select the parts of a record, the row's place, and all of its columns as `row`.

        `timestamp` is the column as it is, `timestamp_ms` is -1 where that is null.
        """
        of = self.layout
        if self.in_table is not None:
            assert of.topic is not None
            rows = rows.where(column_of(of.topic) == F.lit(self.in_table))
        key, topic = (F.lit(None) if c is None else column_of(c) for c in (of.key, of.topic))
        return rows.select(
            column_of(of.partition).cast("int").alias("partition"),
            column_of(of.offset).cast("long").alias("offset"),
            key.alias("key"),
            _is_tombstone(of, self.ids.mark_text).alias("is_tombstone"),
            column_of(of.timestamp).alias("timestamp"),
            timestamp_ms(of.timestamp).alias("timestamp_ms"),
            topic.cast("string").alias("topic"),
            F.col("_file").alias("file"),
            F.col("_pos").alias("position"),
            F.struct(*(F.col(quoted(name)) for name in rows.columns)).alias("row"),
            *more,
        )


def _is_tombstone(of: NamedLayout, mark_text: str | None) -> Expression:
    rules = []
    if of.values:
        rules.append(reduce(and_, (column_of(value).isNull() for value in of.values)))
    if of.mark is not None:
        rules.append(column_of(of.mark).eqNullSafe(F.lit(mark_text)))
    return reduce(or_, rules) if rules else F.lit(False)


def small_frame(
    spark: SparkSession, rows: Sequence[tuple[int, ...]], columns: Sequence[str]
) -> DataFrame:
    """Return numbers as a DataFrame of longs; rows in Python's own types would start a worker."""
    of_columns = [pa.array([row[n] for row in rows], pa.int64()) for n in range(len(columns))]
    return spark.createDataFrame(pa.table(of_columns, names=list(columns)))


def column_of(column: Column) -> Expression:
    """Return a layout's column in a table's own rows."""
    return F.col(quoted(*column.path))


def timestamp_ms(column: Column) -> Expression:
    """Return the milliseconds since the epoch of a column of them or of times; -1 for null."""
    of = column_of(column)
    if column.type != "long":
        of = F.unix_millis(of.cast("timestamp"))
    return F.coalesce(of, F.lit(-1))
