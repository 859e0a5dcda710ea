"""Find the records of one key, by the key itself or by its SHA-256.

No statistics tell in which file a key lies, so the keys of all files are read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ebbtide.errors import RequestError
from ebbtide.lake.erasures import ERASURES
from ebbtide.lake.live_files import of_a_store
from ebbtide.lake.reader import Lake
from ebbtide.records.attributes import DELETE_HORIZON

if TYPE_CHECKING:
    from pyiceberg.table import Table

# How many records a search goes through: more would keep a page waiting for longer than a minute.
MAX_RECORDS = 50_000_000
MAX_RECORDS_BY_HASH = 5_000_000  # a hash is worked out of each key
_PLACE = ("partition", "offset", "segment", "batch", "timestamp", "is_tombstone", "tombstone_by")
_ERASURE: tuple[str, ...] = (
    "run_id",
    "status",
    "requested_at",
    "requested_by",
    "reason",
    "partition",
    "found",
)
_ERASURE += ("superseded", "left", "horizon", "out_of_table_at", "off_disk_from")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A record of the key; the horizon is its batch's, None until a round has set one."""

    partition: int
    offset: int
    segment: int
    batch: int
    timestamp: datetime | None
    is_tombstone: bool
    tombstone_by: str | None
    horizon_ms: int | None = None


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


def records_of_key(lake: Lake, name: str, key: bytes) -> list[KeyRecord]:
    """Return the key's records in the records table, by partition and offset."""
    from pyiceberg.expressions import EqualTo

    table = lake.records(name)
    _check_size(table, name, MAX_RECORDS)
    with of_a_store(name):
        is_key = _untyped(EqualTo)("key", key)
        rows = table.scan(row_filter=is_key, selected_fields=_PLACE).to_arrow().to_pylist()
    return _with_horizons(lake, name, rows)


def records_of_hash(lake: Lake, name: str, sha256: str) -> list[KeyRecord]:
    """Return the records of the key with this SHA-256 (hex)."""
    table = lake.records(name)
    _check_size(table, name, MAX_RECORDS_BY_HASH)
    with of_a_store(name):
        key = next(_keys_of_hash(table, bytes.fromhex(sha256)), None)
    return [] if key is None else records_of_key(lake, name, key)


def key_of_hash(lake: Lake, name: str, sha256: str) -> bytes | None:
    """Return the key with this SHA-256 (hex), however long that takes; None where there is none."""
    with of_a_store(name):
        return next(_keys_of_hash(lake.records(name), bytes.fromhex(sha256)), None)


def erasures_of(lake: Lake, name: str, sha256: str) -> list[ErasureRow]:
    """Return what erasures of the key have reported, newest first."""
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.expressions import And, EqualTo

    if lake.catalog is None:
        return []
    is_of = _untyped(EqualTo)
    chosen = And(is_of("topic", name), is_of("key_sha256", sha256))
    with of_a_store(".".join(ERASURES)):
        try:
            table = lake.catalog.load_table(ERASURES)
        except NoSuchTableError:
            return []
        rows = table.scan(row_filter=chosen, selected_fields=_ERASURE).to_arrow().to_pylist()
    erasures = [ErasureRow(**{name: row[name] for name in _ERASURE}) for row in rows]
    return sorted(erasures, key=lambda of: (of.requested_at, of.status), reverse=True)


def _check_size(table: Table, name: str, limit: int) -> None:
    """Raise RequestError for a table that a page cannot go through."""
    current = table.current_snapshot()
    summary = current.summary if current is not None else None
    records = int(summary.additional_properties.get("total-records", 0)) if summary else 0
    if records > limit:
        raise RequestError(
            f"expected a topic of up to {limit:,} records to search for a key in, found "
            f"{records:,} in {name}; ask Spark for it, by the statements on the topic's page"
        )


def _keys_of_hash(table: Table, digest: bytes) -> Iterator[bytes]:
    """Yield each key of the table with this hash."""
    import pyarrow.compute as pc

    for batch in table.scan(selected_fields=("key",)).to_arrow_batch_reader():
        for key in pc.unique(batch["key"]).to_pylist():
            if key is not None and hashlib.sha256(key).digest() == digest:
                yield key


def _with_horizons(lake: Lake, name: str, rows: Sequence[Mapping[str, Any]]) -> list[KeyRecord]:
    """Return the records with the delete horizons of their batches."""
    from pyiceberg.expressions import And, EqualTo, In

    batches: defaultdict[int, set[int]] = defaultdict(set)
    for row in rows:
        batches[row["partition"]].add(row["batch"])
    horizons: dict[tuple[int, int], int] = {}
    is_of, is_in = _untyped(EqualTo), _untyped(In)
    fields = ("partition", "base_offset", "attributes", "base_timestamp_ms")
    for partition, bases in batches.items():
        wanted = And(is_of("partition", partition), is_in("base_offset", bases))
        with of_a_store(name):
            headers = lake.batches(name).scan(row_filter=wanted, selected_fields=fields).to_arrow()
        for header in headers.to_pylist():
            if header["attributes"] & DELETE_HORIZON:
                horizons[partition, header["base_offset"]] = header["base_timestamp_ms"]
    records = [
        KeyRecord(
            **{name: row[name] for name in _PLACE},
            horizon_ms=horizons.get((row["partition"], row["batch"])),
        )
        for row in rows
    ]
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _untyped(expression: Any) -> Any:
    """Return a class of pyiceberg's expressions, whose types know no values of columns."""
    return expression
