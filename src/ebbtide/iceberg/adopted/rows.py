"""The live rows of an adopted table as records, read by Iceberg's Spark reader.

The reader handles every kind of delete, nested and renamed columns and all file formats. Deleted
rows are not among the records (docs/adr/0016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError, ConfigurationError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.topics import Topic
from ebbtide.layouts.layout import LAYOUT, Column, Columns, Layout, NamedLayout, check_shares
from ebbtide.records.arrays import MAX_TIMESTAMP_MS
from ebbtide.settings.names import TopicName, quoted
from ebbtide.spark.expressions import any_column
from ebbtide.state.logical_segments import SegmentStart


class AdoptedRows(NamedTuple):
    """An adopted table, and its columns for the parts of a record."""

    spark: SparkSession
    table: str
    ids: Layout
    layout: NamedLayout
    in_table: str | None = None  # of a table that several topics share: the topic to read

    @classmethod
    def of(cls, topic: Topic) -> AdoptedRows:
        """Find the columns of an adopted topic. Raise ConfigurationError if one was dropped."""
        text = topic.properties.get(LAYOUT)
        if text is None:
            raise ConfigurationError(
                f"expected property {LAYOUT} on {topic.name.records_table}, found none: another "
                "tool removed it. Adopt the table again"
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
        """Return the topics that the table's topic column names in a snapshot; none without one."""
        if self.layout.topic is None:
            return set()
        found = self.at(snapshot).select("topic").distinct().collect()
        return {row["topic"] for row in found if row["topic"] is not None}

    def at(self, snapshot: int) -> DataFrame:
        """Return the live rows of a snapshot."""
        return self._records(self._read(snapshot))

    def with_deleted(self, snapshot: int) -> DataFrame:
        """Return all rows of a snapshot, deleted ones too, with a column `is_deleted`."""
        return self._records(self._read(snapshot), F.col("_deleted").alias("is_deleted"))

    def _read(self, snapshot: int) -> DataFrame:
        """Return the table as of a snapshot.

        Iceberg reads an older snapshot by that snapshot's schema, which lacks columns renamed
        since. Only the newest snapshot can be read by the current schema.
        """
        table = open_table(self.spark, self.table)
        made = table.metadata.existing(snapshot, str(table))
        if made.schema_id == table.metadata.schema["schema-id"]:
            return self.spark.read.option("versionAsOf", snapshot).table(self.table)
        if made == table.current:
            return self.spark.read.table(self.table)
        raise CommitConflictError(
            f"expected the schema of {self.table} as of snapshot {snapshot}, found a newer one: "
            "another tool changed it meanwhile. Run the job again"
        )

    def as_of(self, snapshot: int) -> DataFrame:
        """Return the live rows of an older snapshot, read by that snapshot's own schema."""
        table = open_table(self.spark, self.table)
        made = table.metadata.existing(snapshot, str(table))
        columns = Columns.of(table.metadata.schema_of(made.schema_id))
        then = self._replace(layout=NamedLayout.of(self.ids, columns, self.table))
        return then._records(self.spark.read.option("versionAsOf", snapshot).table(self.table))

    def is_from(self, timestamp_ms: int) -> Expression:
        """Return whether a record's `timestamp` is at or after a time, or null if it has none.

        The column is compared without a conversion, so that Iceberg can prune files by their
        bounds.
        """
        at = F.lit(timestamp_ms)
        is_number = self.layout.timestamp.type == "long"
        return F.col("timestamp") >= (at if is_number else F.timestamp_millis(at))

    def appended(self, after: int, until: int) -> DataFrame:
        """Return the rows that appends added after one snapshot, up to another."""
        reader = self.spark.read.option("start-snapshot-id", after)
        return self._records(reader.option("end-snapshot-id", until).table(self.table))

    def _records(self, rows: DataFrame, *more: Expression) -> DataFrame:
        """Select the parts of a record, the row's file and position, and all its columns as `row`.

        `timestamp` is the column as the table has it. `timestamp_ms` is -1 if that is null.
        """
        layout = self.layout
        if self.in_table is not None:
            assert layout.topic is not None
            rows = rows.where(column_of(layout.topic) == F.lit(self.in_table))
        key, topic = (
            F.lit(None) if c is None else column_of(c) for c in (layout.key, layout.topic)
        )
        return rows.select(
            column_of(layout.partition).cast("int").alias("partition"),
            column_of(layout.offset).cast("long").alias("offset"),
            key.alias("key"),
            _is_tombstone(layout, self.ids.mark_text).alias("is_tombstone"),
            column_of(layout.timestamp).alias("timestamp"),
            timestamp_ms(layout.timestamp).alias("timestamp_ms"),
            topic.cast("string").alias("topic"),
            F.col("_file").alias("file"),
            F.col("_pos").alias("position"),
            F.struct(*(F.col(quoted(name)) for name in rows.columns)).alias("row"),
            *more,
        )


def _is_tombstone(layout: NamedLayout, mark_text: str | None) -> Expression:
    rules = []
    if layout.values:
        rules.append(reduce(and_, (column_of(value).isNull() for value in layout.values)))
    if layout.mark is not None:
        rules.append(column_of(layout.mark).eqNullSafe(F.lit(mark_text)))
    return reduce(or_, rules) if rules else F.lit(False)


def small_frame(
    spark: SparkSession, rows: Sequence[tuple[int, ...]], columns: Sequence[str]
) -> DataFrame:
    """Return a DataFrame of longs; rows of Python ints would start a Python worker."""
    of_columns = [pa.array([row[n] for row in rows], pa.int64()) for n in range(len(columns))]
    return spark.createDataFrame(pa.table(of_columns, names=list(columns)))


def column_of(column: Column) -> Expression:
    """Return a layout's column as an expression on the table's own rows."""
    return F.col(quoted(*column.path))


def timestamp_ms(column: Column) -> Expression:
    """Return the ms since the epoch of a column that holds them or times; -1 for null."""
    time = column_of(column)
    if column.type != "long":
        time = F.unix_millis(time.cast("timestamp"))
    return F.coalesce(time, F.lit(-1))


def is_in_column(ms: Expression) -> Expression:
    """Return whether a timestamp column, which is in microseconds, can hold this time in ms."""
    return ms.between(-MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS)


def time_of(ms: Expression | str) -> Expression:
    """Return the timestamp of ms since the epoch, or null if no column can hold it."""
    of_column = F.col(ms) if isinstance(ms, str) else ms
    return F.when(is_in_column(of_column), F.timestamp_millis(of_column))


_Numbers = npt.NDArray[np.uint64]


class OldRows(NamedTuple):
    """Offsets [start, end) of a partition whose rows are removed if older than `before_ms`."""

    start: int
    end: int
    before_ms: int


@dataclass(slots=True)
class PlacedRows:
    """Live rows: their positions by file, and their offsets by partition, in no order."""

    positions: dict[str, BitMap64] = field(default_factory=dict)
    offsets: dict[int, _Numbers] = field(default_factory=dict)

    @property
    def rows(self) -> Counter[int]:
        """Number of rows by partition."""
        return Counter({partition: len(offsets) for partition, offsets in self.offsets.items()})

    def by_segment(self, partition: int, segments: Sequence[SegmentStart]) -> Counter[int]:
        """Count a partition's rows by their segment's base offset, except rows below the first."""
        bases = np.array([segment.base_offset for segment in segments], np.int64)
        offsets = self.offsets.get(partition, np.array([], np.uint64)).astype(np.int64)
        places = np.searchsorted(bases, offsets, side="right") - 1
        numbers, counts = np.unique(places[places >= 0], return_counts=True)
        return Counter({int(bases[n]): int(c) for n, c in zip(numbers, counts, strict=True)})


def find_below(rows: AdoptedRows, snapshot: int, starts: Mapping[int, int]) -> PlacedRows:
    """Return the rows of a snapshot below each partition's offset in `starts`."""
    return placed(rows.at(snapshot).where(_is_below(starts)))


def find_leaving(
    rows: AdoptedRows,
    snapshot: int,
    starts: Mapping[int, int],
    old: Mapping[int, OldRows],
    planned: Mapping[int, BitMap64] | None = None,
) -> PlacedRows:
    """Return the rows below each partition's offset in `starts`, and the old ones.

    With `planned`, an old row at or above the start is returned only if the plan has its offset. A
    row without a timestamp is never old.
    """
    found = rows.at(snapshot).where(_is_below(starts) | _is_old(rows, old))
    return placed(found, starts, planned)


def _is_below(starts: Mapping[int, int]) -> Expression:
    return any_column(
        (F.col("partition") == partition) & (F.col("offset") < start)
        for partition, start in starts.items()
    )


def _is_old(rows: AdoptedRows, old: Mapping[int, OldRows]) -> Expression:
    is_before = any_column(
        (F.col("partition") == partition)
        & (F.col("offset") >= old_rows.start)
        & (F.col("offset") < old_rows.end)
        & ~rows.is_from(old_rows.before_ms)
        for partition, old_rows in old.items()
    )
    return is_before & (F.col("timestamp_ms") >= 0)


def placed(
    records: DataFrame,
    starts: Mapping[int, int] | None = None,
    planned: Mapping[int, BitMap64] | None = None,
) -> PlacedRows:
    """Gather the rows.

    With `planned`, rows at or above their start only if the plan has their offset.
    """
    lists = (F.collect_list(name).alias(f"{name}s") for name in ("position", "offset"))
    table = records.groupBy("file", "partition").agg(*lists).toArrow()
    found = PlacedRows()
    columns = (table[name] for name in ("file", "partition", "positions", "offsets"))
    for file, of_partition, *of_rows in zip(*columns, strict=True):
        partition = of_partition.as_py()
        positions, offsets = (cell.values.to_numpy().astype(np.uint64) for cell in of_rows)
        if planned is not None:
            start, known = (starts or {}).get(partition, 0), planned.get(partition, BitMap64())
            leaves = (offsets < start) | np.isin(offsets, np.array(known.to_array(), np.uint64))
            positions, offsets = positions[leaves], offsets[leaves]
        if len(positions):
            found.positions[file.as_py()] = found.positions.get(
                file.as_py(), BitMap64()
            ) | BitMap64(positions)
            before = found.offsets.get(partition, np.array([], np.uint64))
            found.offsets[partition] = np.concatenate([before, offsets])
    return found
