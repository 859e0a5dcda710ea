"""The records of one key in a topic's tables, the fate of each, and the key's erasures.

No statistics show which files have a key, so the keys of all files are read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ebbtide.errors import ConfigurationError, NotCoveredError, RequestError
from ebbtide.lake.reader import Lake, of_a_store
from ebbtide.ledger.erasure_secrets import known_secret
from ebbtide.ledger.own_tables import ERASURES
from ebbtide.records.attributes import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from ebbtide.specs.erase_request import Encoding, decode_keys
from ebbtide.state.topic_state import PartitionState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

SHA256 = "sha-256"  # instead of an encoding: the text is the key's hash
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
# The most records that a page's search reads: more would take longer than a minute.
MAX_RECORDS = 50_000_000
MAX_RECORDS_BY_HASH = 5_000_000  # fewer, because each key is hashed
_RECORD = (
    *("partition", "offset", "segment", "batch", "timestamp", "event_time"),
    *("is_tombstone", "tombstone_by", "size_bytes"),
)
_TIMES = ("timestamp", "event_time")
_SHOWN = tuple(name for name in _RECORD if name not in ("batch", *_TIMES))
_BATCH = (
    *("partition", "base_offset", "attributes", "base_timestamp_ms", "producer_id"),
    *("control_type", "txn_first_offset"),
)
_TRANSACTIONS = TRANSACTIONAL | CONTROL


class Fate(StrEnum):
    """Why a record of a key is still there, or when a cleaner round removes it."""

    CURRENT = "the latest value of its key"
    UNMARKED = "the latest record of its key, not marked by mark_tombstones yet"
    TOMBSTONE = "the key's tombstone: a cleaner round at or after its delete horizon removes it"
    UNSTAMPED = "the key's tombstone: the next cleaner round sets its delete horizon"
    SUPERSEDED = "superseded: the next cleaner round of its partition removes it"
    ABORTED = "in an aborted transaction: the next cleaner round of its partition removes it"
    UNDECIDED = "at or after the start of an open transaction: read_committed stops before it"
    ACTIVE = "superseded, in the active segment: a cleaner round removes it once that is closed"
    NOT_COMPACTED = "cleanup.policy has no compact: it is retained until its segment expires"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record of the key. Times are milliseconds since the epoch, or None if missing."""

    partition: int
    offset: int
    segment: int
    timestamp_ms: int | None
    event_time_ms: int | None
    is_tombstone: bool
    tombstone_by: str | None
    size_bytes: int | None
    delete_horizon_ms: int | None
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRow:
    """A row of `lake.ebbtide.erasures`; see docs/erase_keys.md."""

    run_id: str
    status: str
    requested_at: datetime
    requested_by: str
    reason: str
    partition: int | None
    found: int | None
    superseded: int | None
    left: int | None
    horizon: datetime | None
    out_of_table_at: datetime | None
    off_disk_from: datetime | None


@dataclass(frozen=True, slots=True)
class SearchedKey:
    """A key to look up."""

    sha256: str  # in hex
    key: bytes | None  # None if only the hash was given

    @classmethod
    def parse(cls, text: str, encoding: str) -> SearchedKey:
        """Return the key that a text encodes.

        Raise RequestError if it encodes none. The message does not repeat the text.
        """
        if encoding == SHA256:
            if not _SHA256.fullmatch(text):
                raise RequestError(
                    "expected the SHA-256 of a key as 64 hexadecimal digits, found other text"
                )
            return cls(text.lower(), None)
        if encoding not in list(Encoding):
            raise RequestError(
                f"expected one of the encodings {', '.join([*Encoding, SHA256])}, found another"
            )
        keys = decode_keys([text], Encoding(encoding))
        if not keys:
            raise RequestError("expected a key, found an empty text. The empty key cannot be found")
        return cls(hashlib.sha256(keys[0]).hexdigest(), keys[0])

    def find(
        self, lake: Lake, topic: str, partition: int | None = None, *, within_limits: bool = False
    ) -> list[KeyRecord]:
        """Return the key's records in a topic, by partition and offset.

        Raise NotCoveredError if the topic is adopted, and with `within_limits` RequestError if its
        table is too large for a page.
        """
        if lake.is_adopted(topic):
            raise NotCoveredError(
                f"expected one of ebbtide's own topics, found the adopted topic {topic}: its keys "
                "cannot be looked up yet. Query its table with Spark"
            )
        if within_limits:
            _check_size(lake, topic, MAX_RECORDS_BY_HASH if self.key is None else MAX_RECORDS)
        key = key_of_hash(lake, topic, self.sha256) if self.key is None else self.key
        return [] if key is None else find_key(lake, topic, key, partition)


def key_of_hash(lake: Lake, name: str, sha256: str) -> bytes | None:
    """Return the key with this SHA-256 (in hex), or None. This hashes all keys of the table."""
    import pyarrow.compute as pc

    digest = bytes.fromhex(sha256)
    with of_a_store(name):
        for batch in lake.records(name).scan(selected_fields=("key",)).to_arrow_batch_reader():
            for key in pc.unique(batch["key"]).to_pylist():
                if key is not None and hashlib.sha256(key).digest() == digest:
                    found: bytes = key
                    return found
    return None


def _check_size(lake: Lake, name: str, limit: int) -> None:
    """Raise RequestError if a table has more than `limit` records."""
    current = lake.records(name).current_snapshot()
    summary = current.summary if current is not None else None
    records = int(summary.additional_properties.get("total-records", 0)) if summary else 0
    if records > limit:
        raise RequestError(
            f"expected a topic of at most {limit:,} records to search for a key, found "
            f"{records:,} in {name}. Use the Spark statements on the topic's page"
        )


class FoundErasures(NamedTuple):
    """The rows of `lake.ebbtide.erasures` on a key, newest first."""

    rows: Sequence[ErasureRow]
    problem: str = ""  # why there may be more


def erasures_of(lake: Lake, name: str, searched: SearchedKey) -> FoundErasures:
    """Find the erasures of a key: by its HMAC, or by its SHA-256 those of an older version."""
    columns = tuple(field.name for field in fields(ErasureRow))
    rows = lake.own_cells(ERASURES, columns, topic=name, key_sha256=searched.sha256)
    names, problem = _hmacs(name, searched)
    for key_hmac in names:
        rows += lake.own_cells(ERASURES, columns, topic=name, key_hmac=key_hmac)
    erasures = [ErasureRow(**row) for row in rows]
    newest_first = sorted(erasures, key=lambda row: (row.requested_at, row.status), reverse=True)
    cells = lake.own_cells(ERASURES, ("key_hmac",), topic=name) if problem else []
    is_known = not any(row.get("key_hmac") for row in cells)
    return FoundErasures(newest_first, "" if is_known else problem)


def _hmacs(name: str, searched: SearchedKey) -> tuple[list[str], str]:
    """Return the names of the key by the topic's secret, or why there are none."""
    if searched.key is None:
        return [], "Erasures cannot be found by a SHA-256. Type the key to see its erasures."
    try:
        secret = known_secret(name)
    except ConfigurationError as error:
        return [], f"Erasures of this key are not shown: {error}."
    if secret is None:
        return [], f"Erasures of this key are not shown: there is no secret of {name} here."
    return [secret.name(searched.key)], ""


def find_key(lake: Lake, topic: str, key: bytes, partition: int | None = None) -> list[KeyRecord]:
    """Return the records of a key by partition and offset. Read the key column of all files."""
    from pyiceberg import expressions

    described = lake.topic(topic)
    equals = cast(Any, expressions.EqualTo)
    is_key: BooleanExpression = equals("key", key)
    if partition is not None:
        is_key = expressions.And(equals("partition", partition), is_key)
    records = _rows(lake.records(topic), is_key, _RECORD)
    batches = _batches(lake.batches(topic), records)
    records.sort(key=lambda record: (record["partition"], record["offset"]))
    newest = _newest_committed(records, batches)
    is_compacted, states = described.config.is_compacted, described.partitions
    return [
        KeyRecord(
            **{name: record[name] for name in _SHOWN},
            **{f"{name}_ms": record[name] for name in _TIMES},
            delete_horizon_ms=_horizon_ms(batches.of(record)),
            fate=_fate(record, batches, newest, states.get(record["partition"]))
            if is_compacted
            else Fate.NOT_COMPACTED,
        )
        for record in records
    ]


class _Batches:
    """Batch headers of some partitions: batches by base offset, markers by producer."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.by_offset: dict[tuple[int, int], Mapping[str, Any]] = {}
        self.markers: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
        for row in rows:
            self.by_offset[row["partition"], row["base_offset"]] = row
            if row["control_type"] in ("COMMIT", "ABORT"):
                of_producer = (row["partition"], row["producer_id"])
                self.markers.setdefault(of_producer, []).append(row)
        self.first_undecided: dict[int, int] = {}
        for (partition, base), header in sorted(self.by_offset.items()):
            if _is_transactional_data(header) and not self._later_markers(header):
                self.first_undecided.setdefault(partition, base)

    def of(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the header of the record's batch, or an empty mapping if it has none."""
        return self.by_offset.get((record["partition"], record["batch"]), {})

    def outcome(self, record: Mapping[str, Any]) -> str | None:
        """Return COMMIT or ABORT for the record's transaction. Without one, return COMMIT.

        Return None if read_committed consumers do not read the record yet.
        """
        header = self.of(record)
        first_undecided = self.first_undecided.get(record["partition"])
        if first_undecided is not None and record["offset"] >= first_undecided:
            return None
        is_aborted = _is_transactional_data(header) and any(
            _is_aborting(marker, header["base_offset"]) for marker in self._later_markers(header)
        )
        return "ABORT" if is_aborted else "COMMIT"

    def _later_markers(self, header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the markers of the batch's producer that follow the batch."""
        of_producer = self.markers.get((header["partition"], header["producer_id"]), ())
        return [marker for marker in of_producer if marker["base_offset"] > header["base_offset"]]


def _is_transactional_data(header: Mapping[str, Any]) -> bool:
    attributes = header.get("attributes") or 0
    return bool(attributes & TRANSACTIONAL and not attributes & CONTROL)


def _is_aborting(marker: Mapping[str, Any], base_offset: int) -> bool:
    """Return whether a marker that follows the batch aborts the batch's transaction."""
    first = marker["txn_first_offset"]
    return marker["control_type"] == "ABORT" and first is not None and first <= base_offset


def _newest_committed(
    records: Iterable[Mapping[str, Any]], batches: _Batches
) -> dict[int, Mapping[str, Any]]:
    """Return each partition's latest committed record of the key."""
    committed = (record for record in records if batches.outcome(record) == "COMMIT")
    return {record["partition"]: record for record in committed}


def _fate(
    record: Mapping[str, Any],
    batches: _Batches,
    newest: Mapping[int, Mapping[str, Any]],
    state: PartitionState | None,
) -> Fate:
    outcome = batches.outcome(record)
    if outcome is None:
        return Fate.UNDECIDED
    if outcome == "ABORT":
        return Fate.ABORTED
    if newest[record["partition"]] is record:
        if state is not None and record["offset"] >= state.first_unmarked_offset:
            return Fate.UNMARKED
        if not record["is_tombstone"]:
            return Fate.CURRENT
        return Fate.UNSTAMPED if _horizon_ms(batches.of(record)) is None else Fate.TOMBSTONE
    is_active = state is not None and record["segment"] >= state.active_segment
    return Fate.ACTIVE if is_active else Fate.SUPERSEDED


def _horizon_ms(header: Mapping[str, Any]) -> int | None:
    """Return a batch's delete horizon (its base timestamp, by KIP-534), or None if not set."""
    if not (header.get("attributes") or 0) & DELETE_HORIZON:
        return None
    return int(header["base_timestamp_ms"])


def _batches(table: Table, records: Sequence[Mapping[str, Any]]) -> _Batches:
    """Return the headers of the records' batches and of all transactions in their partitions."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg import expressions

    if not records:
        return _Batches(())
    own = pa.array(sorted({record["batch"] for record in records}), pa.int64())

    def is_needed(batch: pa.RecordBatch) -> Any:
        in_transactions = pc.bit_wise_and(pc.cast(batch["attributes"], pa.int64()), _TRANSACTIONS)
        is_own = pc.is_in(pc.cast(batch["base_offset"], pa.int64()), value_set=own)
        return pc.or_(is_own, pc.not_equal(in_transactions, 0))

    partitions = {record["partition"] for record in records}
    condition = cast(Any, expressions.In)("partition", partitions)
    return _Batches(_rows(table, condition, _BATCH, is_needed))


def _rows(
    table: Table,
    condition: BooleanExpression,
    columns: Sequence[str],
    is_needed: Callable[[Any], Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows that match. `is_needed` masks the rows of an Arrow batch.

    Times are milliseconds since the epoch: a producer can write a year that datetime lacks.
    """
    batches = table.scan(row_filter=condition, selected_fields=tuple(columns))
    return [
        row
        for batch in batches.to_arrow_batch_reader()
        for row in _in_ms(batch if is_needed is None else batch.filter(is_needed(batch)))
    ]


def _in_ms(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    schema = batch.schema
    of_times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    numbers = [field.with_type(pa.int64()) if field.name in of_times else field for field in schema]
    for row in batch.cast(pa.schema(numbers)).to_pylist():
        times = {name: row[name] for name in of_times}
        yield row | {name: None if us is None else us // 1000 for name, us in times.items()}
