"""Rows of a table that others write, as records with the columns of Spark's Kafka source.

Bytes stay bytes; text becomes UTF-8; what has columns of its own becomes JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.columns.live_records import STAMPED
from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.adopted.arrivals import added_files, can_tell, commits_since
from ebbtide.iceberg.adopted.rows import AdoptedRows, column_of, columns_of_schema, timestamp_ms_of
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.history import Committed
from ebbtide.log.adopted.layout import Column

HEADERS = "array<struct<key: string, value: binary>>"
_APPEND = "append"
_NESTED = frozenset({"struct", "list", "map"})


class Window(NamedTuple):
    """Rows of a table up to a snapshot; those since `seen`, where the commits tell them.

    Without `seen` they are all of the snapshot. `records` is None where nothing was added.
    """

    until: int
    seen: int | None
    records: DataFrame | None


def window_until(
    rows: AdoptedRows, until: int, seen: int | None, *, is_stamped: bool = False
) -> Window:
    """Return the rows that a copy needs, which holds those up to `seen`.

    `is_stamped` says that timestamps are the broker's.
    """
    commits = None if seen is None else _commits(rows, seen, until)
    if commits is None or not can_tell(commits):
        return Window(until, None, records_of(rows, rows.read_at(until), is_stamped=is_stamped))
    adding = [of for of in commits if of.adds_rows]
    if not adding:
        return Window(until, seen, None)
    if all(of.operation == _APPEND for of in adding):
        assert seen is not None
        added = rows.read_appended(seen, until)
    else:
        table = java_table(rows.spark, rows.table)
        paths = added_files(rows.spark, table, adding)
        added = rows.read_at(until).where(F.col("_file").isin(paths))
    return Window(until, seen, records_of(rows, added, is_stamped=is_stamped))


def _commits(rows: AdoptedRows, seen: int, until: int) -> list[Committed] | None:
    """Return the commits after `seen` up to `until`; None where the history does not have both."""
    commits = commits_since(rows.spark, java_table(rows.spark, rows.table), seen)
    if commits is None or seen == until:
        return None if commits is None else []
    ids = [commit.id for commit in commits]
    return commits[ids.index(until) :] if until in ids else None


def records_of(rows: AdoptedRows, table_rows: DataFrame, *, is_stamped: bool) -> DataFrame:
    """Return the topic's rows of a DataFrame of the table, as the Kafka source would have them."""
    of = rows.layout
    if of.topic is not None:
        is_of_topic = column_of(of.topic).eqNullSafe(F.lit(rows.ids.topic_name))
        table_rows = table_rows.where(is_of_topic)
    timestamp = F.timestamp_millis(timestamp_ms_of(of.timestamp))
    key = F.lit(None).cast("binary") if of.key is None else _bytes(of.key)
    return table_rows.select(
        column_of(of.partition).cast("int").alias("partition"),
        column_of(of.offset).cast("long").alias("offset"),
        timestamp.alias("timestamp"),
        F.lit(STAMPED if is_stamped else 0).alias("timestampType"),
        key.alias("key"),
        _value(rows).alias("value"),
        _headers(of.headers).alias("headers"),
    )


def _value(rows: AdoptedRows) -> Expression:
    """Return the value: bytes where the table has them, else JSON of what it has.

    Of several value columns the first may hold the bytes, and the others stand for them.
    """
    of = rows.layout
    if not of.values:
        value = _object(_left(rows))
    elif len(of.values) == 1:
        value = _bytes(of.values[0])
    elif of.values[0].type == "binary":
        value = F.coalesce(_bytes(of.values[0]), _one(of.values[1:]))
    else:
        value = _object(of.values)
    if of.mark is None:
        return value
    return F.when(~column_of(of.mark).eqNullSafe(F.lit(rows.ids.mark_text)), value)


def _left(rows: AdoptedRows) -> list[Column]:
    """Return the table's columns that say nothing of where a record lies: those of its value."""
    of = rows.layout
    parts = (of.partition, of.offset, of.timestamp, of.topic, of.headers, of.mark)
    taken = {part.path[0] for part in parts if part is not None}
    schema = java_table(rows.spark, rows.table).schema()
    return [of for of in columns_of_schema(rows.spark, schema).top if of.name not in taken]


def _one(columns: Sequence[Column]) -> Expression:
    is_value = len(columns) == 1 and columns[0].type in (*_NESTED, "binary")
    return _bytes(columns[0]) if is_value else _object(columns)


def _object(columns: Sequence[Column]) -> Expression:
    """Return the columns as a JSON object, those that are null left out; null where all are."""
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
        return F.lit(None).cast(HEADERS)
    of = column_of(column)
    if column.type == "map":
        of = F.map_entries(of)
    elif column.type != "list" or not _names_of_elements(column) >= {"key", "value"}:
        raise NotCoveredError(
            f"expected headers as a list of key and value or as a map in {column.name}, found "
            f"{column.type_id}; name another column with --headers-column"
        )
    return F.transform(of, _header).cast(HEADERS)


def _header(of: Expression) -> Expression:
    return F.struct(
        of["key"].cast("string").alias("key"), of["value"].cast("binary").alias("value")
    )


def _names_of_elements(column: Column) -> set[str]:
    element = json.loads(column.type_id)["element"]
    return {field["name"] for field in element["fields"]} if isinstance(element, dict) else set()
