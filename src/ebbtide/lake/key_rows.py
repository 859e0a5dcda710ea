"""Find a key by its SHA-256, and what erasures of it have reported.

No statistics tell in which file a key lies, so the keys of all files are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ebbtide.errors import NotCoveredError, RequestError
from ebbtide.lake.erasures import ERASURES
from ebbtide.lake.live_files import of_a_store
from ebbtide.lake.reader import Lake

if TYPE_CHECKING:
    from pyiceberg.table import Table

# How many records a search goes through: more would keep a page waiting for longer than a minute.
MAX_RECORDS = 50_000_000
MAX_RECORDS_BY_HASH = 5_000_000  # a hash is worked out of each key
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


def check_looked_up(lake: Lake, name: str) -> None:
    """Raise NotCoveredError for a topic whose keys nothing here can find."""
    if lake.is_adopted(name):
        raise NotCoveredError(
            f"expected a topic whose tables ebbtide writes, found {name}, which was adopted: its "
            "keys are not looked up yet; ask Spark for the key"
        )


def check_size(lake: Lake, name: str, *, by_hash: bool) -> None:
    """Raise RequestError for a table that a page cannot go through."""
    limit = MAX_RECORDS_BY_HASH if by_hash else MAX_RECORDS
    current = lake.records(name).current_snapshot()
    summary = current.summary if current is not None else None
    records = int(summary.additional_properties.get("total-records", 0)) if summary else 0
    if records > limit:
        raise RequestError(
            f"expected a topic of up to {limit:,} records to search for a key in, found "
            f"{records:,} in {name}; ask Spark for it, by the statements on the topic's page"
        )


def key_of_hash(lake: Lake, name: str, sha256: str) -> bytes | None:
    """Return the key with this SHA-256 (hex), however long that takes; None where there is none."""
    check_looked_up(lake, name)
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


def _keys_of_hash(table: Table, digest: bytes) -> Iterator[bytes]:
    """Yield each key of the table with this hash."""
    import pyarrow.compute as pc

    for batch in table.scan(selected_fields=("key",)).to_arrow_batch_reader():
        for key in pc.unique(batch["key"]).to_pylist():
            if key is not None and hashlib.sha256(key).digest() == digest:
                yield key


def _untyped(expression: Any) -> Any:
    """Return a class of pyiceberg's expressions, whose types know no values of columns."""
    return expression
