"""The live rows of an adopted table as records, by Spark's reader of Iceberg.

It knows every kind of delete, nested and renamed columns and all file formats; a row that others
have deleted is not among them (docs/adr/0016).
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
    """Return numbers as a DataFrame of longs; rows in Python's own types would start a worker."""
    of_columns = [pa.array([row[n] for row in rows], pa.int64()) for n in range(len(columns))]
    return spark.createDataFrame(pa.table(of_columns, names=list(columns)))


def column_of(column: Column) -> Expression:
    """Return a layout's column in a table's own rows."""
    return F.col(quoted(*column.path))


def timestamp_ms(column: Column) -> Expression:
    """Return the milliseconds since the epoch of a column of them or of times; -1 for null."""
    time = column_of(column)
    if column.type != "long":
        time = F.unix_millis(time.cast("timestamp"))
    return F.coalesce(time, F.lit(-1))


def is_in_column(ms: Expression) -> Expression:
    """Return whether a column of microseconds can hold this time."""
    return ms.between(-MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS)


def time_of(ms: Expression | str) -> Expression:
    """Return the time of milliseconds since the epoch; null if no column can hold it."""
    of_column = F.col(ms) if isinstance(ms, str) else ms
    return F.when(is_in_column(of_column), F.timestamp_millis(of_column))


_Numbers = npt.NDArray[np.uint64]


class OldRows(NamedTuple):
    """The offsets [start, end) of a partition in which rows of an earlier time leave; ms."""

    start: int
    end: int
    before_ms: int


@dataclass(slots=True)
class PlacedRows:
    """Live rows: their positions by file, and the offset of each by partition, in no order."""

    positions: dict[str, BitMap64] = field(default_factory=dict)
    offsets: dict[int, _Numbers] = field(default_factory=dict)

    @property
    def rows(self) -> Counter[int]:
        """How many there are, by partition."""
        return Counter({partition: len(offsets) for partition, offsets in self.offsets.items()})

    def by_segment(self, partition: int, segments: Sequence[SegmentStart]) -> Counter[int]:
        """Count those of a partition by the base offset of their segment; others are left out."""
        bases = np.array([segment.base_offset for segment in segments], np.int64)
        offsets = self.offsets.get(partition, np.array([], np.uint64)).astype(np.int64)
        places = np.searchsorted(bases, offsets, side="right") - 1
        numbers, counts = np.unique(places[places >= 0], return_counts=True)
        return Counter({int(bases[n]): int(c) for n, c in zip(numbers, counts, strict=True)})


def find_below(rows: AdoptedRows, snapshot: int, starts: Mapping[int, int]) -> PlacedRows:
    """Return the rows of a snapshot below these offsets, given by partition."""
    return placed(rows.at(snapshot).where(_is_below(starts)))


def find_leaving(
    rows: AdoptedRows,
    snapshot: int,
    starts: Mapping[int, int],
    old: Mapping[int, OldRows],
    planned: Mapping[int, BitMap64] | None = None,
) -> PlacedRows:
    """Return the rows below these offsets, and old ones; with `planned`, those at its offsets.

    One without a time is never old.
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
    """Gather the rows; with `planned`, of those from their start on only the ones it has."""
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
