"""Requests to erase keys, and to mark records again.

Only the source of a log assigns offsets. So tombstones are produced to it and arrive by ingest;
they are appended to the tables only if the topic has no source.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.moments import to_datetime
from ebbtide.numbers import MAX_INT, parse_whole
from ebbtide.settings.config import TopicConfig
from ebbtide.state.topic_state import PartitionState


class FromOffset(NamedTuple):
    """The offset from which records are marked again; without a partition, in all partitions."""

    partition: int | None
    offset: int

    def __str__(self) -> str:
        return str(self.offset) if self.partition is None else f"{self.partition}:{self.offset}"


def parse_from_offset(text: str) -> FromOffset:
    """Parse OFFSET or PARTITION:OFFSET."""
    partition, colon, offset = text.rpartition(":")
    try:
        return FromOffset(parse_whole(partition, MAX_INT) if colon else None, parse_whole(offset))
    except ValueError:
        raise RequestError(f"expected OFFSET or PARTITION:OFFSET, found {text[:100]!r}") from None


def ranges_to_mark(
    states: Mapping[int, PartitionState],
    again_from: Mapping[int, int],
    ends: Mapping[int, int] | None = None,
) -> dict[int, tuple[int, int]]:
    """Return the offsets [first, end) of each partition that has any to look at.

    With `ends` it looks at no other partitions, and not beyond these.
    """
    ranges = {}
    for partition, state in states.items():
        end = state.log_end_offset if ends is None else ends.get(partition, 0)
        first = min(state.first_unmarked_offset, again_from.get(partition, state.log_end_offset))
        first = max(first, state.log_start_offset)
        if first < end:
            ranges[partition] = first, end
    return ranges


def offsets_to_mark_again_from(
    states: Mapping[int, PartitionState],
    cleaned_up_to: Mapping[int, int],
    asked: Sequence[FromOffset],
) -> dict[int, int]:
    """Return the offset asked for in each partition; RequestError for one out of bounds.

    Cleaned records keep their marks: `cleaned_up_to` is where a round in flight ends.
    """
    for_all = [each.offset for each in asked if each.partition is None]
    chosen = {each.partition: each.offset for each in asked if each.partition is not None}
    if len(for_all) > 1 or len(for_all) + len(chosen) < len(asked):
        raise RequestError(
            "expected at most one offset per partition and one for the remaining partitions, "
            f"found {', '.join(map(str, asked))}"
        )
    offsets = {p: chosen.get(p, for_all[0] if for_all else None) for p in (*states, *chosen)}
    known = {partition: offset for partition, offset in offsets.items() if offset is not None}
    for partition, offset in known.items():
        if partition not in states:
            raise RequestError(
                f"expected one of the partitions {', '.join(map(str, states))} to mark again, "
                f"found {partition}"
            )
        _check_bounds(partition, states[partition], cleaned_up_to.get(partition, 0), offset)
    return known


def _check_bounds(partition: int, state: PartitionState, cleaned_up_to: int, offset: int) -> None:
    first = max(state.log_start_offset, state.first_dirty_offset, cleaned_up_to)
    if first <= offset <= state.log_end_offset:
        return
    why = (
        f": a cleaner round has used the marks below offset {first}"
        if state.log_start_offset <= offset < first
        else ", which the log does not have"
    )
    raise RequestError(
        f"expected an offset from {first} to {state.log_end_offset} to begin marking partition "
        f"{partition} again, found {offset}{why}"
    )


# In the driver's environment: the keys that were typed in, one a line, since they may be personal.
KEYS = "EBBTIDE_ERASE_KEYS"
MAX_KEYS = 1_000_000

# Headers of a tombstone: who asked for it, when, why, and in which run.
REQUESTED_BY = "ebbtide.erase.requested_by"
REQUESTED_AT = "ebbtide.erase.requested_at"
REASON = "ebbtide.erase.reason"
RUN_ID = "ebbtide.erase.run_id"

PartitionKey = tuple[int, bytes]


class LoggedTombstone(NamedTuple):
    """A tombstone in the log, with its timestamp there."""

    offset: int
    timestamp_ms: int


TombstoneHeaders = tuple[tuple[str, bytes | None], ...]


class Encoding(StrEnum):
    """The encoding of a key's bytes as a line of text."""

    UTF_8 = "utf-8"
    HEX = "hex"
    BASE64 = "base64"


class Way(StrEnum):
    """The way in which keys are erased."""

    PRODUCED = "produced"  # to the live topic, and on by ingest
    APPENDED = "appended"  # to the tables, of a topic without an upstream
    DELETED = "deleted"  # none does: rows leave a table that others write


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """A request to erase keys, which are given directly or in a file."""

    run_id: str
    now_ms: int
    requested_by: str
    reason: str
    keys: tuple[bytes, ...] = ()
    keys_file: str | None = None
    encoding: Encoding = Encoding.UTF_8
    connection: str | None = None
    appends: bool = False
    timeout_ms: int = 0
    certifies: bool = False

    @property
    def headers(self) -> TombstoneHeaders:
        """The record headers of each tombstone."""
        values = {
            REQUESTED_BY: self.requested_by,
            REQUESTED_AT: to_datetime(self.now_ms).isoformat(),
            REASON: self.reason,
            RUN_ID: self.run_id,
        }
        return tuple((name, text.encode()) for name, text in values.items())


def decode_keys(lines: Iterable[str], encoding: Encoding) -> tuple[bytes, ...]:
    """Return the keys in order, without repeats and empty lines.

    Raise RequestError that names a wrong line by its number, never by its text.
    """
    decode = _DECODERS[encoding]
    keys: dict[bytes, None] = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            keys[decode(line)] = None
        except ValueError:
            raise RequestError(
                f"expected a key in {encoding} in line {number}, found text that is not "
                f"{encoding}. Correct the line, or choose another encoding"
            ) from None
    return tuple(keys)


_DECODERS: dict[Encoding, Callable[[str], bytes]] = {
    Encoding.UTF_8: str.encode,
    Encoding.HEX: binascii.unhexlify,
    Encoding.BASE64: lambda line: base64.b64decode(line, validate=True),
}


def check_is_compacted(topic: str, config: TopicConfig) -> None:
    """Raise ConfigurationError if the topic is not compacted: a tombstone would delete nothing."""
    if not config.is_compacted:
        raise ConfigurationError(
            f"expected compact in kafka.cleanup.policy of {topic}, found "
            f"{','.join(sorted(config.cleanup_policy or ())) or 'none'}: a tombstone would delete "
            "nothing. Set it with configure_topic, or remove the oldest records with "
            "delete_records"
        )


def way_of(topic: str, config: TopicConfig, erasure: Erasure) -> tuple[Way, str | None]:
    """Return how the keys are erased, and the Kafka connection if tombstones are produced."""
    connection = _connection(config, erasure)
    has_writer = config.upstream is not None or bool(config.live_replicas)
    if erasure.appends and has_writer:
        writer = config.upstream or f"kafka:{config.live_replicas[0]}"
        raise RequestError(
            f"expected a topic without a source for `append`, found that {writer} writes {topic}. "
            f"Leave `append` off; or, if nothing writes {topic} any more, unset ebbtide.source and "
            "ebbtide.replicas with configure_topic"
        )
    if erasure.appends:
        return Way.APPENDED, None
    if connection is None:
        raise RequestError(
            f"expected a Kafka connection to the live topic of {topic}, found none in the "
            f"request, in ebbtide.source ({config.upstream or 'not set'}) or in ebbtide.replicas. "
            "Name one with `connection`; or, if nothing writes the topic any more, set `append`"
        )
    if config.tombstones_are_explicit and config.tombstone_header is None:
        raise ConfigurationError(
            f"expected a header that makes a produced record of {topic} a tombstone, found none: "
            "ebbtide.tombstone.explicit is set, and producers cannot set the flag. Set "
            "ebbtide.tombstone.header with configure_topic"
        )
    return Way.PRODUCED, connection


def produced_headers(config: TopicConfig, erasure: Erasure) -> TombstoneHeaders:
    """Return the headers of a produced tombstone, with ebbtide.tombstone.header if it is set."""
    header = config.tombstone_header
    if header is None:
        return erasure.headers
    return (*erasure.headers, (header.name, (header.value or "").encode()))


def _connection(config: TopicConfig, erasure: Erasure) -> str | None:
    """Return the connection of the request, of the source, or of the only live replica."""
    if erasure.connection:
        return erasure.connection
    if config.upstream is not None and config.upstream.connection is not None:
        return config.upstream.connection
    return config.live_replicas[0] if len(config.live_replicas) == 1 else None


def sliced(sizes: Sequence[int], max_bytes: int) -> list[tuple[int, int]]:
    """Return half-open ranges of records; each adds up to `max_bytes` at most or is one record."""
    ranges: list[tuple[int, int]] = []
    start = held = 0
    for i, size in enumerate(sizes):
        if i > start and held + size > max_bytes:
            ranges.append((start, i))
            start, held = i, 0
        held += size
    return [*ranges, (start, len(sizes))] if sizes else []
