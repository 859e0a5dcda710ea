"""A key's page: where its records are, when each will be gone, and why it is still there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.lake.key_records import Fate, KeyRecord, SearchedKey, erasures_of
from ebbtide.lake.own_tables import read_holds
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.moments import minute, to_datetime
from ebbtide.orchestration.pages.holds import holds_of_key
from ebbtide.settings.config import TopicConfig
from ebbtide.state.topic_state import PartitionState

# What is to become of a record, in a word or two, and the kind of its badge.
IN_A_WORD: Mapping[Fate, tuple[str, str]] = {
    Fate.CURRENT: ("current value", "good"),
    Fate.UNMARKED: ("newest, not marked yet", ""),
    Fate.TOMBSTONE: ("tombstone", ""),
    Fate.UNSTAMPED: ("tombstone", ""),
    Fate.SUPERSEDED: ("superseded", "warn"),
    Fate.ACTIVE: ("superseded", "warn"),
    Fate.ABORTED: ("aborted", "warn"),
    Fate.UNDECIDED: ("undecided", ""),
    Fate.NOT_COMPACTED: ("retained", ""),
}
_OF_NO_READER = (Fate.ABORTED, Fate.UNDECIDED)  # never the newest of a key


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRecord:
    """A record of the key, and the reasons why it is there."""

    record: KeyRecord
    reasons: Sequence[str]

    @property
    def word(self) -> str:
        """What is to become of it, in a word."""
        return IN_A_WORD[self.record.fate][0]

    @property
    def badge(self) -> str:
        """The kind of its badge."""
        return IN_A_WORD[self.record.fate][1]


def key_page(lake: Lake, name: str, text: str, encoding: str, clock_ms: int) -> dict[str, Any]:
    """Return all that the lake knows of a key; RequestError or UnknownTopicError if it is none."""
    topic, searched = lake.topic(name), SearchedKey.parse(text, encoding)
    records = searched.find(lake, name, within_limits=True)
    return {
        "topic": topic,
        "sha256": searched.sha256,
        "records": explain(topic, records, clock_ms),
        "erasures": erasures_of(lake, name, searched.sha256),
        "holds": holds_of_key(read_holds(lake, to_datetime(clock_ms), name), searched.sha256),
    }


def explain(topic: LakeTopic, records: Sequence[KeyRecord], clock_ms: int) -> list[ExplainedRecord]:
    """Return each record with its reasons; `records` are one key's, by partition and offset."""
    newest = {
        key_record.partition: key_record
        for key_record in records
        if key_record.fate not in _OF_NO_READER
    }
    states = topic.partitions
    return [
        ExplainedRecord(
            record=record,
            reasons=_reasons(
                topic.config,
                states[record.partition],
                record,
                newest.get(record.partition, record),
                clock_ms,
            ),
        )
        for record in records
        if record.partition in states
    ]


def _reasons(
    config: TopicConfig,
    state: PartitionState,
    record: KeyRecord,
    newest: KeyRecord,
    clock_ms: int,
) -> list[str]:
    reasons = _of_fate(config, state, record, newest, clock_ms)
    if not config.is_enabled:
        return [*reasons, "ebbtide.enabled is false: no night works on this topic."]
    return reasons


def _of_fate(
    config: TopicConfig,
    state: PartitionState,
    record: KeyRecord,
    newest: KeyRecord,
    clock_ms: int,
) -> list[str]:
    if record.fate is Fate.NOT_COMPACTED:
        return _kept_uncompacted(config)
    if record.fate is Fate.UNDECIDED:
        return [_UNDECIDED]
    if record.fate is Fate.ABORTED:
        return [_ABORTED, _when_covered(config, state, record.offset)]
    if record.fate in (Fate.SUPERSEDED, Fate.ACTIVE):
        what = f"Offset {newest.offset:,} has a newer record of the key."
        return [what, _when_covered(config, state, newest.offset)]
    if record.fate in (Fate.TOMBSTONE, Fate.UNSTAMPED):
        return _tombstone(config, state, record, clock_ms)
    if record.fate is Fate.UNMARKED:
        return [_UNMARKED, *_limits(config)]
    return ["Compaction keeps the newest record of a key.", *_limits(config)]


_UNDECIDED = (
    "A transaction before it is still open, so a read_committed consumer does not get it yet. No "
    "round goes beyond that transaction."
)
_ABORTED = (
    "Its transaction was aborted: a read_committed consumer never gets it, and an older record "
    "of the key may be the current value."
)
_UNMARKED = (
    "It is the newest record of the key. The next night first finds out whether it is a tombstone."
)


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


def _when_covered(config: TopicConfig, state: PartitionState, offset: int) -> str:
    """Say when a round removes a record that the one at `offset` makes superfluous."""
    if offset >= state.active_segment:
        return (
            f"Offset {offset:,} lies in the active segment, which no round covers: the first round "
            "after that segment is closed removes this record."
        )
    if offset < state.first_dirty_offset:
        return (
            f"A round has covered offset {offset:,} and left this record. Once a newer record of "
            "the key arrives, the round that covers it removes this one."
        )
    return (
        f"No round has covered offset {offset:,} yet: the next one begins at "
        f"{state.first_dirty_offset:,} and removes this record. A round begins when more than "
        f"{100 * config.min_cleanable_dirty_ratio:.0f} % of the log is dirty "
        "(min.cleanable.dirty.ratio)" + _lag(config) + "."
    )


def _lag(config: TopicConfig) -> str:
    hours = config.min_compaction_lag_ms / 3_600_000
    if hours <= 0:
        return ""
    return f", and it leaves out records younger than {hours:g} h (min.compaction.lag.ms)"


def _tombstone(
    config: TopicConfig, state: PartitionState, record: KeyRecord, clock_ms: int
) -> list[str]:
    reasons, horizon_ms = [], record.delete_horizon_ms
    if record.offset >= state.active_segment:
        reasons.append("It lies in the active segment, which no round covers until it is closed.")
    elif horizon_ms is None:
        days = config.delete_retention_ms / 86_400_000
        reasons.append(
            "It has no delete horizon yet. The next round that covers it sets one: its own time "
            f"plus delete.retention.ms ({days:g} days)."
        )
    elif horizon_ms > clock_ms:
        reasons.append(
            f"The first round at or after {minute(horizon_ms)} UTC, its delete horizon, removes it."
        )
    else:
        reasons.append(
            f"Its delete horizon was {minute(horizon_ms)} UTC: the next round removes it."
        )
    if config.replicas:
        reasons.append("It stays until each replica holds it.")
    return reasons
