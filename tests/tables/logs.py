"""Little log directories, written byte by byte: one batch a segment, offsets from 0 on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch

# Old enough for every clock in the tests.
FIRST_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Message:
    """A record to be; `at_ms` counts from FIRST_MS on."""

    key: str | None
    value: str | None
    at_ms: int = 0
    attributes: int = 0


def write_log(
    directory: Path,
    topic: str,
    segments: Sequence[Sequence[Message]],
    config: Mapping[str, str],
    *,
    partition: int = 0,
    log_start_offset: int = 0,
) -> Path:
    """Write a log directory with one partition, or one more partition into it; its path."""
    folder = directory / f"{topic}-{partition}"
    folder.mkdir(parents=True)
    offset = 0
    for messages in segments:
        path = folder / f"{offset:020}.log"
        path.write_bytes(batch_of(messages, offset) if messages else b"")
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
        offset += len(messages)
    if log_start_offset:
        checkpoint = directory / "log-start-offset-checkpoint"
        checkpoint.write_text(f"0\n1\n{topic} {partition} {log_start_offset}\n")
    manifest = directory / "ebbtide-manifest.json"
    known = json.loads(manifest.read_text()) if manifest.exists() else {"files": {}, "topics": {}}
    known["topics"][topic] = {"config": dict(config)}
    manifest.write_text(json.dumps(known))
    return directory


def batch_of(
    messages: Sequence[Message], base_offset: int, fields: BatchFields | None = None
) -> bytes:
    """One batch that holds the messages."""
    records = [
        Record(
            base_offset + i,
            FIRST_MS + message.at_ms,
            None if message.key is None else message.key.encode(),
            None if message.value is None else message.value.encode(),
            attributes=message.attributes,
        )
        for i, message in enumerate(messages)
    ]
    return write_batch(fields or BatchFields(base_offset=base_offset), records)
