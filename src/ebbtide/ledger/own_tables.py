"""ebbtide's own tables: each is declared once, next to the class of its rows.

Rows are appended and never changed. Spark's side writes and reads them (`iceberg/own_tables.py`),
Airflow's side reads them (`lake/reader.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

from ebbtide.ledger.results import by_new_names
from ebbtide.ledger.topic_summary import TopicSummary, parse_summary
from ebbtide.settings.names import CATALOG, OWN_NAMESPACE, quoted

R = TypeVar("R")

_COMMENT = re.compile(r"\s+COMMENT '[^']*'")
_COLUMN = re.compile(r"`?(\w+)`? ([A-Z]+(?:<[A-Z, ]+>)?)")


class Cell(NamedTuple):
    """The conversions of a field to a column's cell and back."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


JSON = Cell(json.dumps, json.loads)
DENSE_JSON = Cell(partial(json.dumps, separators=(",", ":")), json.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTable(Generic[R]):
    """One of ebbtide's own tables; a row has a field for each column, of the same name."""

    name: str  # in the namespace `ebbtide`
    columns: str  # as SQL's DDL has them
    day: str  # the time that the table is partitioned by the days of
    build: Callable[..., R]  # returns the row of these fields, None for what the table lacks
    cells: Mapping[str, Cell] = field(default_factory=dict)  # of fields that are no cells
    properties: Mapping[str, str] = field(default_factory=dict)  # beside those of all tables

    @property
    def types(self) -> Mapping[str, str]:
        """The SQL type of each column, in order."""
        return _types(self.columns)

    @property
    def place(self) -> tuple[str, str]:
        """Its namespace and name in a catalog."""
        return OWN_NAMESPACE, self.name

    def in_catalog(self, catalog: str = CATALOG) -> str:
        """Return its SQL identifier."""
        return quoted(catalog, *self.place)

    def to_cells(self, row: R) -> dict[str, Any]:
        """Return a row as the table has it."""
        cells = {name: getattr(row, name) for name in self.types}
        for name, cell in self.cells.items():
            if cells[name] is not None:
                cells[name] = cell.write(cells[name])
        return cells

    def to_row(self, cells: Mapping[str, Any]) -> R:
        """Return a row from what pyarrow gives; columns of other tools are left out."""
        fields = {name: cells.get(name) for name in self.types}
        for name, cell in self.cells.items():
            if fields[name] is not None:
                fields[name] = cell.read(fields[name])
        return self.build(**fields)


@cache
def _types(columns: str) -> dict[str, str]:
    return dict(_COLUMN.findall(_COMMENT.sub("", columns)))


# A file a day for ten years makes a 300 KB manifest, which reading a single run would parse.
MAX_RUN_MANIFEST_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job on a topic, without its result; times are UTC."""

    run_id: str
    dag: str | None
    task: str | None
    job: str
    topic: str
    started: datetime
    ended: datetime
    now: datetime
    status: str
    error: str | None
    error_class: str | None
    is_transient: bool
    rows_removed: int
    files_removed: int
    bytes_removed: int
    summary: TopicSummary | None = None  # None in rows of an older version too

    @property
    def succeeded(self) -> bool:
        """True if the attempt ended without an error."""
        return self.status == "succeeded"

    @property
    def seconds(self) -> float:
        """Duration of the attempt."""
        return (self.ended - self.started).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Attempt):
    """An attempt with the job's whole result."""

    result: Mapping[str, Any]
    snapshot_ids: Sequence[int]

    @property
    def partitions(self) -> dict[int, dict[str, Any]]:
        """The job's numbers for each partition."""
        return {int(p): numbers for p, numbers in self.result.get("partitions", {}).items()}

    @property
    def topic_result(self) -> Mapping[str, Any]:
        """The job's numbers for the topic as a whole."""
        numbers: Mapping[str, Any] = self.result.get("topic", {})
        return numbers


def _run(
    *, result: Mapping[str, Any] | None, snapshot_ids: Sequence[int] | None, **fields: Any
) -> Run:
    result = by_new_names(fields["job"], result or {})
    return Run(**fields, result=result, snapshot_ids=tuple(snapshot_ids or ()))


RUNS = OwnTable(
    name="runs",
    columns="""
    run_id STRING, dag STRING, task STRING, job STRING, topic STRING,
    started TIMESTAMP, ended TIMESTAMP, now TIMESTAMP,
    status STRING, error STRING, error_class STRING, is_transient BOOLEAN,
    result STRING COMMENT 'JSON: per partition and for the topic',
    rows_removed BIGINT, files_removed BIGINT, bytes_removed BIGINT,
    snapshot_ids ARRAY<BIGINT>,
    summary STRING COMMENT 'JSON: the topic in a few numbers at the end of the attempt'
    """,
    day="started",
    build=_run,
    cells={"result": JSON, "summary": Cell(TopicSummary.to_json, parse_summary)},
    properties={"commit.manifest.target-size-bytes": str(MAX_RUN_MANIFEST_BYTES)},
)
RESULT = ("result", "snapshot_ids")  # the columns that an Attempt lacks
ATTEMPT_COLUMNS = tuple(name for name in RUNS.types if name not in RESULT)


# Erased keys by their HMACs: rows of `lake.ebbtide.erasures`.
#
# A run writes two rows per key and partition: `logged` once the tombstone is in the log, `reported`
# with the records that are left below it.


LOGGED, REPORTED = "logged", "reported"


class NamedKey(NamedTuple):
    """An erased key as the ledger has it. Without the topic's secret no field says which it is."""

    key_hmac: str  # in hex
    key_block: bytes = b""  # see columns/erased_keys.py
    secret: str = ""  # fingerprint of the secret


NAMES = ("key_hmac", "key_sha256")  # columns with the name of a key: the second, of old rows


def name_of(row: Mapping[str, Any]) -> str:
    """Return the name of a key in a row of the table."""
    return str(row.get("key_hmac") or row["key_sha256"])


class KeyRow(NamedTuple):
    """A key in a partition; without a partition if no table has the key."""

    key_hmac: str
    partition: int | None = None
    found: int = 0
    way: str | None = None  # None: a tombstone was its latest record already
    tombstone_offset: int | None = None
    superseded: int | None = None
    left: int | None = None
    horizon: int | None = None
    out_of_table_at: int | None = None
    off_disk_from: int | None = None
    key_block: bytes | None = None
    secret: str | None = None
    erased_at: int | None = None

    @classmethod
    def of(
        cls, key: NamedKey, partition: int | None = None, found: int = 0, way: str | None = None
    ) -> KeyRow:
        """Return the row of a key, before any tombstone is logged."""
        row = cls(key.key_hmac, partition, found, way)
        return row._replace(key_block=key.key_block, secret=key.secret)


ERASURES = OwnTable(
    name="erasures",
    columns="""
    run_id STRING, topic STRING, status STRING COMMENT 'logged or reported',
    requested_at TIMESTAMP, requested_by STRING, reason STRING,
    key_hmac STRING COMMENT 'HMAC-SHA-256 of the key with the secret of the topic, in hex',
    key_block BINARY COMMENT 'encrypted hash and half of the HMAC',
    secret STRING COMMENT 'fingerprint of the secret',
    erased_at TIMESTAMP COMMENT 'records of the key that are older are refused',
    key_sha256 STRING COMMENT 'SHA-256 of the key, in hex, of an older version; else null',
    `partition` INT COMMENT 'null: no partition has the key',
    found BIGINT COMMENT 'records of the key before its tombstone',
    way STRING COMMENT 'produced, appended or deleted; null: it had a tombstone',
    tombstone_offset BIGINT,
    superseded BIGINT COMMENT 'records of the key that were removed',
    left BIGINT COMMENT 'records of the key that are still in the table',
    horizon TIMESTAMP COMMENT 'delete horizon of the tombstone; null: not set yet',
    out_of_table_at TIMESTAMP
        COMMENT 'when the last record of the key was removed; null: some are left',
    off_disk_from TIMESTAMP
        COMMENT 'when expire_snapshots can free the removed records; null: no date yet'
    """,
    day="requested_at",
    build=KeyRow,
)
