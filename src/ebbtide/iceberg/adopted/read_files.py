"""Count the data files that a round reads, by their bounds, as Iceberg's scan prunes them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import java_table
from ebbtide.spark.jvm import iceberg_class


class KeyRange(NamedTuple):
    """The least and the greatest dirty key; of types whose order Iceberg's bounds know."""

    least: Any
    greatest: Any


class ReadFiles(NamedTuple):
    """Data files that may hold dirty rows or dirty keys, of all in the snapshot."""

    read: int = 0
    all: int = 0


def count_read_files(
    rows: AdoptedRows, snapshot: int, first_dirty_offset: int, keys: KeyRange | None
) -> ReadFiles:
    """Count the files of a snapshot whose bounds reach the first dirty offset, or a dirty key.

    Without a range of keys every file may hold one.
    """
    spark, of = rows.spark, rows.layout
    assert of.key is not None
    expressions = iceberg_class(spark, "expressions.Expressions")
    # `and` and `or` are words of Python, so these Java methods are asked for by name.
    both, either = getattr(expressions, "and"), getattr(expressions, "or")
    may_hold_key = expressions.alwaysTrue()
    if keys is not None:
        at_least = expressions.greaterThanOrEqual(of.key.name, keys.least)
        may_hold_key = both(at_least, expressions.lessThanOrEqual(of.key.name, keys.greatest))
    is_dirty = expressions.greaterThanOrEqual(of.offset.name, first_dirty_offset)
    scan = java_table(spark, rows.table).newScan().useSnapshot(snapshot)
    return ReadFiles(_count(rows, scan.filter(either(is_dirty, may_hold_key))), _count(rows, scan))


def _count(rows: AdoptedRows, scan: Any) -> int:
    files = scan.planFiles()
    try:
        iterables = iceberg_class(rows.spark, "relocated.com.google.common.collect.Iterables")
        return int(iterables.size(files))
    finally:
        files.close()
