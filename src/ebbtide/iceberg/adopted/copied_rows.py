"""Rows of a table to copy, as records with the columns of Spark's Kafka source.

Binary columns are copied as they are, text as UTF-8. Several columns, or a nested one, become JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.live_records import STAMPED
from ebbtide.errors import EbbtideError, NotCoveredError
from ebbtide.iceberg.adopted.arrivals import files_changed
from ebbtide.iceberg.adopted.rows import column_of, is_in_column, time_of, timestamp_ms
from ebbtide.iceberg.catalog import check_catalog, open_table
from ebbtide.iceberg.history import Since, history_since
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.iceberg.state_table import read_state
from ebbtide.layouts.layout import Column, Columns, Layout, NamedLayout
from ebbtide.records.arrays import TIMESTAMP_HEADER
from ebbtide.settings.names import CATALOG, STATE_SUFFIX, TopicName, quoted
from ebbtide.state.topic_state import COPIED

log = logging.getLogger(__name__)


def copied_topics(spark: SparkSession) -> list[TopicName]:
    """Return, sorted by name, the topics whose state names a table that they are copied from."""
    check_catalog(spark)  # Spark opens the catalog here
    return sorted(name for name in _with_state(spark) if _is_copied(spark, name))


def _with_state(spark: SparkSession) -> Iterator[TopicName]:
    for (namespace,) in spark.sql(f"SHOW NAMESPACES IN {quoted(CATALOG)}").collect():
        if not namespace.endswith(STATE_SUFFIX):
            continue
        for row in spark.sql(f"SHOW TABLES IN {quoted(CATALOG, namespace)}").collect():
            yield TopicName(namespace.removesuffix(STATE_SUFFIX), row["tableName"])


def _is_copied(spark: SparkSession, name: TopicName) -> bool:
    try:
        held = read_state(spark, name)
    except EbbtideError as error:
        log.warning("%s: skipped, its state cannot be read: %s", name, error)
        return False
    return held is not None and COPIED in held.properties


_HEADERS = "array<struct<key: string, value: binary>>"
_APPEND, _REPLACE = "append", "replace"
_OF_WRITER = "_kafka_"  # prefix of columns that the writer adds: they are not part of the value
_NESTED = frozenset({"struct", "list", "map"})


class SourceRows(NamedTuple):
    """A table to copy rows from, and its columns for the parts of a record."""

    spark: SparkSession
    table: str
    ids: Layout
    layout: NamedLayout

    @classmethod
    def of(cls, spark: SparkSession, table: str, layout: Layout) -> SourceRows:
        """Find the columns of a layout. Raise ConfigurationError if one was dropped."""
        columns = Columns.readable(open_table(spark, table).metadata.schema, table)
        return cls(spark, table, layout, NamedLayout.of(layout, columns, table))

    def can_read(self, snapshot: int) -> bool:
        """Return whether the snapshot exists and its rows can be read by the current schema."""
        table = open_table(self.spark, self.table)
        found = table.metadata.snapshots.get(snapshot)
        if found is None or table.current is None:
            return False
        return found == table.current or found.schema_id == table.metadata.schema["schema-id"]

    def at(self, snapshot: int) -> DataFrame:
        """Return the live rows of a readable snapshot, with the table's own columns.

        If the schema has changed since the newest snapshot, the rows are read without a snapshot
        id: only such a read uses the current schema.
        """
        table = open_table(self.spark, self.table).metadata
        if table.snapshot(snapshot).schema_id != table.schema["schema-id"]:
            return self.spark.read.table(self.table)
        return self.spark.read.option("versionAsOf", snapshot).table(self.table)

    def appended(self, after: int, until: int) -> DataFrame:
        """Return the rows that appends added after one snapshot, up to another."""
        reader = self.spark.read.option("start-snapshot-id", after)
        return reader.option("end-snapshot-id", until).table(self.table)

    def topics(self) -> list[str]:
        """Return the distinct values of the table's topic column, sorted."""
        assert self.layout.topic is not None
        found = self.spark.table(self.table).select(column_of(self.layout.topic)).distinct()
        return sorted(name for (name,) in found.collect() if name is not None)


class Window(NamedTuple):
    """Rows of a table up to a snapshot: those added since `seen`, or all rows if `seen` is None."""

    until: int
    seen: int | None
    records: DataFrame | None  # None: no row was added


def window_until(
    rows: SourceRows, until: int, seen: int | None, *, is_stamped: bool = False
) -> Window:
    """Return the rows to copy, given that the topic has those up to snapshot `seen`.

    All rows are returned if the commits do not show which are new. `is_stamped`: the timestamps are
    the broker's (LogAppendTime).
    """
    table = open_table(rows.spark, rows.table)
    history = Since([], False, False) if seen is None else history_since(table, seen)
    commits = history.until(until)
    if seen is None or not (history.is_reached and commits and _can_tell(commits)):
        return Window(until, None, records_of(rows, rows.at(until), is_stamped=is_stamped))
    adding = [commit for commit in commits if commit.adds_rows]
    if not adding:
        return Window(until, seen, None)
    if all(commit.operation == _APPEND for commit in adding):
        added = rows.appended(seen, until)
    else:
        files = files_changed(table, adding, sign=1)
        added = rows.at(until).where(F.col("_file").isin(sorted(files)))
    return Window(until, seen, records_of(rows, added, is_stamped=is_stamped))


def _can_tell(commits: Sequence[Snapshot]) -> bool:
    """Return whether the commits show which rows are new.

    An append does, even if its files were rewritten since. A commit that also removes rows does so
    only while the files that it added exist.
    """
    are_appends = all(commit.operation == _APPEND for commit in commits if commit.adds_rows)
    return are_appends or not any(commit.operation == _REPLACE for commit in commits)


def records_of(rows: SourceRows, table_rows: DataFrame, *, is_stamped: bool) -> DataFrame:
    """Return the topic's rows in the form in which Spark's Kafka source would return them."""
    layout = rows.layout
    if layout.topic is not None:
        is_of_topic = column_of(layout.topic).eqNullSafe(F.lit(rows.ids.topic_name))
        table_rows = table_rows.where(is_of_topic)
    key = F.lit(None).cast("binary") if layout.key is None else _bytes(layout.key)
    time_ms, headers = timestamp_ms(layout.timestamp), _headers(layout.headers)
    with_time = _with_time(headers, time_ms)
    return table_rows.select(
        column_of(layout.partition).cast("int").alias("partition"),
        column_of(layout.offset).cast("long").alias("offset"),
        time_of(time_ms).alias("timestamp"),
        F.lit(STAMPED if is_stamped else 0).alias("timestampType"),
        key.alias("key"),
        _value(rows).alias("value"),
        F.when(is_in_column(time_ms), headers).otherwise(with_time).alias("headers"),
    )


def _with_time(headers: Expression, time_ms: Expression) -> Expression:
    """Return the headers and one more: the time, which the column in microseconds cannot hold."""
    value = time_ms.cast("string").cast("binary").alias("value")
    kept = F.struct(F.lit(TIMESTAMP_HEADER).alias("key"), value)
    return F.concat(F.coalesce(headers, F.array().cast(_HEADERS)), F.array(kept))


def _value(rows: SourceRows) -> Expression:
    """Return the value: bytes if the table has them, else JSON.

    Of several value columns, the first may be the bytes. The JSON of the rest replaces a null
    there.
    """
    layout = rows.layout
    if not layout.values:
        value = _object(_left(rows))
    elif len(layout.values) == 1:
        value = _bytes(layout.values[0])
    elif layout.values[0].type == "binary":
        value = F.coalesce(_bytes(layout.values[0]), _one(layout.values[1:]))
    else:
        value = _object(layout.values)
    if layout.mark is None:
        return value
    return F.when(~column_of(layout.mark).eqNullSafe(F.lit(rows.ids.mark_text)), value)


def _left(rows: SourceRows) -> list[Column]:
    """Return the columns of the value: those that hold no other part of the record."""
    layout = rows.layout
    parts = (
        layout.partition,
        layout.offset,
        layout.timestamp,
        layout.topic,
        layout.headers,
        layout.mark,
    )
    taken = {part.path[0] for part in parts if part is not None}
    columns = Columns.of(open_table(rows.spark, rows.table).metadata.schema).top
    return [c for c in columns if c.name not in taken and not c.name.startswith(_OF_WRITER)]


def _one(columns: Sequence[Column]) -> Expression:
    is_value = len(columns) == 1 and columns[0].type in (*_NESTED, "binary")
    return _bytes(columns[0]) if is_value else _object(columns)


def _object(columns: Sequence[Column]) -> Expression:
    """Return the columns as a JSON object without nulls, or null if all are null."""
    if not columns:
        return F.lit(None).cast("binary")
    struct = F.struct(*(column_of(column).alias(column.name) for column in columns))
    has_any = reduce(or_, (column_of(column).isNotNull() for column in columns))
    return F.when(has_any, F.to_json(struct).cast("binary"))


def _bytes(column: Column) -> Expression:
    if column.type in _NESTED:
        return F.to_json(column_of(column)).cast("binary")
    if column.type == "binary" or column.type.startswith("fixed"):
        return column_of(column).cast("binary")
    return column_of(column).cast("string").cast("binary")


def _headers(column: Column | None) -> Expression:
    if column is None:
        return F.lit(None).cast(_HEADERS)
    headers = column_of(column)
    if column.type == "map":
        headers = F.map_entries(headers)
    elif column.type != "list" or not _names_of_elements(column) >= {"key", "value"}:
        raise NotCoveredError(
            f"expected a list of key and value or a map of headers in column {column.name}, found "
            f"{column.type_id}. Name another column with --headers-column"
        )
    return F.transform(headers, _header).cast(_HEADERS)


def _header(entry: Expression) -> Expression:
    return F.struct(
        entry["key"].cast("string").alias("key"), entry["value"].cast("binary").alias("value")
    )


def _names_of_elements(column: Column) -> set[str]:
    element = json.loads(column.type_id)["element"]
    return {field["name"] for field in element["fields"]} if isinstance(element, dict) else set()
