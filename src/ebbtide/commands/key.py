"""Find a key's records: offsets, tombstones, delete horizons, and why each record is still there.

The command never prints the key, only its SHA-256. With --encoding sha-256, give that hash instead
of the key. The command reads the key column of all files of the topic, or of one --partition.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ebbtide import open_lake
from ebbtide.commands.answer import Answer, iso, iso_ms
from ebbtide.lake.key_records import SHA256, KeyRecord, SearchedKey
from ebbtide.local.progress import working
from ebbtide.moments import minute, to_datetime
from ebbtide.numbers import MAX_INT, whole_argument
from ebbtide.specs.erase_request import Encoding
from ebbtide.text import aligned, number, without_empty

HEADER = (
    "part",
    "offset",
    "time (UTC)",
    "bytes",
    "tombstone\nby",
    "delete horizon\n(UTC)",
    "why it is retained",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the topic and the key."""
    parser.add_argument("topic", metavar="CLUSTER.TOPIC", help="topic to search")
    parser.add_argument("key", help="key to find, or its SHA-256")
    parser.add_argument(
        "--encoding",
        choices=[*map(str, Encoding), SHA256],
        default=str(Encoding.UTF_8),
        help="encoding of the key, or sha-256 for the key's hash in hex [utf-8]",
    )
    parser.add_argument(
        "--partition", type=whole_argument(most=MAX_INT), help="the only partition to read [all]"
    )


def answer(args: argparse.Namespace) -> Answer:
    """Return the key's records, oldest first in each partition."""
    searched = SearchedKey.parse(args.key, args.encoding)
    with open_lake() as lake, working(f"reading the keys of {args.topic}"):
        records = searched.find(lake, args.topic, args.partition)
    document = {
        "topic": args.topic,
        "key_sha256": searched.sha256,
        "records": [_document(record) for record in records],
    }
    return Answer(_text(args.topic, searched.sha256, records), document)


def _document(record: KeyRecord) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "segment": record.segment,
        "timestamp": _date(record.timestamp_ms),
        "event_time": _date(record.event_time_ms),
        "is_tombstone": record.is_tombstone,
        "tombstone_by": record.tombstone_by,
        "size_bytes": record.size_bytes,
        "delete_horizon": iso_ms(record.delete_horizon_ms),
        "fate": record.fate.name,
        "why": record.fate.value,
    }


def _date(ms: int | None) -> str | None:
    return None if ms is None else iso(to_datetime(ms))


def _text(topic: str, digest: str, records: Sequence[KeyRecord]) -> str:
    title = f"{topic}, key {digest}"
    if not records:
        return f"{title}: the tables have no record of it"
    return "\n".join(
        [
            title,
            "",
            aligned(*without_empty(HEADER, [_row(record) for record in records])),
            "",
            "Old snapshots can still have removed records: see docs/when_is_it_gone.md.",
        ]
    )


def _row(record: KeyRecord) -> list[str]:
    return [
        str(record.partition),
        number(record.offset),
        minute(record.timestamp_ms),
        number(record.size_bytes),
        (record.tombstone_by or "not marked yet") if record.is_tombstone else "-",
        minute(record.delete_horizon_ms) if record.is_tombstone else "-",
        record.fate.value,
    ]
