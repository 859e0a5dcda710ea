"""A key's page: its records, why each is still in the log, and when a job removes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.lake.key_records import Fate, KeyRecord, SearchedKey, erasures_of
from ebbtide.lake.own_tables import read_holds
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.moments import minute, to_datetime
from ebbtide.numbers import MAX_LONG
from ebbtide.orchestration.pages.holds import holds_of_key
from ebbtide.settings.config import TopicConfig
from ebbtide.state.topic_state import PartitionState

# A badge for each fate: its text, and its kind.
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
_OF_NO_READER = (Fate.ABORTED, Fate.UNDECIDED)  # never the newest committed record of a key


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRecord:
    """A record of the key, and the reasons why it is still in the log."""

    record: KeyRecord
    reasons: Sequence[str]

    @property
    def word(self) -> str:
        """The text of the record's badge."""
        return IN_A_WORD[self.record.fate][0]

    @property
    def badge(self) -> str:
        """The kind of the record's badge."""
        return IN_A_WORD[self.record.fate][1]


def key_page(lake: Lake, name: str, text: str, encoding: str, clock_ms: int) -> dict[str, Any]:
    """Return the values of a key's page.

    Raise RequestError if the text is no key, and UnknownTopicError if there is no such topic.
    """
    topic, searched = lake.topic(name), SearchedKey.parse(text, encoding)
    records = searched.find(lake, name, within_limits=True)
    erasures = erasures_of(lake, topic.erased_under, searched)
    return {
        "topic": topic,
        "sha256": searched.sha256,
        "records": explain(topic, records, clock_ms),
        "erasures": erasures.rows,
        "problem": erasures.problem,
        "holds": holds_of_key(read_holds(lake, to_datetime(clock_ms), name), searched.sha256),
    }


def explain(topic: LakeTopic, records: Sequence[KeyRecord], clock_ms: int) -> list[ExplainedRecord]:
    """Return each record with its reasons. `records` are one key's, sorted by offset."""
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
        return [*reasons, "ebbtide.enabled=false: nightly runs skip this topic."]
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
    return ["Compaction retains the newest record of a key.", *_limits(config)]


_UNDECIDED = (
    "A transaction that started at or before this record is still open. A read_committed consumer "
    "does not read the record yet, and no cleaner round goes past that transaction."
)
_ABORTED = (
    "Its transaction was aborted: a read_committed consumer never reads it. An older record of "
    "the key may be the current value."
)
_UNMARKED = (
    "This is the newest record of the key. The next nightly run first decides whether the record "
    "is a tombstone."
)


def _kept_uncompacted(config: TopicConfig) -> list[str]:
    limits = _limits(config)
    why = "cleanup.policy has no compact: a newer record of the key does not supersede it."
    return [why, *(limits or ["None of the topic's settings removes it."])]


def _limits(config: TopicConfig) -> list[str]:
    """Name the retention limits that can expire the record's segment."""
    limits = {
        "retention.ms": config.retention_ms,
        "retention.bytes": config.retention_bytes,
        "retention.max.eventtime.ms": config.retention_max_eventtime_ms,
    }
    names = [name for name, limit in limits.items() if limit is not None and limit >= 0]
    if not (names and config.is_deleted):
        return []
    return [f"The record is removed with its segment, by {' or '.join(names)}."]


def _when_covered(config: TopicConfig, state: PartitionState, offset: int) -> str:
    """Say when a cleaner round removes a record that the record at `offset` supersedes."""
    if offset >= state.active_segment:
        return (
            f"Offset {offset:,} is in the active segment, which no cleaner round covers. The first "
            "round after that segment is closed removes this record."
        )
    if offset < state.first_dirty_offset:
        return (
            f"A cleaner round has covered offset {offset:,} and retained this record. If a newer "
            "record of the key arrives, the round that covers it removes this record."
        )
    return (
        f"No cleaner round has covered offset {offset:,} yet. The next round starts at offset "
        f"{state.first_dirty_offset:,} and removes this record. A round starts if more than "
        f"{100 * config.min_cleanable_dirty_ratio:.0f} % of the log is dirty "
        f"(min.cleanable.dirty.ratio){_late(config)}{_lag(config)}."
    )


def _late(config: TopicConfig) -> str:
    if config.max_compaction_lag_ms == MAX_LONG:
        return ""
    hours = config.max_compaction_lag_ms / 3_600_000
    return f" or dirty records are older than {hours:g} h (max.compaction.lag.ms)"


def _lag(config: TopicConfig) -> str:
    hours = config.min_compaction_lag_ms / 3_600_000
    if hours <= 0:
        return ""
    return f", and skips records younger than {hours:g} h (min.compaction.lag.ms)"


def _tombstone(
    config: TopicConfig, state: PartitionState, record: KeyRecord, clock_ms: int
) -> list[str]:
    reasons, horizon_ms = [], record.delete_horizon_ms
    if record.offset >= state.active_segment:
        reasons.append(
            "The tombstone is in the active segment. No cleaner round covers that segment until it "
            "is closed."
        )
    elif horizon_ms is None:
        days = config.delete_retention_ms / 86_400_000
        reasons.append(
            "The tombstone has no delete horizon yet. The next cleaner round that covers it sets "
            f"one: the round's time plus delete.retention.ms ({days:g} days)."
        )
    elif horizon_ms > clock_ms:
        reasons.append(
            f"Its delete horizon is due at {minute(horizon_ms)} UTC. The first cleaner round at or "
            "after that time removes the tombstone."
        )
    else:
        reasons.append(
            f"Its delete horizon was due at {minute(horizon_ms)} UTC. The next cleaner round "
            "removes the tombstone."
        )
    if config.replicas:
        reasons.append("The tombstone is retained until every replica has it.")
    return reasons
