"""What a topic's tables really hold, and what a job changed, counted from their rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import exists, load
from ebbtide.kafka.batch_header import ABORT
from ebbtide.records.attributes import CONTROL, TRANSACTIONAL
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import items
from ebbtide.state.topic_state import PartitionState

Row = Mapping[str, Any]
Place = tuple[int, int]  # partition, and offset or base offset


class Truth(NamedTuple):
    """A topic's rows, data files of records {path: bytes}, state, and its tables' snapshots."""

    records: dict[Place, Row]
    batches: dict[Place, Row]
    files: dict[str, int]
    states: dict[int, PartitionState]
    snapshots: dict[str, list[int]]

    @classmethod
    def nothing(cls) -> Truth:
        """That of a topic without tables."""
        return cls({}, {}, {}, {}, {})

    def read_again(self, spark: SparkSession, name: TopicName) -> Truth:
        """As the tables are now; one without a new snapshot is not read again."""
        if not exists(spark, name):
            return self.nothing()
        records, batches, files = self.records, self.batches, self.files
        snapshots = _snapshots(spark, name)
        if self.snapshots.get(name.records_table) != snapshots[name.records_table]:
            records = _rows(spark, name.records_table, "offset")
            table = f"{name.records_table}.data_files"
            files = dict(spark.sql(f"SELECT file_path, file_size_in_bytes FROM {table}").collect())
        if self.snapshots.get(name.batches_table) != snapshots[name.batches_table]:
            batches = _rows(spark, name.batches_table, "base_offset")
        return Truth(records, batches, files, load(spark, name).partitions, snapshots)

    def offsets_of(self, partition: int) -> dict[str, int]:
        """Where a log without replicas starts and ends."""
        state = self.states[partition]
        return {
            "log_start_offset": state.log_start_offset,
            "low_watermark": state.log_start_offset,
            "log_end_offset": state.log_end_offset,
        }

    def headers(self, partition: int, start: int, end: int | None = None) -> list[Row]:
        """The batches of a partition whose base offsets lie in [start, end), in order."""
        rows = [
            row
            for (p, base), row in self.batches.items()
            if p == partition and base >= start and (end is None or base < end)
        ]
        return sorted(rows, key=lambda row: row["base_offset"])

    def retained(self, partition: int) -> list[Row]:
        """The batches from the first segment on; others are kept for their producers only."""
        return self.headers(partition, self.states[partition].first_segment)

    def aborted(self) -> set[Place]:
        """The data batches of transactions that were aborted."""
        return {
            (p, base)
            for (p, marker_base), marker in self.batches.items()
            if marker["control_type"] == ABORT and marker["txn_first_offset"] is not None
            for (q, base), data in self.batches.items()
            if p == q and marker["txn_first_offset"] <= base < marker_base
            if data["producer_id"] == marker["producer_id"] and is_transactional_data(data)
        }

    def tombstone_above(self, partition: int, key: bytes) -> int | None:
        """The offset of a tombstone that no transaction can abort and no record of the key follows.

        An aborted record does not count.
        """
        aborted, undecided = self.aborted(), self.undecided(partition)
        standing = [
            row
            for (p, _), row in self.records.items()
            if p == partition and row["key"] == key and (p, row["batch"]) not in aborted
        ]
        newest = max(standing, key=lambda row: row["offset"], default=None)
        if newest is None or not newest["is_tombstone"] or newest["batch"] in undecided:
            return None
        return int(newest["offset"])

    def undecided(self, partition: int) -> set[int]:
        """The base offsets of a partition's data batches of transactions without a marker."""
        open_since: dict[int, set[int]] = {}
        for batch in self.headers(partition, 0):
            if is_transactional_data(batch):
                open_since.setdefault(batch["producer_id"], set()).add(batch["base_offset"])
            elif batch["control_type"] is not None:
                open_since.pop(batch["producer_id"], None)
        return set().union(*open_since.values())

    def first_undecided(self, partition: int) -> int:
        """Where the first transaction without a marker begins, else the log's end."""
        return min(self.undecided(partition), default=self.states[partition].log_end_offset)


class Change(NamedTuple):
    """The tables before and after a job."""

    before: Truth
    after: Truth

    def gone(self, partition: int | None = None) -> list[Row]:
        """The records that left, of one partition or of all."""
        return _lacking(self.before.records, self.after.records, partition)

    def added(self, partition: int) -> list[Row]:
        """The records that came."""
        return _lacking(self.after.records, self.before.records, partition)

    def added_batches(self, partition: int) -> list[Row]:
        """The batches that came."""
        return _lacking(self.after.batches, self.before.batches, partition)

    @property
    def files_gone(self) -> list[int]:
        """The bytes of each data file of records that Iceberg lists no more."""
        return [size for path, size in self.before.files.items() if path not in self.after.files]

    @property
    def new_snapshots(self) -> list[int]:
        """The snapshots that the tables got."""
        before = {s for ids in self.before.snapshots.values() for s in ids}
        return [s for ids in self.after.snapshots.values() for s in ids if s not in before]

    def segments_gone(self, partition: int) -> list[tuple[int, int, int]]:
        """The logical segments that went: (base offset, end offset, modified ms)."""
        state = self.before.states[partition]
        bases = [base for base, _ in state.segments]
        ends = [*bases[1:], state.log_end_offset]
        kept = {base for base, _ in self.after.states[partition].segments}
        times = [modified_ms for _, modified_ms in state.segments]
        return [s for s in zip(bases, ends, times, strict=True) if s[0] not in kept]


def is_control(batch: Row) -> bool:
    """Whether the batch holds a marker."""
    return bool(batch["attributes"] & CONTROL)


def is_transactional_data(batch: Row) -> bool:
    """Whether the batch holds data of a transaction."""
    return bool(batch["attributes"] & TRANSACTIONAL) and not is_control(batch)


def record_count(batches: Iterable[Row]) -> int:
    """The records of data that the headers tell of."""
    return sum(batch["record_count"] for batch in batches if not is_control(batch))


def size_bytes(rows: Iterable[Row]) -> int:
    """The sum of the sizes of batches, or of records."""
    return sum(row["size_bytes"] or 0 for row in rows)


def _lacking(rows: Mapping[Place, Row], others: Mapping[Place, Row], p: int | None) -> list[Row]:
    return [row for at, row in rows.items() if at not in others and p in (None, at[0])]


def _rows(spark: SparkSession, table: str, offset: str) -> dict[Place, Row]:
    rows = spark.table(table).toArrow().to_pylist()
    return {(row["partition"], row[offset]): row for row in rows}


def _snapshots(spark: SparkSession, name: TopicName) -> dict[str, list[int]]:
    tables = [name.records_table, name.batches_table]
    if spark.catalog.tableExists(name.quarantine_table):
        tables.append(name.quarantine_table)
    return {
        table: [int(s.snapshotId()) for s in items(java_table(spark, table).snapshots())]
        for table in tables
    }
