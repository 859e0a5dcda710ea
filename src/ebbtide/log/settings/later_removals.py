"""Which changes of a topic's settings let a later night remove more than it would have.

A night that would remove more at once is seen by its plan. These changes may show nothing there:
a limit that no segment has reached yet, a guard that no night has tripped yet. Where a change may
work both ways, it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from ebbtide.errors import ConfigurationError
from ebbtide.log.plans.guards import BYTES, EMPTIED, RATIO, RECORDS
from ebbtide.log.settings.changes import SettingChanges, changed
from ebbtide.log.settings.config import SETTINGS, UNDO_MS, TopicConfig, parse_config
from ebbtide.log.settings.replicas import REPLICAS
from ebbtide.log.settings.upstream import SOURCE
from ebbtide.log.state.properties import MAX_SNAPSHOT_AGE, max_snapshot_age_ms
from ebbtide.records.limits import MAX_DECOMPRESSED

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
    "ebbtide.clean.idle": Tightening(_on, _is_compacted),
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
        "ebbtide.rewrite.deleted.share",
        "ebbtide.merge.target.bytes",
        MAX_DECOMPRESSED,
        "ebbtide.plan.expire.ms",
        "ebbtide.plan.show.keys",
        SOURCE,
    }
)
