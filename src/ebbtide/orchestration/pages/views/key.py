"""A key's page: where its records are, when each will be gone, and why it is still there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from ebbtide.errors import RequestError
from ebbtide.lake.key_rows import (
    ErasureRow,
    KeyRecord,
    erasures_of,
    records_of_hash,
    records_of_key,
)
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.log.requests.erase_request import Encoding, decode_keys
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.orchestration.pages.views.holds import HoldRow, holds_of_key, standing_holds
from ebbtide.text import moment

SHA256 = "sha-256"
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class Fate(StrEnum):
    """What is to become of a record, in a word."""

    CURRENT = "current value"
    TOMBSTONE = "tombstone"
    SUPERSEDED = "superseded"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A key as it was typed: its text is never kept, and in no address."""

    topic: str
    text: str
    encoding: str

    @property
    def key(self) -> bytes | None:
        """The bytes of the key; None where its hash was typed. RequestError for neither."""
        if self.encoding == SHA256:
            if not _SHA256.fullmatch(self.text):
                raise RequestError(
                    "expected the SHA-256 of a key as 64 hexadecimal digits, found something else"
                )
            return None
        if self.encoding not in list(Encoding):
            raise RequestError(
                f"expected an encoding of {', '.join([*Encoding, SHA256])}, found another one"
            )
        (*_, key) = decode_keys([self.text], Encoding(self.encoding)) or [None]
        if key is None:
            raise RequestError("expected a key, found an empty field; the empty key has no name")
        return key

    @property
    def sha256(self) -> str:
        """The key's SHA-256, in hex."""
        key = self.key
        return self.text.lower() if key is None else hashlib.sha256(key).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRecord:
    """A record of the key, its fate, and the reasons."""

    record: KeyRecord
    fate: Fate
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """All that the lake knows of a key in a topic."""

    topic: LakeTopic
    sha256: str
    records: Sequence[ExplainedRecord]
    erasures: Sequence[ErasureRow]
    holds: Sequence[HoldRow]


def find_key(lake: Lake, searched: Searched, clock_ms: int) -> KeyPage:
    """Look a key up; RequestError where it cannot be, UnknownTopicError for no such topic."""
    topic = lake.topic(searched.topic)
    key, clock = searched.key, datetime.fromtimestamp(clock_ms / 1000, UTC)
    records = (
        records_of_hash(lake, topic.name, searched.sha256)
        if key is None
        else records_of_key(lake, topic.name, key)
    )
    return KeyPage(
        topic=topic,
        sha256=searched.sha256,
        records=explain(topic, records, clock_ms),
        erasures=erasures_of(lake, topic.name, searched.sha256),
        holds=holds_of_key(standing_holds(lake, clock, topic.name), searched.sha256),
    )


def explain(topic: LakeTopic, records: Sequence[KeyRecord], clock_ms: int) -> list[ExplainedRecord]:
    """Return each record with its fate; `records` are one key's, by partition and offset."""
    newest = {record.partition: record for record in records}
    return [
        _explained(
            topic.config,
            topic.partitions[record.partition],
            record,
            newest[record.partition],
            clock_ms,
        )
        for record in records
        if record.partition in topic.partitions
    ]


def _explained(
    config: TopicConfig,
    state: PartitionState,
    record: KeyRecord,
    newest: KeyRecord,
    clock_ms: int,
) -> ExplainedRecord:
    if not config.is_compacted:
        fate, reasons = Fate.KEPT, _kept_uncompacted(config)
    elif record != newest:
        fate, reasons = Fate.SUPERSEDED, _superseded(config, state, newest)
    elif record.is_tombstone:
        fate, reasons = Fate.TOMBSTONE, _tombstone(config, state, record, clock_ms)
    else:
        fate, reasons = Fate.CURRENT, ["Compaction keeps the newest record of a key."]
        reasons += _limits(config)
    if not config.is_enabled:
        reasons = [*reasons, "ebbtide.enabled is false: no night works on this topic."]
    return ExplainedRecord(record=record, fate=fate, reasons=reasons)


def _kept_uncompacted(config: TopicConfig) -> list[str]:
    limits = _limits(config)
    why = "cleanup.policy has no compact: no newer record takes its place."
    return [why, *(limits or ["No rule is set that would remove it."])]


def _limits(config: TopicConfig) -> list[str]:
    """Name the retention limits that may take the record with its segment."""
    limits = {
        "retention.ms": config.retention_ms,
        "retention.bytes": config.retention_bytes,
        "retention.max.eventtime.ms": config.retention_max_eventtime_ms,
    }
    names = [name for name, limit in limits.items() if limit is not None and limit >= 0]
    if not (names and config.is_deleted):
        return []
    return [f"It goes with its segment when {' or '.join(names)} says so."]


def _superseded(config: TopicConfig, state: PartitionState, newest: KeyRecord) -> list[str]:
    what = f"Offset {newest.offset:,} has a newer record of the key."
    if newest.offset >= state.active_segment:
        return [
            what,
            "That one lies in the active segment, which no round covers: the round after the "
            "segment is rolled removes this record.",
        ]
    if newest.offset < state.first_dirty_offset:
        return [
            what,
            "A round has covered both and left this one: the newer record may be of an aborted "
            "transaction, or a newer setting protects this one.",
        ]
    return [
        what,
        f"No round has covered that offset yet: the next one begins at {state.first_dirty_offset:,}"
        " and removes this record. A round begins when more than "
        f"{100 * config.min_cleanable_dirty_ratio:.0f} % of the log is dirty "
        "(min.cleanable.dirty.ratio).",
    ]


def _tombstone(
    config: TopicConfig, state: PartitionState, record: KeyRecord, clock_ms: int
) -> list[str]:
    reasons = []
    if record.offset >= state.active_segment:
        reasons.append("It lies in the active segment, which no round covers until it is rolled.")
    elif record.horizon_ms is None:
        days = config.delete_retention_ms / 86_400_000
        reasons.append(
            "It has no delete horizon yet. The next round that covers it sets one: its time plus "
            f"delete.retention.ms ({days:g} days)."
        )
    elif record.horizon_ms > clock_ms:
        reasons.append(
            f"The first round at or after {moment(record.horizon_ms)} UTC removes it, its delete "
            "horizon."
        )
    else:
        reasons.append(
            f"Its delete horizon was {moment(record.horizon_ms)} UTC: the next round removes it."
        )
    if config.replicas:
        reasons.append("It stays until each replica holds it.")
    return reasons
