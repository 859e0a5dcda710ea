"""What each property does, and how changes of settings are checked and what they would remove."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from ebbtide.errors import ConfigurationError, EbbtideError, RequestError
from ebbtide.ledger.plans import BYTES, EMPTIED, RATIO, RECORDS
from ebbtide.records.limits import MAX_DECOMPRESSED
from ebbtide.settings.config import (
    RENAMED,
    SETTINGS,
    UNDO_MS,
    TopicConfig,
    parse_config,
    settings,
)
from ebbtide.settings.names import quoted_list
from ebbtide.settings.upstream import REPLICAS, SOURCE, check_uri
from ebbtide.state.topic_state import (
    MAX_SNAPSHOT_AGE,
    is_state,
    max_snapshot_age_ms,
    parse_snapshot_age,
)

# Settings of a topic, which are properties of its records table.
EFFECTS = {
    "kafka.cleanup.policy": "`compact` cleans the log by key; `delete` applies the retention "
    "limits. Not set: neither. With `compact` alone DeleteRecords is refused.",
    "kafka.delete.retention.ms": "How long a tombstone or a transaction marker stays after the "
    "round that set its delete horizon.",
    "kafka.min.cleanable.dirty.ratio": "`clean_log` begins a round when more than this share of "
    "the bytes is dirty.",
    "kafka.min.compaction.lag.ms": "A record stays uncleaned for at least this long.",
    "kafka.max.compaction.lag.ms": "`clean_log` begins a round when dirty records are older than "
    "this, whatever the dirty ratio.",
    "kafka.retention.ms": "With `delete`: a segment goes when its newest record is older. With the "
    "event-time limit set too, when the log received all of it longer ago. -1 means no limit.",
    "kafka.retention.bytes": "With `delete`: the oldest segments go as long as at least this many "
    "bytes of the partition stay. A negative value means no limit.",
    "kafka.retention.max.eventtime.ms": "With `delete`: a segment goes when its newest event lies "
    "further behind the newest event of the partition (KIP-870). -1 means no limit.",
    "kafka.segment.bytes": "The size up to which a cleaner round merges segments, and at which a "
    "live topic's segments are rolled.",
    "kafka.segment.ms": "The age at which a live topic's segments are rolled.",
    "kafka.max.message.bytes": "The largest record batch that ebbtide builds itself; an export "
    "counts batches that are larger.",
    "kafka.message.timestamp.type": "Whose clock stamps the records of a live topic: the "
    "producer's, or the broker's when it appends.",
    "kafka.message.timestamp.after.max.ms": "An event time later than its append time plus this "
    "counts as the append time.",
    "kafka.producer.id.expiration.ms": "How long a producer without new batches keeps its last "
    "batch in the log, as an empty batch if need be.",
    "kafka.topic.id": "The id of the topic at its source. An ingest from a topic of another id is "
    "refused. The first ingest sets it.",
    "ebbtide.enabled": "`false` takes the topic out of `nightly_retention` and `replicate_log`. "
    "A job that is started by hand with `--topic` still runs.",
    "ebbtide.clean.without.new.data": "`true`: a cleaner round also begins if a delete "
    "horizon is due and no new data has come. `false`: only if Kafka's cleaner would begin one.",
    "ebbtide.rewrite.deleted.ratio": "`expire_snapshots` rewrites a file of a closed segment from "
    "this share of deleted rows on. 0: at the first deleted row, of active segments and of the "
    "batches table too, so that no table keeps a deletion vector.",
    "ebbtide.merge.target.bytes": "`expire_snapshots` joins files of small segments that a round "
    "has merged, up to this size. 0: never.",
    MAX_DECOMPRESSED: "A record batch that decompresses to more is refused, and its partition "
    "stops there.",
    "ebbtide.max.delete.ratio": "A night whose limits would remove a larger share of the topic's "
    "bytes leaves the topic as it is and keeps a plan to approve. 1: never.",
    "ebbtide.max.delete.records": "The same for a stage that would remove more records.",
    "ebbtide.max.delete.bytes": "The same for a stage that would remove more bytes of the log.",
    "ebbtide.max.emptied.partitions": "The same for limits that would leave more partitions "
    "without a record.",
    "ebbtide.plan.expire.ms": "How long after it was made a plan may be executed.",
    "ebbtide.undo.retention.ms": "How long after it a run that removed something can be undone. "
    "`expire_snapshots` keeps the snapshots before it for as long. 0: nothing is noted or kept.",
    "ebbtide.plan.four.eyes": "`true`: a plan is executed only if somebody other than who asked "
    "for it has approved it, and no one removes anything by hand without a plan.",
    "ebbtide.plan.show.keys": "`true`: plans show example keys as text. `false`: their SHA-256.",
    "ebbtide.retention.combine": "`any`: each limit is a maximum. `all`: a segment goes only when "
    "`retention.ms` and the event-time limit both say so.",
    "ebbtide.retention.granularity": "`record`: single records past the event-time limit go too, "
    "wherever they lie.",
    "ebbtide.event.time": "Where a record's event time comes from. Applies to records that are "
    "ingested from then on.",
    "ebbtide.tombstone.explicit": "`true`: in format v2 a null value alone is no tombstone, and "
    "unmarked null values go to the quarantine (KIP-87).",
    "ebbtide.tombstone.header": "A record with this header, or with this header and value, is a "
    "tombstone.",
    "ebbtide.tombstone.predicate": "A record for which this SQL predicate is true is a tombstone.",
    REPLICAS: "Where else the log is kept: copies of its tables, and the live topic.",
    SOURCE: "Who writes the log. An ingest sets it. Empty: nobody does any more, so `erase_keys` "
    "may append to the tables.",
}

# The state: properties of the state table. The jobs write them; change none of them by hand.
STATE = {
    "ebbtide.state.<partition>.*": "Offsets, clocks and logical segments of a partition; of an "
    "adopted topic also the offsets that never arrived, and where late rows lie.",
    "ebbtide.round": "The cleaner round in flight.",
    "ebbtide.merge": "The merge of files in flight, or the id of the last one.",
    "ebbtide.undo": "The undo in flight.",
    "ebbtide.undone": "The last undo that ended; on a replica, that began on its primary.",
    "ebbtide.append": "The erasure's append in flight.",
    "ebbtide.ingest.slice": "The offsets of segment files that are being taken, and by which run.",
    "ebbtide.live.slice": "The slice of a live topic that is being taken.",
    "ebbtide.copied": "The table that the topic is copied from: its layout, and the snapshot up to "
    "which its rows are here.",
    "ebbtide.copied.slice": "The slice of that table that is being taken.",
    "ebbtide.replication": "On a replica: the replication in flight.",
    "ebbtide.replica.of": "On a replica: the id of its primary's table.",
    "ebbtide.adopted.seen": "The newest snapshot of an adopted table that the state covers.",
    "ebbtide.layout": "On an adopted table itself: which of its columns is what of a record.",
    "ebbtide.tables": "The ids of the data tables that the state tells of.",
    "ebbtide.rows.*": "Live rows of each segment, by which changes of others are noticed.",
    "ebbtide.seen.*": "The last known snapshot of each data table.",
    "ebbtide.removing": "Rows are being removed, so there may be fewer than counted.",
    "ebbtide.tidied": "The snapshots in which `expire_snapshots` left nothing to rewrite or merge.",
    "ebbtide.held": "The id of the table of the topic's held records, since its first copy.",
    "ebbtide.accepted": "On `lake.ebbtide.holds` itself, set by a person: snapshots that deleted "
    "rows or were rolled back, and were meant to.",
    "ebbtide.layout.version": "Which ebbtide can work on the tables: one that knows this layout.",
    "ebbtide.checksum": "A checksum over the whole state, by which an edit is noticed.",
}

# In the summaries of snapshots that ebbtide commits, beside the id of a round (ebbtide.round).
SUMMARY = {
    "ebbtide.own": "Marks the snapshot as committed by ebbtide.",
    "ebbtide.job": "The job that committed the snapshot.",
    "ebbtide.left": "The commit takes out what a killed ingest had left, no record of the log.",
    "ebbtide.slice": "The slice of a topic's source that an ingest appended with the snapshot.",
    "ebbtide.rows": "How many records a round removed, or how many batches it changed.",
    "ebbtide.undone.since": "On an adopted table, of an undo: by partition, since which snapshot.",
    "ebbtide.topic": "The topic of an adopted table whose rows left.",
}

# Headers of records.
HEADERS = {
    "ebbtide.erase.requested_by": "On a tombstone of `erase_keys`: who asked for it.",
    "ebbtide.erase.requested_at": "On a tombstone of `erase_keys`: when it was asked for.",
    "ebbtide.erase.reason": "On a tombstone of `erase_keys`: why.",
    "ebbtide.erase.run_id": "On a tombstone of `erase_keys`: in which run.",
    "ebbtide.timestamp": "A timestamp in milliseconds that no SQL timestamp can hold. An export "
    "turns it back.",
    "ebbtide.header.keys": "The place and the bytes (hex) of each header key of the record that is "
    "not UTF-8. An export turns them back.",
}


# A setting set to None is removed.
SettingChanges = Mapping[str, str | None]


def parse_changes(assignments: Iterable[str], removals: Iterable[str]) -> dict[str, str | None]:
    """NAME=VALUE and NAME as changes; ConfigurationError names everything that is wrong."""
    problems: list[str] = []
    changes: dict[str, str | None] = {}
    for text in assignments:
        try:
            name, value = parse_setting(text)
            changes[name] = value
        except EbbtideError as problem:
            problems.append(str(problem))
    for name in removals:
        try:
            check_names({name: None})
        except EbbtideError as problem:
            problems.append(str(problem))
        if name in changes:
            problems.append(f"expected {name} to be set or unset, found both")
        changes.setdefault(name, None)
    if problems:
        raise ConfigurationError("; ".join(problems))
    return changes


def check_changes(properties: Mapping[str, str], changes: SettingChanges) -> None:
    """Raise ConfigurationError where a topic of these properties cannot have the changes."""
    parse_config(changed(properties, changes))


def changed(properties: Mapping[str, str], changes: SettingChanges) -> dict[str, str]:
    """Return the properties after the changes."""
    merged: dict[str, str | None] = {**properties, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def parse_setting(text: str) -> tuple[str, str]:
    """Return a setting given as NAME=VALUE, checked as far as it can be without the topic."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RequestError(f"expected NAME=VALUE for a setting, found {text!r}")
    check_names({name: value})
    parse_config({name: value})
    return name, value


def check_names(changes: SettingChanges) -> None:
    """Raise ConfigurationError for a name that no topic may be given, or a value out of bounds."""
    known = {*settings(), MAX_SNAPSHOT_AGE}
    for name, value in changes.items():
        if name == SOURCE and value is not None:
            check_uri(value.partition(":")[2])
        if name in RENAMED:
            raise ConfigurationError(
                f"expected {RENAMED[name]}, found {name}, its name before version 0.2.0"
            )
        is_kafka = name.startswith("kafka.")  # parse_config tells these apart
        if is_state(name) or not (is_kafka or name in known):
            raise ConfigurationError(
                f"expected one of {quoted_list(sorted(known))}, found {name!r}"
            )
        if name == MAX_SNAPSHOT_AGE and value is not None:
            parse_snapshot_age(value)


# Which changes of a topic's settings let a later night remove more than it would have.
#
# A night that would remove more at once is seen by its plan. These changes may show nothing
# there: a limit that no segment has reached yet, a guard that no night has tripped yet. Where a
# change may work both ways, it counts.


# Called with a setting's old and new value.
Direction = Callable[[Any, Any], bool]
# Called with the new settings: whether the setting has an effect there.
Condition = Callable[[TopicConfig], bool]


class Tightening(NamedTuple):
    """Which change of a setting removes more, and under which other settings."""

    removes_more: Direction
    has_effect: Condition


def removing_more(properties: Mapping[str, str], changes: SettingChanges) -> list[str]:
    """Return the changed settings by which a later night may remove more, by name.

    A topic whose settings are wrong is refused by every night, so there each change counts.
    """
    after_all = changed(properties, changes)
    after = parse_config(after_all)
    try:
        before = parse_config(properties)
    except ConfigurationError:
        return sorted(changes)
    names = [name for name, rule in TIGHTENINGS.items() if _removes_more(name, rule, before, after)]
    if _unsets_a_time_limit(before, after):
        names += [name for name in _TIME_LIMITS if name not in names and name in changes]
    if max_snapshot_age_ms(after_all) < max_snapshot_age_ms(properties):
        names.append(MAX_SNAPSHOT_AGE)
    return sorted(names)


def deciding_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among the properties that decide which records a night removes."""
    names = TIGHTENINGS.keys() - _BEFORE_A_NIGHT
    return {name: properties[name] for name in sorted(names) if name in properties}


def _removes_more(name: str, rule: Tightening, before: TopicConfig, after: TopicConfig) -> bool:
    field = SETTINGS[name].field
    old, new = getattr(before, field), getattr(after, field)
    return old != new and rule.has_effect(after) and rule.removes_more(old, new)


def _unsets_a_time_limit(before: TopicConfig, after: TopicConfig) -> bool:
    """Whether one of two limits goes, so that the other counts alone, or by another clock."""
    old, new = _time_limits(before), _time_limits(after)
    return after.is_deleted and len(old) == 2 and len(new) == 1


def _time_limits(config: TopicConfig) -> set[str]:
    return {name for name in _TIME_LIMITS if _bound(getattr(config, SETTINGS[name].field)) < inf}


def _bound(value: float | None) -> float:
    """Return a limit, where none and a negative one mean that there is no limit."""
    return inf if value is None or value < 0 else value


def _lower(old: float | None, new: float | None) -> bool:
    return _bound(new) < _bound(old)


def _higher(old: float | None, new: float | None) -> bool:
    return _bound(new) > _bound(old)


def _otherwise(_: Any, __: Any) -> bool:
    return True


def _on(_: bool, new: bool) -> bool:
    return new


def _off(_: bool, new: bool) -> bool:
    return not new


def _added(old: frozenset[str] | None, new: frozenset[str] | None) -> bool:
    return not (new or frozenset()) <= (old or frozenset())


def _always(_: TopicConfig) -> bool:
    return True


_is_compacted, _is_deleted = attrgetter("is_compacted"), attrgetter("is_deleted")


def _has_a_policy(config: TopicConfig) -> bool:
    return config.is_compacted or config.is_deleted


def _marks_remove(config: TopicConfig) -> bool:
    """Whether a mark decides about a record: in a round, or whether it goes to the quarantine."""
    return config.is_compacted or config.tombstones_are_explicit


_TIME_LIMITS = ("kafka.retention.ms", "kafka.retention.max.eventtime.ms")

TIGHTENINGS = {
    "kafka.cleanup.policy": Tightening(_added, _always),
    # Limits.
    "kafka.retention.ms": Tightening(_lower, _is_deleted),
    "kafka.retention.bytes": Tightening(_lower, _is_deleted),
    "kafka.retention.max.eventtime.ms": Tightening(_lower, _is_deleted),
    "ebbtide.retention.combine": Tightening(_off, _is_deleted),
    "ebbtide.retention.granularity": Tightening(_on, _is_deleted),
    # When a round begins, how far it comes, and when tombstones go.
    "kafka.delete.retention.ms": Tightening(_lower, _is_compacted),
    "kafka.min.cleanable.dirty.ratio": Tightening(_lower, _is_compacted),
    "kafka.min.compaction.lag.ms": Tightening(_lower, _is_compacted),
    "kafka.max.compaction.lag.ms": Tightening(_lower, _is_compacted),
    "ebbtide.clean.without.new.data": Tightening(_on, _is_compacted),
    # Smaller segments are closed sooner, and only closed ones are cleaned or go by a limit.
    "kafka.segment.bytes": Tightening(_lower, _has_a_policy),
    "kafka.segment.ms": Tightening(_lower, _has_a_policy),
    # How old records are. Either way some of them may become older, or the newest one newer.
    "kafka.message.timestamp.type": Tightening(_otherwise, _has_a_policy),
    "kafka.message.timestamp.after.max.ms": Tightening(_otherwise, _is_deleted),
    "ebbtide.event.time": Tightening(_otherwise, _is_deleted),
    # What a tombstone is. Fewer marks mean more null values without one, for the quarantine.
    "ebbtide.tombstone.explicit": Tightening(_otherwise, _marks_remove),
    "ebbtide.tombstone.header": Tightening(_otherwise, _marks_remove),
    "ebbtide.tombstone.predicate": Tightening(_otherwise, _marks_remove),
    # A replica that goes no longer holds tombstones back; one that comes is truncated, too.
    REPLICAS: Tightening(_otherwise, _always),
    # What stands before a night.
    "ebbtide.enabled": Tightening(_on, _has_a_policy),
    RATIO: Tightening(_higher, _always),
    RECORDS: Tightening(_higher, _always),
    BYTES: Tightening(_higher, _always),
    EMPTIED: Tightening(_higher, _always),
    "ebbtide.plan.four.eyes": Tightening(_off, _always),
    # Snapshots go sooner, and with them the way back.
    UNDO_MS: Tightening(_lower, _always),
}
# Settings that decide whether a night removes records, but not which.
_BEFORE_A_NIGHT = frozenset(
    {"ebbtide.enabled", RATIO, RECORDS, BYTES, EMPTIED, "ebbtide.plan.four.eyes", UNDO_MS}
)
# The settings by which no night removes more records.
WITHOUT_REMOVAL = frozenset(
    {
        "kafka.max.message.bytes",
        "kafka.producer.id.expiration.ms",  # keeps batches, not records
        "kafka.topic.id",
        "ebbtide.rewrite.deleted.ratio",
        "ebbtide.merge.target.bytes",
        MAX_DECOMPRESSED,
        "ebbtide.plan.expire.ms",
        "ebbtide.plan.show.keys",
        SOURCE,
    }
)
