"""Plan an erasure: the records of the keys, and which keys still need a tombstone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.erased_keys import named_keys
from ebbtide.errors import HoldError, RequestError, SourceError
from ebbtide.iceberg.adopted.key_files import files_of
from ebbtide.iceberg.adopted.removal import prepare_rewrite
from ebbtide.iceberg.adopted.rows import AdoptedRows, PlacedRows, placed
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.erasures import logged_before, secret_for
from ebbtide.iceberg.schema import not_aborted_query
from ebbtide.iceberg.topics import Topic, check_is_no_replica, while_adopted
from ebbtide.jobs.removed_rows import PlannedRows, add_to
from ebbtide.jobs.table_layout import ObservedLog
from ebbtide.ledger.own_tables import KeyRow, NamedKey
from ebbtide.ledger.plans import LeavingRows, PartitionSummary, RuleNumbers, partition_summary
from ebbtide.records.attributes import DELETE_HORIZON
from ebbtide.runner.holds import holds_on_keys, key_bytes
from ebbtide.runner.job import Proposal, Touched, log_ends
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.spark.expressions import any_column
from ebbtide.specs.erase_request import (
    KEYS,
    MAX_KEYS,
    Encoding,
    Erasure,
    PartitionKey,
    Way,
    check_is_compacted,
    decode_keys,
    way_of,
)


class HeldKey(NamedTuple):
    """A key with records in a partition."""

    found: int  # records before the tombstone, or all without one
    tombstone_offset: int | None  # of the key's latest record, if it is a decided tombstone


class LeftOfKey(NamedTuple):
    """The records remaining below a key's tombstone, and the tombstone's horizon if it has one."""

    records: int = 0
    horizon_ms: int | None = None


def typed_keys(encoding: Encoding) -> tuple[bytes, ...]:
    """Return the keys that the user typed, from the environment."""
    return decode_keys(os.environ.get(KEYS, "").split("\n"), encoding)


def keys_of_file(spark: SparkSession, uri: str, encoding: Encoding) -> tuple[bytes, ...]:
    """Return the keys of a text file with one key per line, on any file system that Spark reads."""
    try:
        lines = spark.read.text(uri).limit(MAX_KEYS + 1).toArrow()["value"].to_pylist()
    except Exception as failure:
        raise SourceError(
            f"expected a text file of keys that Spark can read at {uri}, found "
            f"{type(failure).__name__}. Check the path and its permissions"
        ) from None
    if len(lines) > MAX_KEYS:
        raise RequestError(
            f"expected at most {MAX_KEYS:,} keys in {uri}, found more. Split the file"
        )
    return decode_keys(lines, encoding)


def find_keys(topic: Topic, keys: tuple[bytes, ...]) -> dict[PartitionKey, HeldKey]:
    """Find the keys in each partition. Aborted and undecided records of a key count too."""
    if not keys:
        return {}
    spark, name = topic.spark, topic.name
    asked = spark.createDataFrame(pa.table({"key": pa.array(keys, pa.binary())}))
    # An undecided tombstone may be aborted, and an undecided record above a tombstone remains.
    standing = spark.sql(not_aborted_query(name)).join(asked, "key").groupBy("partition", "key")
    is_last_tombstone = F.max_by(F.expr("is_tombstone AND NOT is_undecided"), "offset")
    latest = standing.agg(F.when(is_last_tombstone, F.max("offset")).alias("tombstone"))
    records = spark.table(name.records_table).join(asked, "key")
    is_before = F.col("tombstone").isNull() | (F.col("offset") < F.col("tombstone"))
    held = (
        records.join(latest, ["partition", "key"], "left")
        .groupBy("partition", "key", "tombstone")
        .agg(F.count_if(is_before).alias("found"))
    )
    return {
        (row["partition"], row["key"]): HeldKey(row["found"], row["tombstone"])
        for row in held.toArrow().to_pylist()
    }


def find_offsets(topic: Topic, held: Mapping[PartitionKey, HeldKey]) -> dict[int, PlannedRows]:
    """Return the records before each key's tombstone, or all records of a key without one."""
    if not held:
        return {}
    spark = topic.spark
    ends = {p: state.log_end_offset for p, state in topic.partitions.items()}
    tombstones = {
        place: ends[place[0]] if held_key.tombstone_offset is None else held_key.tombstone_offset
        for place, held_key in held.items()
    }
    asked = _asked(spark, tombstones)
    records = spark.table(topic.name.records_table).join(asked, ["partition", "key"])
    rows = (
        records.where(F.col("offset") < F.col("tombstone"))
        .select("partition", "offset", "event_time", "key")
        .toArrow()
    )
    partitions = rows["partition"].to_numpy()
    return {
        int(partition): PlannedRows.of(rows, partitions == partition)
        for partition in np.unique(partitions)
    }


def find_left(
    topic: Topic, tombstones: Mapping[PartitionKey, int]
) -> dict[PartitionKey, LeftOfKey]:
    """Count the remaining records below each tombstone, and find its horizon.

    A key without a record in the table is omitted.
    """
    spark, name = topic.spark, topic.name
    asked = _asked(spark, tombstones)
    is_tombstone = F.col("offset") == F.col("tombstone")
    records = spark.table(name.records_table).join(asked, ["partition", "key"])
    left = records.groupBy("partition", "key").agg(
        F.count_if(F.col("offset") < F.col("tombstone")).alias("records"),
        F.max(F.when(is_tombstone, F.col("batch"))).alias("base_offset"),
    )
    has_horizon = F.col("attributes").bitwiseAND(F.lit(DELETE_HORIZON)) != 0
    horizons = (
        spark.table(name.batches_table)
        .where(has_horizon)
        .select("partition", "base_offset", "base_timestamp_ms")
    )
    rows = left.join(horizons, ["partition", "base_offset"], "left").toArrow().to_pylist()
    return {
        (row["partition"], row["key"]): LeftOfKey(row["records"], row["base_timestamp_ms"])
        for row in rows
    }


def _asked(spark: SparkSession, tombstones: Mapping[PartitionKey, int]) -> DataFrame:
    partitions, keys = zip(*tombstones, strict=True) if tombstones else ((), ())
    return spark.createDataFrame(
        pa.table(
            {
                "partition": pa.array(partitions, pa.int32()),
                "key": pa.array(keys, pa.binary()),
                "tombstone": pa.array(tombstones.values(), pa.int64()),
            }
        )
    )


@dataclass(slots=True)
class FoundKeyRows:
    """The rows of keys in an adopted table."""

    log: ObservedLog
    counts: dict[PartitionKey, int] = field(default_factory=dict)  # of live rows
    live: PlacedRows = field(default_factory=PlacedRows)
    files_of_dead: list[str] = field(default_factory=list)  # files with deleted rows of the keys
    remaining: int = 0  # live rows that are not in the plan, or without partition or offset


def find_rows(
    rows: AdoptedRows, log: ObservedLog, keys: Sequence[bytes], ends: Mapping[int, int]
) -> FoundKeyRows:
    """Find the keys' rows in the log's snapshot: live rows below `ends`, and all deleted rows.

    A deleted row remains in its file until the file is rewritten.
    """
    of_key, snapshot = key_bytes(rows), log.snapshot
    assert of_key is not None
    assert snapshot is not None
    wanted = rows.spark.createDataFrame(pa.table({"bytes": pa.array(keys, pa.binary())}))
    records = rows.with_deleted(snapshot).withColumn("bytes", of_key)
    found = records.join(F.broadcast(wanted), "bytes", "left_semi").persist()
    try:
        is_below = any_column(
            (F.col("partition") == partition) & (F.col("offset") < end)
            for partition, end in ends.items()
        )
        live = found.where(~F.col("is_deleted") & is_below)
        counts = live.groupBy("partition", "bytes").count().collect()
        dead = found.where("is_deleted").select("file").distinct().collect()
        return FoundKeyRows(
            log,
            {(row["partition"], bytes(row["bytes"])): row["count"] for row in counts},
            placed(live),
            sorted(row["file"] for row in dead),
            found.where("NOT is_deleted").count() - sum(row["count"] for row in counts),
        )
    finally:
        found.unpersist()


def erase_rows(topic: Topic, found: FoundKeyRows) -> int:
    """Rewrite the files that have the rows, without them. Return the new snapshot's id."""
    loaded = java_table(topic.spark, topic.name.records_table)
    positions = {path: BitMap64() for path in found.files_of_dead} | found.live.positions
    snapshot = found.log.snapshot
    assert snapshot is not None
    files = files_of(topic.spark, loaded, snapshot, positions)
    properties = {ROWS: str(found.live.rows.total()), TOPIC: str(topic.name)}
    prepared = prepare_rewrite(topic.spark, loaded, snapshot, files, properties)
    return commit(Step.ERASE_RECORDS, while_adopted(topic, prepared))


ERASED = "erased_keys"


@dataclass(frozen=True, slots=True)
class ErasePlan(Proposal):
    """The planned erasure of keys from one topic."""

    topic: Topic
    erasure: Erasure
    way: Way
    keys: tuple[bytes, ...]
    named: Mapping[bytes, NamedKey] = field(repr=False)  # by key
    held: Mapping[PartitionKey, HeldKey]
    # Rows that an earlier attempt of the run wrote to `erasures`.
    logged: Mapping[tuple[int, str], KeyRow] = field(default_factory=dict)
    offsets: Mapping[int, PlannedRows] | None = None  # of the keys' records, on request
    connection: str | None = None
    done: JobOutcome = field(default_factory=JobOutcome)  # removals and commits before the plan
    adopted: FoundKeyRows | None = None  # of an adopted table

    @property
    def lacking(self) -> list[PartitionKey]:
        """The keys that need a tombstone, by partition; none in an adopted table.

        A tombstone that an earlier attempt sent is not sent again.
        """
        return sorted(
            place
            for place, held in self.held.items()
            if held.tombstone_offset is None
            and self.way is not Way.DELETED
            and self.place(place) not in self.logged
        )

    @property
    def rows(self) -> dict[tuple[int, str], KeyRow]:
        """A row for each key and partition, before any tombstone is logged.

        For an adopted table, also the rows of an earlier attempt, which may have deleted its keys.
        """
        rows = {
            self.place(place): KeyRow.of(self.named[place[1]], place[0], held_key.found, self.way)
            for place, held_key in self.held.items()
        }
        return rows | dict(self.logged) if self.way is Way.DELETED else rows

    @property
    def not_found(self) -> list[bytes]:
        """The keys of which no partition had a record at the time of the plan."""
        known = {key_hmac for _, key_hmac in self.rows}
        return [key for key in self.keys if self.named[key].key_hmac not in known]

    def place(self, place: PartitionKey) -> tuple[int, str]:
        """Return a partition and the key's HMAC, which identify a key in rows of `erasures`."""
        partition, key = place
        return partition, self.named[key].key_hmac

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome()
        keys, found = Counter[int](), Counter[int]()
        for (partition, _), row in self.rows.items():
            keys[partition] += 1
            found[partition] += row.found
        tombstones = Counter(partition for partition, _ in self.lacking)
        for partition in self.topic.partitions:
            outcome.partitions[partition] = self.topic.offsets_of(partition) | {
                "keys": keys[partition],
                "found": found[partition],
                "tombstones": tombstones[partition],
            }
        outcome.topic = {
            "keys": len(self.keys),
            "not_found": len(self.not_found),
            "method": self.way,
            "requested_by": self.erasure.requested_by,
            "reason": self.erasure.reason,
        }
        return outcome

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the keys' records."""
        return {p: rows.offsets for p, rows in (self.offsets or {}).items()}

    def touches(self) -> Touched:
        """Return the partitions in which no run before the erasure can be undone.

        For an adopted table, these are all: an undo does not read the keys of the rows it restores.
        """
        if self.adopted is None:
            return Touched({partition for partition, _ in self.held})
        return Touched(self.topic.partitions, records_snapshot=self.adopted.log.snapshot)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return each partition's log end offset."""
        return log_ends(self.topic)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return the records that the tombstones supersede, or an adopted table's removed rows."""
        summaries = {}
        for partition, rows in (self.offsets or {}).items():
            leaving = LeavingRows()
            add_to(leaving, rows)
            leaving.keys.clear()  # by their hashes a guess of a key could be tested
            if self.adopted is not None:  # rows with the same offset count too
                leaving.records = self.adopted.live.rows[partition]
            rules = {ERASED: RuleNumbers(records=leaving.records)}
            summaries[partition] = partition_summary(leaving, rules)
        return summaries


def check_may_erase(topic: Topic) -> None:
    """Raise ConfigurationError if the topic is not compacted, RequestError if it is a replica."""
    check_is_compacted(str(topic.name), topic.config)
    check_is_no_replica(topic, "erase the keys of")


def plan_erase(topic: Topic, erasure: Erasure, *, keeps_offsets: bool = False) -> ErasePlan:
    """Plan the erasure of keys from an own topic.

    With `keeps_offsets`, the plan lists the offsets of the keys' records. Raise RequestError if
    tombstones cannot reach the log or no key is given.
    """
    check_may_erase(topic)
    way, connection = way_of(str(topic.name), topic.config, erasure)
    keys = keys_of(topic.spark, erasure)
    check_not_held(topic, keys, "records")
    logged = logged_before(topic.spark, topic.name, erasure.run_id)
    held = find_keys(topic, keys)
    offsets = find_offsets(topic, held) if keeps_offsets else None
    named = named_keys(secret_for(topic), keys)
    return ErasePlan(topic, erasure, way, keys, named, held, logged, offsets, connection)


def check_not_held(topic: Topic, keys: Sequence[bytes], what: str) -> None:
    """Raise HoldError if a hold covers one of the keys or records of them."""
    if holds := holds_on_keys(topic, keys):
        raise HoldError(
            f"expected keys of {topic.name} that no hold covers, found {what} of them under "
            f"{', '.join(map(str, holds))}. Nothing was erased. Leave these keys out, or end the "
            "hold with hold_records first"
        )


def keys_of(spark: SparkSession, erasure: Erasure) -> tuple[bytes, ...]:
    """Return the keys of the request or of its file.

    Raise RequestError if both or neither are given.
    """
    if erasure.keys and erasure.keys_file:
        raise RequestError("expected keys or a file of keys, found both. Leave one of them empty")
    keys = erasure.keys
    if erasure.keys_file:
        keys = keys_of_file(spark, erasure.keys_file, erasure.encoding)
    if not keys:
        raise RequestError("expected keys to erase, found none. Type keys or name a file of keys")
    return keys
