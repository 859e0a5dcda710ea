"""A topic's retention settings, read from its table's properties.

Names, defaults and ranges are Kafka's (LogConfig); `ebbtide.*` is ours. One default differs,
because an archive exists to keep: a rule whose setting is absent removes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from ebbtide.errors import ConfigurationError
from ebbtide.numbers import MAX_INT, MAX_LONG, MIN_LONG
from ebbtide.records.limits import MAX_DECOMPRESSED, MAX_DECOMPRESSED_BYTES
from ebbtide.settings.upstream import (
    REPLICAS,
    SOURCE,
    LiveReplica,
    Replica,
    TableReplica,
    Upstream,
    parse_replicas,
    parse_upstream,
)

PREFIX = "kafka."
DAY_MS = 24 * 60 * 60 * 1000

UNDO_MS = "ebbtide.undo.retention.ms"
DESTROYED_SECRETS = "ebbtide.erase.destroyed.secrets"
DEADLINE_MS = "ebbtide.erase.deadline.ms"
INTERVAL_MS = "ebbtide.nightly.interval.ms"
COMPACT = "compact"
DELETE = "delete"

T = TypeVar("T")


class Values(NamedTuple):
    """The valid texts of a setting: in words, and their parser."""

    expected: str
    parse: Callable[[str, str], Any]


class Setting(NamedTuple):
    """The field of TopicConfig for a property, and the property's valid values."""

    field: str
    values: Values


class EventTime(NamedTuple):
    """The source of a record's event time: `timestamp`, a `header`, or an expression in `sql`."""

    source: str
    text: str = ""  # the header's name or the expression


OF_TIMESTAMP = EventTime("timestamp")


class TombstoneHeader(NamedTuple):
    """The header that makes a record a tombstone: its name, and its value if that matters."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Validated settings of one topic; None means that the rule is not set."""

    cleanup_policy: frozenset[str] | None = None
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    retention_ms: int | None = None
    retention_bytes: int | None = None
    retention_max_eventtime_ms: int | None = None
    segment_bytes: int = 1024**3
    segment_ms: int = 7 * DAY_MS
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    producer_id_expiration_ms: int = DAY_MS
    topic_id: str | None = None
    is_enabled: bool = True
    cleans_without_new_data: bool = True
    rewrite_deleted_ratio: float = 0.3  # from this share on, a file is rewritten without them
    merge_target_bytes: int = 64 * 1024**2  # small neighbours are merged up to this; 0: never
    max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BYTES  # a larger batch is refused
    max_delete_ratio: float = 0.5  # of a topic's bytes; a night that would remove more asks first
    max_delete_records: int | None = None  # the same of records
    max_delete_bytes: int | None = None  # the same of bytes of the log
    max_emptied_partitions: int | None = None  # the same of partitions left without a record
    plan_expire_ms: int = DAY_MS  # how long a kept plan may be executed
    undo_retention_ms: int = 3 * DAY_MS  # how long a removing run can be undone; 0: not at all
    erase_deadline_ms: int | None = None  # from a tombstone's append until it is off the disk
    nightly_interval_ms: int = DAY_MS  # from a night's start to the end of the next, at most
    plans_need_four_eyes: bool = False
    plans_show_keys: bool = False  # example keys in clear; else their SHA-256
    needs_all_time_limits: bool = False  # a segment goes only when each time limit says so
    expires_records: bool = False  # also single records past the event-time limit
    event_time: EventTime = OF_TIMESTAMP
    tombstones_are_explicit: bool = False  # in magic 2 a null value alone is none (KIP-87)
    tombstone_header: TombstoneHeader | None = None
    tombstone_predicate: str | None = None
    replicas: tuple[Replica, ...] = ()
    upstream: Upstream | None = None  # None: nobody writes the log any more
    destroyed_secrets: tuple[str, ...] = ()  # fingerprints; their erased keys are not recognised

    @property
    def table_replicas(self) -> list[TableReplica]:
        """The replicas that are tables."""
        return [replica for replica in self.replicas if isinstance(replica, TableReplica)]

    @property
    def live_replicas(self) -> list[str]:
        """The Kafka connections of live replicas."""
        live = [replica for replica in self.replicas if isinstance(replica, LiveReplica)]
        return [replica.connection for replica in live]

    @property
    def is_compacted(self) -> bool:
        """True if cleanup.policy has `compact`."""
        return self.cleanup_policy is not None and COMPACT in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """True if cleanup.policy has `delete`."""
        return self.cleanup_policy is not None and DELETE in self.cleanup_policy


def parse_config(properties: Mapping[str, str]) -> TopicConfig:
    """Parse the settings in a table's properties. Raise ConfigurationError with all problems."""
    values: dict[str, Any] = {}
    problems = []
    for name, text in properties.items():
        try:
            if name in SETTINGS:
                setting = SETTINGS[name]
                values[setting.field] = setting.values.parse(name, text)
            elif name.startswith(PREFIX) and name.removeprefix(PREFIX) not in WITHOUT_EFFECT:
                raise ConfigurationError(
                    f"expected a topic configuration that Kafka knows, found {name}; "
                    f"known here: {', '.join(sorted(SETTINGS))}"
                )
        except ConfigurationError as problem:
            problems.append(str(problem))
    if problems:
        raise ConfigurationError("; ".join(problems))
    config = TopicConfig(**values)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigurationError(
            "expected kafka.min.compaction.lag.ms <= kafka.max.compaction.lag.ms, found "
            f"{config.min_compaction_lag_ms} > {config.max_compaction_lag_ms}"
        )
    return config


def settings() -> list[str]:
    """Return the names of all settings of a topic."""
    return sorted(SETTINGS)


def by_new_names(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with new names for old ones; a new name wins over an old one."""
    renamed = {RENAMED[name]: value for name, value in properties.items() if name in RENAMED}
    return renamed | {name: value for name, value in properties.items() if name not in RENAMED}


def without_old_names(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the changes and the removal of the old name of each setting among them."""
    old = {name: None for name, new in RENAMED.items() if new in changes}
    return {**changes, **old}


def _integer(minimum: int, maximum: int) -> Values:
    expected = f"an integer in [{minimum}, {maximum}]"

    def parse(name: str, text: str) -> int:
        try:
            value = int(_digits(text))
        except ValueError:
            raise _refused(name, expected, text) from None
        if not minimum <= value <= maximum:
            raise _refused(name, expected, text)
        return value

    return Values(expected, parse)


def _ratio(name: str, text: str) -> float:
    try:
        value = float(_digits(text))
    except ValueError:
        raise _refused(name, _RATIO.expected, text) from None
    if not 0 <= value <= 1:
        raise _refused(name, _RATIO.expected, text)
    return value


def _digits(text: str) -> str:
    """Return the text. Raise ValueError if it is a number for Python and not for Kafka."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _boolean(name: str, text: str) -> bool:
    return bool(_choice(_TRUTH).parse(name, text.strip().lower()))


def _choice(choices: Mapping[str, T]) -> Values:
    expected = f"one of {', '.join(choices)}"

    def parse(name: str, text: str) -> T:
        if text not in choices:
            raise _refused(name, expected, text)
        return choices[text]

    return Values(expected, parse)


def _policy(name: str, text: str) -> frozenset[str]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    policy = frozenset(parts)
    if not policy <= {COMPACT, DELETE} or len(policy) < len(parts):
        raise _refused(name, _POLICY.expected, text)
    return policy


def _text(_name: str, text: str) -> str:
    return text


def _event_time(name: str, text: str) -> EventTime:
    source, _, detail = text.partition(":")
    if text == OF_TIMESTAMP.source or (source in ("header", "sql") and detail.strip()):
        return EventTime(source, detail)
    raise _refused(name, _EVENT_TIME.expected, text)


def _tombstone_header(name: str, text: str) -> TombstoneHeader:
    header, equals, value = text.partition("=")
    if not header.strip():
        raise _refused(name, _HEADER.expected, text)
    return TombstoneHeader(header, value if equals else None)


def _predicate(name: str, text: str) -> str:
    if not text.strip():
        raise _refused(name, _PREDICATE.expected, text)
    return text


def _fingerprints(name: str, text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not all(re.fullmatch("[0-9a-f]{16}", part) for part in parts):
        raise _refused(name, _FINGERPRINTS.expected, text)
    return parts


def _refused(name: str, expected: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"expected {expected} for {name}, found {text!r}")


_TRUTH = {"true": True, "false": False}
_TEXT = Values("any text", _text)
_RATIO = Values("a number in [0, 1]", _ratio)
_BOOLEAN = Values("one of true, false", _boolean)
_POLICY = Values("compact, delete, both separated by a comma, or nothing", _policy)
_EVENT_TIME = Values("timestamp, header:NAME or sql:EXPRESSION", _event_time)
_HEADER = Values("NAME or NAME=VALUE", _tombstone_header)
_PREDICATE = Values("a SQL predicate over key, value, headers and timestamp", _predicate)
_FINGERPRINTS = Values(
    "fingerprints of 16 hexadecimal digits, separated by commas, or nothing", _fingerprints
)
_REPLICAS = Values(
    "<catalog>.<namespace> and kafka:<connection>, separated by commas, or nothing", parse_replicas
)
_UPSTREAM = Values(
    "kafka:<connection>, segments:<URI>, table:<namespace>.<table> or nothing", parse_upstream
)

# By property; effects.py says in a line what each does.
SETTINGS: dict[str, Setting] = {
    "kafka.cleanup.policy": Setting("cleanup_policy", _POLICY),
    "kafka.delete.retention.ms": Setting("delete_retention_ms", _integer(0, MAX_LONG)),
    "kafka.min.cleanable.dirty.ratio": Setting("min_cleanable_dirty_ratio", _RATIO),
    "kafka.min.compaction.lag.ms": Setting("min_compaction_lag_ms", _integer(0, MAX_LONG)),
    "kafka.max.compaction.lag.ms": Setting("max_compaction_lag_ms", _integer(1, MAX_LONG)),
    "kafka.retention.ms": Setting("retention_ms", _integer(-1, MAX_LONG)),
    "kafka.retention.bytes": Setting("retention_bytes", _integer(MIN_LONG, MAX_LONG)),
    "kafka.retention.max.eventtime.ms": Setting(
        "retention_max_eventtime_ms", _integer(-1, MAX_LONG)
    ),
    "kafka.segment.bytes": Setting("segment_bytes", _integer(1024**2, MAX_INT)),
    "kafka.segment.ms": Setting("segment_ms", _integer(1, MAX_LONG)),
    "kafka.max.message.bytes": Setting("max_message_bytes", _integer(0, MAX_INT)),
    "kafka.message.timestamp.type": Setting(
        "message_timestamp_type",
        _choice({"CreateTime": "CreateTime", "LogAppendTime": "LogAppendTime"}),
    ),
    "kafka.message.timestamp.after.max.ms": Setting(
        "message_timestamp_after_max_ms",
        _integer(0, MAX_LONG),
    ),
    "kafka.producer.id.expiration.ms": Setting("producer_id_expiration_ms", _integer(1, MAX_INT)),
    "kafka.topic.id": Setting("topic_id", _TEXT),
    "ebbtide.enabled": Setting("is_enabled", _BOOLEAN),
    "ebbtide.clean.without.new.data": Setting("cleans_without_new_data", _BOOLEAN),
    "ebbtide.rewrite.deleted.ratio": Setting("rewrite_deleted_ratio", _RATIO),
    "ebbtide.merge.target.bytes": Setting("merge_target_bytes", _integer(0, MAX_LONG)),
    MAX_DECOMPRESSED: Setting("max_decompressed_batch_bytes", _integer(1, MAX_LONG)),
    "ebbtide.max.delete.ratio": Setting("max_delete_ratio", _RATIO),
    "ebbtide.max.delete.records": Setting("max_delete_records", _integer(0, MAX_LONG)),
    "ebbtide.max.delete.bytes": Setting("max_delete_bytes", _integer(0, MAX_LONG)),
    "ebbtide.max.emptied.partitions": Setting("max_emptied_partitions", _integer(0, MAX_INT)),
    "ebbtide.plan.expire.ms": Setting("plan_expire_ms", _integer(1, 365 * DAY_MS)),
    UNDO_MS: Setting("undo_retention_ms", _integer(0, 365 * DAY_MS)),
    DEADLINE_MS: Setting("erase_deadline_ms", _integer(1, MAX_LONG)),
    INTERVAL_MS: Setting("nightly_interval_ms", _integer(1, 365 * DAY_MS)),
    "ebbtide.plan.four.eyes": Setting("plans_need_four_eyes", _BOOLEAN),
    "ebbtide.plan.show.keys": Setting("plans_show_keys", _BOOLEAN),
    "ebbtide.retention.combine": Setting(
        "needs_all_time_limits",
        _choice({"any": False, "all": True}),
    ),
    "ebbtide.retention.granularity": Setting(
        "expires_records",
        _choice({"segment": False, "record": True}),
    ),
    "ebbtide.event.time": Setting("event_time", _EVENT_TIME),
    "ebbtide.tombstone.explicit": Setting("tombstones_are_explicit", _BOOLEAN),
    "ebbtide.tombstone.header": Setting("tombstone_header", _HEADER),
    "ebbtide.tombstone.predicate": Setting("tombstone_predicate", _PREDICATE),
    REPLICAS: Setting("replicas", _REPLICAS),
    SOURCE: Setting("upstream", _UPSTREAM),
    DESTROYED_SECRETS: Setting("destroyed_secrets", _FINGERPRINTS),
}

# The names before version 0.2.0. A table keeps such a property until the setting is changed.
RENAMED = {
    "ebbtide.clean.idle": "ebbtide.clean.without.new.data",
    "ebbtide.rewrite.deleted.share": "ebbtide.rewrite.deleted.ratio",
    "ebbtide.undo.ms": UNDO_MS,
}

# Kafka's other topic configurations: accepted, since a topic may have them, but without effect.
WITHOUT_EFFECT = frozenset(
    """
    compression.type compression.gzip.level compression.lz4.level compression.zstd.level
    file.delete.delay.ms flush.messages flush.ms index.interval.bytes
    follower.replication.throttled.replicas leader.replication.throttled.replicas
    local.retention.bytes local.retention.ms message.timestamp.before.max.ms min.insync.replicas
    preallocate remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable
    segment.index.bytes segment.jitter.ms unclean.leader.election.enable topic
    """.split()
)


NOT_SET = "not set"
_DEFAULTS = {field.name: field.default for field in fields(TopicConfig)}
# The text of a default whose value is not the property's own text.
_SPELLED = {
    "needs_all_time_limits": "any",
    "expires_records": "segment",
    "event_time": "timestamp",
    "replicas": "none",
}


def default_text(field: str) -> str:
    """Return the default of a field of TopicConfig as the text of a property."""
    value = _DEFAULTS[field]
    if field in _SPELLED:
        return _SPELLED[field]
    if value is None:
        return NOT_SET
    return str(value).lower() if isinstance(value, bool) else str(value)


# Find where a topic's settings differ from its brokers'.
#
# Settings that decide a log's layout are copied when a topic's table is made. Settings that
# remove records are not copied until somebody confirms them: an archive exists to keep.


LAYOUT = (
    *("segment.bytes", "segment.ms", "max.message.bytes"),
    *("message.timestamp.type", "message.timestamp.after.max.ms"),
)
REMOVAL = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms"),
    *("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms"),
)
# No limit, which here is no setting.
_NO_LIMIT = (("retention.ms", "-1"), ("retention.bytes", "-1"))


class Drift(NamedTuple):
    """A setting that differs between table and brokers; None: not set."""

    name: str
    table: str | None
    broker: str


def layout_of(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table from the topic's configuration on its brokers."""
    names = [name for name in LAYOUT if name in configs and _is_known(name, configs[name])]
    return {PREFIX + name: configs[name] for name in names}


def drifts(properties: Mapping[str, str], configs: Mapping[str, str]) -> list[Drift]:
    """Return the settings whose effect differs between table and brokers."""
    differing = []
    for name in (*LAYOUT, *REMOVAL):
        if name not in configs or not _is_known(name, configs[name]):
            continue
        here, there = properties.get(PREFIX + name), configs[name]
        is_no_limit = here is None and (name, there) in _NO_LIMIT
        if not is_no_limit and _parsed(name, here) != _parsed(name, there):
            differing.append(Drift(PREFIX + name, here, there))
    return differing


def drift_note(topic: str, differing: list[Drift]) -> str:
    """Return a note with the settings that differ, and how to adopt the brokers' values."""
    names = ", ".join(drift.name for drift in differing)
    conf = json.dumps({"topic": topic, "from_source": True, "plan_only": True})
    return (
        f"{len(differing)} settings differ from the brokers': {names}. To see what the next "
        f"nightly run would remove with the brokers' values, trigger configure_topic with {conf}; "
        "to adopt them, with plan_only false"
    )


def _parsed(name: str, text: str | None) -> object:
    return parse_config({} if text is None else {PREFIX + name: text})


def _is_known(name: str, text: str) -> bool:
    """Return whether the value is valid in this version."""
    try:
        _parsed(name, text)
    except ConfigurationError:
        return False
    return True
