"""Topics whose records say in several ways that they are tombstones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS
from tests.tables.nights import DAY_MS
from tests.tables.partition_log import write_segments

FLAG = 0x20
NIGHT_MS = FIRST_MS + 10 * DAY_MS
COMPACT = {"kafka.cleanup.policy": "compact", "kafka.min.cleanable.dirty.ratio": "0.01"}
EXPLICIT = {"ebbtide.tombstone.explicit": "true"}
BY_HEADER = {"ebbtide.tombstone.header": "op=d"}
PREDICATE = "ebbtide.tombstone.predicate"
# As docs/tombstones.md has it.
DEBEZIUM = {
    PREDICATE: "coalesce(get_json_object(string(value), '$.payload.op'), "
    "get_json_object(string(value), '$.op')) = 'd'"
}

Headers = Sequence[tuple[str, str | None]]


def record(
    offset: int, value: str | None, headers: Headers = (), attributes: int = 0, key: str = ""
) -> Record:
    """A record; its key is its own where none is given."""
    encoded = [(name.encode(), None if text is None else text.encode()) for name, text in headers]
    of_value = None if value is None else value.encode()
    of_key = (key or f"k{offset}").encode()
    return Record(offset, FIRST_MS + offset, of_key, of_value, encoded, attributes)


def topic_of(
    bench: Bench,
    records: Sequence[Record],
    *settings: dict[str, str],
    at_once: int = 2,
    folder: str = "",
) -> None:
    """A log of these records, a segment of one batch for each `at_once`, and an empty one."""
    parts = [records[i : i + at_once] for i in range(0, len(records), at_once)]
    segments = {part[0].offset: [write_batch(BatchFields(), part)] for part in parts}
    write_segments(bench.home / folder, {**segments, records[-1].offset + 1: []})
    bench.ingest(bench.home / folder, FIRST_MS)
    for each in settings:
        bench.set(each)


def marks(bench: Bench) -> dict[int, str]:
    rows = bench.spark.table(bench.name.records_table).where("is_tombstone").collect()
    return {row["offset"]: row["tombstone_by"] for row in rows}


def quarantine(bench: Bench) -> list[dict[str, Any]]:
    rows = bench.spark.table(bench.name.quarantine_table).orderBy("offset")
    return [row.asDict(recursive=True) for row in rows.collect()]


FORBIDDEN = [
    *(record(0, "v"), record(1, None, [("trace", "7")])),
    *(record(2, None, attributes=FLAG), record(3, None, [("op", "d")])),
    *(record(4, None), record(5, None)),
    *(record(6, "v", [("op", "d")]), record(7, "v")),
]
FORBIDDEN_OFFSETS = [1, 4, 5]


def forbidden_topic(bench: Bench, folder: str = "") -> None:
    topic_of(bench, FORBIDDEN, COMPACT, EXPLICIT, BY_HEADER, folder=folder)
