"""Count the data files that a round reads, by their bounds, as Iceberg's scan prunes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import java_table
from ebbtide.log.adopted.horizons import OffsetRange
from ebbtide.log.adopted.layout import Column
from ebbtide.spark.conditions import IcebergExpressions
from ebbtide.spark.jvm import iceberg_class


class KeyRange(NamedTuple):
    """The least and the greatest dirty key; of types whose order Iceberg's bounds know."""

    least: Any
    greatest: Any


class ReadFiles(NamedTuple):
    """Data files that a round reads, of all in the snapshot that may be of its topic."""

    read: int = 0
    all: int = 0


class DirtyRows(NamedTuple):
    """Where a round has dirty rows: from an offset on, with keys in a range if one is known."""

    first_offset: int
    keys: KeyRange | None


def count_read_files(
    rows: AdoptedRows, snapshot: int, dirty: DirtyRows | None, due: Sequence[OffsetRange]
) -> ReadFiles:
    """Count the files of a snapshot whose bounds may hold what a round looks for.

    That is a dirty row or a dirty key, a row without a key, and a tombstone among the offsets whose
    horizon is reached. Without a range of keys every file may hold one.
    """
    scan = java_table(rows.spark, rows.table).newScan().useSnapshot(snapshot)
    of = _Conditions(IcebergExpressions.of(rows.spark), rows)
    if rows.in_table is not None:
        assert rows.layout.topic is not None
        scan = scan.filter(of.java.equal(rows.layout.topic.name, rows.in_table))
    wanted = [of.is_without_key(), *map(of.may_be_due, due)]
    if dirty is not None:
        wanted += [of.is_dirty(dirty.first_offset), of.may_hold_key(dirty.keys)]
    return ReadFiles(
        _count(rows, scan.filter(reduce(of.iceberg.either, wanted))), _count(rows, scan)
    )


class _Conditions(NamedTuple):
    """Conditions of rows as Iceberg's expressions, which its scan holds against files' bounds."""

    iceberg: IcebergExpressions
    rows: AdoptedRows

    @property
    def java(self) -> Any:
        return self.iceberg.java

    def is_dirty(self, first_offset: int) -> Any:
        return self.java.greaterThanOrEqual(self.rows.layout.offset.name, first_offset)

    def may_hold_key(self, keys: KeyRange | None) -> Any:
        key = self.rows.layout.key
        assert key is not None
        if keys is None:
            return self.java.alwaysTrue()
        at_least = self.java.greaterThanOrEqual(key.name, keys.least)
        return self.iceberg.both(at_least, self.java.lessThanOrEqual(key.name, keys.greatest))

    def is_without_key(self) -> Any:
        key = self.rows.layout.key
        assert key is not None
        return self._is_null(key)

    def may_be_due(self, offsets: OffsetRange) -> Any:
        name = self.rows.layout.offset.name
        is_first = self.java.greaterThanOrEqual(name, offsets.first)
        is_last = self.java.lessThan(name, offsets.end)
        return self.iceberg.both(self._may_be_tombstone(), self.iceberg.both(is_first, is_last))

    def _may_be_tombstone(self) -> Any:
        of = self.rows.layout
        is_null = reduce(self.iceberg.both, map(self._is_null, of.values)) if of.values else None
        if of.mark is None:
            return self.java.alwaysFalse() if is_null is None else is_null
        has_mark = self.java.equal(of.mark.name, self.rows.ids.mark_text)
        return has_mark if is_null is None else self.iceberg.either(is_null, has_mark)

    def _is_null(self, column: Column) -> Any:
        """Return the condition; a column with others in it has no count of nulls."""
        is_nested = column.type in ("struct", "list", "map")
        return self.java.alwaysTrue() if is_nested else self.java.isNull(column.name)


def _count(rows: AdoptedRows, scan: Any) -> int:
    files = scan.planFiles()
    try:
        iterables = iceberg_class(rows.spark, "relocated.com.google.common.collect.Iterables")
        return int(iterables.size(files))
    finally:
        files.close()
