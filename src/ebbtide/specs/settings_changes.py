"""Effects of all properties, checks of setting changes, and changes that remove more records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from ebbtide.errors import ConfigurationError, EbbtideError, RequestError
from ebbtide.layouts.layout import LAYOUT
from ebbtide.ledger.plans import BYTES, EMPTIED, RATIO, RECORDS
from ebbtide.records.limits import MAX_DECOMPRESSED
from ebbtide.settings.config import (
    DEADLINE_MS,
    DESTROYED_SECRETS,
    INTERVAL_MS,
    RENAMED,
    SETTINGS,
    UNDO_MS,
    TopicConfig,
    parse_config,
    settings,
)
from ebbtide.settings.names import quoted_list
from ebbtide.settings.upstream import REPLICAS, SOURCE, check_uri
from ebbtide.state.deadline import check_deadline
from ebbtide.state.topic_state import (
    MAX_SNAPSHOT_AGE,
    REPLICA_OF,
    is_state,
    max_snapshot_age_ms,
    parse_snapshot_age,
)

# Settings of a topic: properties of its records table.
EFFECTS = {
    "kafka.cleanup.policy": "`compact`: `clean_log` cleans the log by key. `delete`: "
    "`expire_segments` applies the retention limits. Not set: neither. With `compact` alone, "
    "DeleteRecords is refused, as in Kafka.",
    "kafka.delete.retention.ms": "Time between the cleaner round that sets the delete horizon of a "
    "tombstone or transaction marker and the horizon itself.",
    "kafka.min.cleanable.dirty.ratio": "`clean_log` begins a round if more than this share of the "
    "bytes is dirty.",
    "kafka.min.compaction.lag.ms": "`clean_log` does not clean records that are younger.",
    "kafka.max.compaction.lag.ms": "`clean_log` begins a round if dirty records are older, "
    "whatever the dirty ratio.",
    "kafka.retention.ms": "With `delete`: a segment expires once its newest record is older. If "
    "the event-time limit is set too, append times count instead of timestamps. -1: no limit.",
    "kafka.retention.bytes": "With `delete`: the oldest segments expire while at least this many "
    "bytes of the partition are retained. Negative: no limit.",
    "kafka.retention.max.eventtime.ms": "With `delete`: a segment expires once its newest event is "
    "further behind the newest event of the partition (KIP-870). -1: no limit.",
    "kafka.segment.bytes": "Largest segment that a cleaner round makes by merging, and size at "
    "which `ingest_topic` begins a new segment.",
    "kafka.segment.ms": "Age at which `ingest_topic` begins a new segment.",
    "kafka.max.message.bytes": "Largest record batch that ebbtide builds. An export counts the "
    "batches that are larger.",
    "kafka.message.timestamp.type": "Who sets the timestamps of a live topic's records: the "
    "producer (`CreateTime`) or the broker (`LogAppendTime`).",
    "kafka.message.timestamp.after.max.ms": "An event time that is further ahead of the append "
    "time counts as the append time.",
    "kafka.producer.id.expiration.ms": "How long the last batch of a producer without new batches "
    "is retained, as an empty batch if its records are removed.",
    "kafka.topic.id": "Id of the topic at its source. The first ingest sets it. An ingest from a "
    "topic with another id is refused.",
    "ebbtide.enabled": "`false`: `nightly_retention` and `replicate_log` skip the topic. A job "
    "that is started with `--topic` still runs on it.",
    "ebbtide.clean.without.new.data": "`true`: a cleaner round also begins if a delete horizon is "
    "due and there is no new data. `false`: only if Kafka's cleaner would begin one.",
    "ebbtide.rewrite.deleted.ratio": "`expire_snapshots` rewrites a file of a closed segment once "
    "this share of its rows is deleted. 0: at the first deleted row, also in active segments and "
    "in the batches table, so that no table has deletion vectors.",
    "ebbtide.merge.target.bytes": "`expire_snapshots` joins the files of small segments that a "
    "round has merged, up to this size. 0: never.",
    MAX_DECOMPRESSED: "A record batch that decompresses to more is refused. Its partition is not "
    "ingested any further.",
    "ebbtide.max.delete.ratio": "If `expire_segments` would remove a larger share of the topic's "
    "bytes in a nightly run, it removes nothing and stores a plan for approval. 1: no limit.",
    "ebbtide.max.delete.records": "A nightly stage that would remove more records of the topic "
    "removes nothing and stores a plan for approval. Not set: no limit.",
    "ebbtide.max.delete.bytes": "A nightly stage that would remove more bytes of the log removes "
    "nothing and stores a plan for approval. Not set: no limit.",
    "ebbtide.max.emptied.partitions": "If `expire_segments` would leave more partitions without a "
    "record in a nightly run, it removes nothing and stores a plan for approval. Not set: no "
    "limit.",
    "ebbtide.plan.expire.ms": "How long a stored plan can be executed after it was made.",
    "ebbtide.undo.retention.ms": "How long a run that removed records can be undone. "
    "`expire_snapshots` retains the snapshots before the run for this time. 0: no run can be "
    "undone.",
    DEADLINE_MS: "Time after the append of a tombstone by which it and the records that it "
    "supersedes are off the disk. A nightly run does a step before it is due by the other "
    "settings, but only if the next nightly run would be too late. Not set: no deadline.",
    INTERVAL_MS: "Longest time from the start of a nightly run, or of `replicate_log`, to the end "
    "of the next one. Only the deadline of erasure uses it.",
    "ebbtide.plan.four.eyes": "`true`: a second person must approve each plan, and no command "
    "removes records without a plan.",
    "ebbtide.plan.show.keys": "`true`: plans show example keys as text. `false`: plans show their "
    "SHA-256.",
    "ebbtide.retention.combine": "`any`: a segment expires at the first limit that it reaches. "
    "`all`: only once it has reached both `retention.ms` and the event-time limit.",
    "ebbtide.retention.granularity": "`segment`: only whole segments expire, as in Kafka. "
    "`record`: single records past the event-time limit expire too, in any segment.",
    "ebbtide.event.time": "Source of a record's event time. A change applies to records that are "
    "ingested after it.",
    "ebbtide.tombstone.explicit": "`true`: in record format v2 a null value alone is no tombstone. "
    "Records with an unmarked null value are moved to the quarantine (KIP-87).",
    "ebbtide.tombstone.header": "A record with this header is a tombstone. With a value: only if "
    "the header has it.",
    "ebbtide.tombstone.predicate": "A record for which this SQL predicate is true is a tombstone.",
    DESTROYED_SECRETS: "Fingerprints of secrets that were deleted so that no one can find out "
    "whose keys were erased. These keys are not recognised any more if they return.",
    REPLICAS: "Replicas of the log: tables in other catalogs or namespaces, and the live topic.",
    SOURCE: "The topic's source, which writes its log. An ingest sets it. Empty: the topic has no "
    "source any more, and `erase_keys` may append tombstones to the tables.",
}

# The state: properties of the state table. Only jobs write them.
STATE = {
    "ebbtide.state.<partition>.*": "Offsets, times and logical segments of a partition. Of a "
    "topic with a deadline of erasure also the tombstones that are not off the disk. Of an adopted "
    "topic also the offsets that never arrived, and the offsets of late rows.",
    "ebbtide.round": "The cleaner round in flight.",
    "ebbtide.merge": "The merge of files in flight, or the id of the last one.",
    "ebbtide.undo": "The undo in flight.",
    "ebbtide.undone": "The last finished undo. On a replica: the last undo that began on its "
    "primary.",
    "ebbtide.append": "The erasure's append in flight.",
    "ebbtide.ingest.slice": "The offsets of segment files that an ingest has claimed, and its run.",
    "ebbtide.live.slice": "The slice of a live topic that an ingest has claimed.",
    "ebbtide.copied": "The table that the topic is copied from: its layout, and the snapshot up to "
    "which its rows were copied.",
    "ebbtide.copied.slice": "The slice of the copied table that an ingest has claimed.",
    "ebbtide.replication": "On a replica: the replication in flight.",
    "ebbtide.replica.of": "On a replica: the id of its primary's table.",
    "ebbtide.replica.primary": "On a replica: the name of its primary, under which keys are "
    "erased. On a replica of a replica: the name of the first primary.",
    "ebbtide.adopted.seen": "The newest snapshot of an adopted table that the state covers.",
    "ebbtide.layout": "On an adopted table itself: the columns of a record's parts.",
    "ebbtide.tables": "The ids of the data tables that the state describes.",
    "ebbtide.rows.*": "Number of live rows of each segment. Another number is a foreign change.",
    "ebbtide.seen.*": "The last known snapshot of each data table.",
    "ebbtide.removing": "A removal is in flight: a segment may have fewer rows than counted.",
    "ebbtide.tidied": "The snapshots in which `expire_snapshots` found nothing more to rewrite or "
    "merge.",
    "ebbtide.held": "The id of the table of the topic's held records, since the first copy.",
    "ebbtide.accepted": "On `lake.ebbtide.holds` itself, set by a person: snapshots that deleted "
    "rows or were rolled back on purpose.",
    "ebbtide.layout.version": "Version of the tables' layout. An ebbtide that does not know it "
    "refuses the topic.",
    "ebbtide.checksum": "A checksum of the whole state, which reveals an edit by hand.",
}

# In the summaries of snapshots that ebbtide commits, besides the id of a round (ebbtide.round).
SUMMARY = {
    "ebbtide.own": "Marks the snapshot as committed by ebbtide.",
    "ebbtide.job": "The job that committed the snapshot.",
    "ebbtide.left": "The commit removes rows that a killed ingest had appended. They were not part "
    "of the log.",
    "ebbtide.slice": "The slice of a topic's source that an ingest appended with the snapshot.",
    "ebbtide.erasures": "The snapshot of `lake.ebbtide.erasures` whose keys an ingest refused.",
    "ebbtide.rows": "How many records a round removed, or how many batches it changed.",
    "ebbtide.undone.since": "On an adopted table, for an undo: the snapshot before it, by "
    "partition.",
    "ebbtide.topic": "The topic of an adopted table whose records were removed.",
}

# Headers of records.
HEADERS = {
    "ebbtide.erase.requested_by": "On a tombstone of `erase_keys`: who asked for the erasure.",
    "ebbtide.erase.requested_at": "On a tombstone of `erase_keys`: when the erasure was asked for.",
    "ebbtide.erase.reason": "On a tombstone of `erase_keys`: the reason of the erasure.",
    "ebbtide.erase.run_id": "On a tombstone of `erase_keys`: the run that erased the key.",
    "ebbtide.timestamp": "A timestamp in milliseconds that no SQL timestamp can hold. An export "
    "writes it as the record's timestamp again.",
    "ebbtide.header.keys": "Position and bytes (hex) of each header key of the record that is not "
    "UTF-8. An export writes the bytes again.",
}


# A setting set to None is removed.
SettingChanges = Mapping[str, str | None]


def parse_changes(assignments: Iterable[str], removals: Iterable[str]) -> dict[str, str | None]:
    """Return NAME=VALUE and NAME as changes. Raise ConfigurationError with all problems."""
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
    """Raise ConfigurationError if the properties are not valid after the changes."""
    after = changed(properties, changes)
    config = parse_config(after)
    check_deadline(config, after, is_adopted=LAYOUT in after)
    is_asked = not changes.keys().isdisjoint((DEADLINE_MS, "ebbtide.enabled"))
    is_skipped = not config.is_enabled and REPLICA_OF not in after
    if is_asked and is_skipped and _has_deadline(config):
        raise ConfigurationError(
            f"expected ebbtide.enabled=true for {DEADLINE_MS}={config.erase_deadline_ms}, found "
            "false: nightly runs would skip the topic, and no run would fail if a delete is "
            f"overdue. Enable the topic, or unset {DEADLINE_MS}"
        )


def changed(properties: Mapping[str, str], changes: SettingChanges) -> dict[str, str]:
    """Return the properties after the changes."""
    merged: dict[str, str | None] = {**properties, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def parse_setting(text: str) -> tuple[str, str]:
    """Return a setting given as NAME=VALUE, checked as far as possible without the topic."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RequestError(f"expected NAME=VALUE for a setting, found {text!r}")
    check_names({name: value})
    parse_config({name: value})
    return name, value


def check_names(changes: SettingChanges) -> None:
    """Raise ConfigurationError for a name that is no setting, or a value out of bounds."""
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


# Setting changes that let a later nightly run remove more records.
#
# A change that removes records in the next nightly run shows in its plan. A change of a limit that
# no segment has reached yet, or of a guard, does not. A change that may work both ways counts.


# Called with a setting's old and new value.
Direction = Callable[[Any, Any], bool]
# Called with the new settings: whether the setting has an effect.
Condition = Callable[[TopicConfig], bool]


class Tightening(NamedTuple):
    """A direction of a setting's change that removes more, and the condition for its effect."""

    removes_more: Direction
    has_effect: Condition


def removing_more(properties: Mapping[str, str], changes: SettingChanges) -> list[str]:
    """Return the names of changed settings that let a later nightly run remove more.

    If the settings before are not valid, each change counts: no nightly run took the topic.
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
    """Return the settings among the properties that decide which records a nightly run removes."""
    names = TIGHTENINGS.keys() - _BEFORE_A_NIGHT
    return {name: properties[name] for name in sorted(names) if name in properties}


def _removes_more(name: str, rule: Tightening, before: TopicConfig, after: TopicConfig) -> bool:
    field = SETTINGS[name].field
    old, new = getattr(before, field), getattr(after, field)
    return old != new and rule.has_effect(after) and rule.removes_more(old, new)


def _unsets_a_time_limit(before: TopicConfig, after: TopicConfig) -> bool:
    """Return whether one of two time limits is unset: the other then counts alone."""
    old, new = _time_limits(before), _time_limits(after)
    return after.is_deleted and len(old) == 2 and len(new) == 1


def _time_limits(config: TopicConfig) -> set[str]:
    return {name for name in _TIME_LIMITS if _bound(getattr(config, SETTINGS[name].field)) < inf}


def _bound(value: float | None) -> float:
    """Return a limit; None and a negative limit are infinite."""
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


def _has_deadline(config: TopicConfig) -> bool:
    return config.is_compacted and config.erase_deadline_ms is not None


def _marks_remove(config: TopicConfig) -> bool:
    """Return whether tombstone marks decide which records a round or the quarantine takes."""
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
    # When a round begins, how far it cleans, and when tombstones are removed.
    "kafka.delete.retention.ms": Tightening(_lower, _is_compacted),
    "kafka.min.cleanable.dirty.ratio": Tightening(_lower, _is_compacted),
    "kafka.min.compaction.lag.ms": Tightening(_lower, _is_compacted),
    "kafka.max.compaction.lag.ms": Tightening(_lower, _is_compacted),
    "ebbtide.clean.without.new.data": Tightening(_on, _is_compacted),
    # A step that is forced for the deadline removes records before the settings above would.
    DEADLINE_MS: Tightening(_lower, _is_compacted),
    INTERVAL_MS: Tightening(_higher, _has_deadline),
    # Smaller segments are closed sooner, and only closed ones are cleaned or expire.
    "kafka.segment.bytes": Tightening(_lower, _has_a_policy),
    "kafka.segment.ms": Tightening(_lower, _has_a_policy),
    # Ages of records. Either change can make some records older.
    "kafka.message.timestamp.type": Tightening(_otherwise, _has_a_policy),
    "kafka.message.timestamp.after.max.ms": Tightening(_otherwise, _is_deleted),
    "ebbtide.event.time": Tightening(_otherwise, _is_deleted),
    # Tombstone rules. Fewer marks mean more unmarked null values, which go to the quarantine.
    "ebbtide.tombstone.explicit": Tightening(_otherwise, _marks_remove),
    "ebbtide.tombstone.header": Tightening(_otherwise, _marks_remove),
    "ebbtide.tombstone.predicate": Tightening(_otherwise, _marks_remove),
    # Tombstones no longer wait for a replica that is unset. A new one gets DeleteRecords too.
    REPLICAS: Tightening(_otherwise, _always),
    # Guards.
    "ebbtide.enabled": Tightening(_on, _has_a_policy),
    RATIO: Tightening(_higher, _always),
    RECORDS: Tightening(_higher, _always),
    BYTES: Tightening(_higher, _always),
    EMPTIED: Tightening(_higher, _always),
    "ebbtide.plan.four.eyes": Tightening(_off, _always),
    # Snapshots expire sooner, so undo ends sooner.
    UNDO_MS: Tightening(_lower, _always),
}
# Settings that decide whether a nightly run removes records, but not which.
_BEFORE_A_NIGHT = frozenset(
    {"ebbtide.enabled", RATIO, RECORDS, BYTES, EMPTIED, "ebbtide.plan.four.eyes", UNDO_MS}
)
# Settings that never let a nightly run remove more records.
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
        DESTROYED_SECRETS,
        SOURCE,
    }
)
