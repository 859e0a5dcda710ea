"""Plan an erasure: the records of the keys, and which keys still need a tombstone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import HoldError, RequestError
from ebbtide.iceberg.erasures_table import hash_of, logged_before
from ebbtide.iceberg.replica_tables import check_is_no_replica
from ebbtide.iceberg.topics import Topic
from ebbtide.log.erasures import KeyRow
from ebbtide.log.plans.summary import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    partition_summary,
)
from ebbtide.log.requests.erase_request import (
    Erasure,
    PartitionKey,
    Way,
    check_is_compacted,
    way_of,
)
from ebbtide.runs.held.keeping import holds_on_keys
from ebbtide.runs.proposals import Proposal, Touched, log_ends
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.erase_keys.adopted_rows import FoundRows
from ebbtide.stages.erase_keys.held_keys import (
    HeldKey,
    find_keys,
    find_offsets,
    keys_of_file,
)
from ebbtide.stages.planned_rows import PlannedRows, add_to

ERASED = "erased_keys"


@dataclass(frozen=True, slots=True)
class ErasePlan(Proposal):
    """The records that the tables hold of the keys, and what an earlier try has logged.

    `adopted` says where the rows of an adopted table lie.
    """

    topic: Topic
    erasure: Erasure
    way: Way
    keys: tuple[bytes, ...]
    held: Mapping[PartitionKey, HeldKey]
    logged: Mapping[tuple[int, str], KeyRow] = field(default_factory=dict)
    offsets: Mapping[int, PlannedRows] | None = None  # of the keys' records, if asked for
    connection: str | None = None
    done: JobOutcome = field(default_factory=JobOutcome)  # removed and committed before
    adopted: FoundRows | None = None

    @property
    def lacking(self) -> list[PartitionKey]:
        """The keys that need a tombstone, by partition; none of an adopted table, which gets none.

        One that an earlier try has sent is underway.
        """
        return sorted(
            place
            for place, held in self.held.items()
            if held.tombstone_offset is None
            and self.way is not Way.DELETED
            and hashed(place) not in self.logged
        )

    @property
    def rows(self) -> dict[tuple[int, str], KeyRow]:
        """A row for each key and partition, before anything is logged.

        Of an adopted table also those of an earlier try, which has deleted its rows.
        """
        rows = {
            hashed(place): KeyRow(hash_of(place[1]), place[0], of.found, self.way)
            for place, of in self.held.items()
        }
        return rows | dict(self.logged) if self.way is Way.DELETED else rows

    @property
    def not_found(self) -> list[bytes]:
        """The keys that no partition holds a record of."""
        known = {key_hash for _, key_hash in self.rows}
        return [key for key in self.keys if hash_of(key) not in known]

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
            "way": self.way,
            "requested_by": self.erasure.requested_by,
            "reason": self.erasure.reason,
        }
        return outcome

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the keys' records."""
        return {p: rows.offsets for p, rows in (self.offsets or {}).items()}

    def touches(self) -> Touched:
        """Return the keys' partitions: no run before an erasure is undone."""
        snapshot = None if self.adopted is None else self.adopted.log.snapshot
        return Touched({partition for partition, _ in self.held}, records_snapshot=snapshot)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return each partition's log end offset."""
        return log_ends(self.topic)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what the keys' tombstones supersede, or the rows that leave an adopted table."""
        summaries = {}
        for partition, rows in (self.offsets or {}).items():
            leaving = LeavingRows()
            add_to(leaving, rows)
            if self.adopted is not None:  # rows with the same offset count too
                leaving.records = self.adopted.live.rows[partition]
            rules = {ERASED: RuleNumbers(records=leaving.records)}
            summaries[partition] = partition_summary(leaving, rules)
        return summaries


def hashed(place: PartitionKey) -> tuple[int, str]:
    """Return a partition and key with the key's hash, by which rows of `erasures` name it."""
    return place[0], hash_of(place[1])


def check_may_erase(topic: Topic) -> None:
    """Raise where a tombstone would delete nothing, or would not be the log's own."""
    check_is_compacted(str(topic.name), topic.config)
    check_is_no_replica(topic, "erase the keys of")


def plan_erase(topic: Topic, erasure: Erasure, *, keeps_offsets: bool = False) -> ErasePlan:
    """Find the keys; RequestError where no way leads to the log, or no key is named.

    `keeps_offsets` asks for the offsets of their records.
    """
    check_may_erase(topic)
    way, connection = way_of(str(topic.name), topic.config, erasure)
    keys = keys_of(topic.spark, erasure)
    check_not_held(topic, keys, "records")
    logged = logged_before(topic.spark, topic.name, erasure.run_id)
    held = find_keys(topic, keys)
    offsets = find_offsets(topic, held) if keeps_offsets else None
    return ErasePlan(topic, erasure, way, keys, held, logged, offsets, connection)


def check_not_held(topic: Topic, keys: Sequence[bytes], what: str) -> None:
    """Raise HoldError where a hold is on one of the keys or on records of them."""
    if holds := holds_on_keys(topic, [hash_of(key) for key in keys]):
        raise HoldError(
            f"expected keys of {topic.name} that nothing holds, found {what} of them under "
            f"{', '.join(map(str, holds))}; nothing was erased: leave these keys out, or end the "
            "hold with hold_records first"
        )


def keys_of(spark: SparkSession, erasure: Erasure) -> tuple[bytes, ...]:
    """Return the keys from the request or its file; RequestError where both or none are given."""
    if erasure.keys and erasure.keys_file:
        raise RequestError("expected keys or a file of them, found both; leave one of them empty")
    keys = erasure.keys
    if erasure.keys_file:
        keys = keys_of_file(spark, erasure.keys_file, erasure.encoding)
    if not keys:
        raise RequestError("expected keys to erase, found none; type them in or name a file")
    return keys
