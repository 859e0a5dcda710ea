"""A topic's state: its partitions and work in flight, as properties of its state table."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from ebbtide.errors import ConfigurationError, EbbtideError, NotCoveredError, StateError
from ebbtide.json_text import MALFORMED, parse_json
from ebbtide.numbers import MAX_INT, parse_whole, whole
from ebbtide.settings.names import quoted_list
from ebbtide.state.covered_offsets import HorizonRange, Missing, MissingRange, OffsetRange
from ebbtide.state.deletes import AllDeletes, Deletes
from ebbtide.state.logical_segments import SegmentStart, SegmentSums

T = TypeVar("T")

MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"  # Iceberg's own
DEFAULT_MAX_SNAPSHOT_AGE_MS = 5 * 24 * 60 * 60 * 1000
_LONGEST = 200


def parse_property(name: str, text: str, expected: str, build: Callable[[Any], T]) -> T:
    """Build a value from the JSON in a property.

    Raise the error of `unreadable` if it is malformed.
    """
    try:
        return build(parse_json(text))
    except MALFORMED:
        raise unreadable(name, text, expected) from None


class InFlight(ABC):
    """Work in flight, as JSON in a property of the state: a dataclass, one field per value."""

    PROPERTY: ClassVar[str]
    EXPECTED: ClassVar[str]  # a noun phrase for errors

    def to_json(self) -> str:
        """Return the value of the property."""
        return json.dumps(asdict(self), separators=(",", ":"))  # type: ignore[call-overload]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the work from the property's text. Raise StateError if it cannot be read."""
        return parse_property(cls.PROPERTY, text, cls.EXPECTED, cls._built)

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self | None:
        """Return the work in flight by these properties, or None."""
        text = properties.get(cls.PROPERTY)
        return None if text is None else cls.parse(text)

    @classmethod
    @abstractmethod
    def _built(cls, values: Any) -> Self:
        """Build the work from these values. Raise one of MALFORMED for a wrong type."""


def unreadable(name: str, text: str, expected: str) -> EbbtideError:
    """Return the error for a property's text that this version of ebbtide would not write.

    It is a StateError if the property belongs to the state. The checksum fits then, so another
    version of ebbtide wrote the text.
    """
    shown = repr(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!r} and more"
    found = f"expected {expected} in {name}, found {shown}"
    if is_state(name):
        return StateError(f"{found}. {_IS_REBUILT}")
    return ConfigurationError(f"{found}. Restore the property from an older table metadata file")


def checked_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass's fields.

    Raise TypeError for a plain one of a wrong type.
    """
    for each in fields(kind):
        value = values.get(each.name)
        if each.name not in values or each.type not in ("int", "bool", "str"):
            continue
        if each.type == "int":
            whole(value)
        elif type(value).__name__ != each.type:
            raise TypeError(f"{value!r} for {each.name}")
    return dict(values)


def max_snapshot_age_ms(properties: Mapping[str, str]) -> int:
    """Return the age in ms from which a table's snapshots may be expired."""
    return parse_snapshot_age(properties.get(MAX_SNAPSHOT_AGE) or str(DEFAULT_MAX_SNAPSHOT_AGE_MS))


def parse_snapshot_age(text: str) -> int:
    """Parse a whole number of milliseconds. Raise ConfigurationError for any other text."""
    with suppress(ValueError):
        return parse_whole(text)
    raise ConfigurationError(
        f"expected a whole number of milliseconds for {MAX_SNAPSHOT_AGE}, found {text!r:.40}. "
        "Set it again"
    )


PREFIX = "ebbtide.state."
ROUND = "ebbtide.round"
MERGE = "ebbtide.merge"
APPEND = "ebbtide.append"
UNDO = "ebbtide.undo"
# The id of the last undo, so that a job that read the topic before it can detect it.
UNDONE = "ebbtide.undone"
# The slice of a live topic that is being copied; after a kill, the next run finishes it as planned.
SLICE = "ebbtide.live.slice"
# Of a topic that is copied from a table: that table with the snapshot up to which its rows are
# copied, and the slice that is being copied.
COPIED = "ebbtide.copied"
COPIED_SLICE = "ebbtide.copied.slice"
# The offsets of segment files that an ingest is copying, and its run.
FILES_SLICE = "ebbtide.ingest.slice"
# On a replica: the id of the table that is its primary, and the replication in flight.
REPLICA_OF = "ebbtide.replica.of"
# On a replica: the name of its primary, or of the first one of several. Keys are erased under it.
PRIMARY = "ebbtide.replica.primary"
REPLICATION = "ebbtide.replication"
CHECKSUM = "ebbtide.checksum"
# The version of the tables' layout. No release had 1, with the state on the records table.
LAYOUT = "ebbtide.layout.version"
LAYOUT_VERSION = 2
# The ids of the data tables that the state belongs to.
TABLES = "ebbtide.tables"
# The snapshots in which expire_snapshots found nothing left to rewrite or merge.
TIDIED = "ebbtide.tidied"
# Live rows of the data tables by segment, their snapshot, and whether a removal is under way.
ROWS_PREFIX = "ebbtide.rows."
SEEN_PREFIX = "ebbtide.seen."
REMOVING = "ebbtide.removing"
# Of an adopted topic: the newest snapshot whose rows are in the state.
ADOPTED_SEEN = "ebbtide.adopted.seen"
# The id of the table of the topic's hold copies, set with the first copy.
HELD = "ebbtide.held"
# State properties of the topic. All properties that are not state are settings, on the records
# table.
_OF_TOPIC = frozenset(
    {ROUND, MERGE, APPEND, UNDO, UNDONE, SLICE, REPLICA_OF, PRIMARY, REPLICATION, HELD}
    | {LAYOUT, CHECKSUM, TABLES, TIDIED, REMOVING, ADOPTED_SEEN, COPIED, COPIED_SLICE, FILES_SLICE}
)
NEVER = -1
# The job and DAG that repairs a state; errors name it.
REPAIR = "repair_state"
_IS_REBUILT = f"{REPAIR} rebuilds the state from the topic's tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Offsets, clocks and logical segments of one partition, as the state table records them.

    Times are in ms since the epoch. The last segment is active.
    """

    log_start_offset: int
    log_end_offset: int  # the high watermark too: an ingest reads only up to the source's
    first_dirty_offset: int
    first_unmarked_offset: int
    segments: tuple[SegmentStart, ...]
    max_event_time_ms: int = NEVER
    cleaned_at_ms: int = NEVER
    cleaned_end_offset: int = NEVER  # the log end offset at the last round
    # When a round next has work without new data. NEVER: none; 0: work that waits without a date.
    next_clean_ms: int = 0
    # Below it, retention or the quarantine may have removed single records.
    expired_end_offset: int = NEVER
    # From here on, records were appended to the table directly; NEVER: none were.
    first_appended_offset: int = NEVER
    horizon_ms: int = NEVER  # if next_clean_ms is 0: the first date among the rest
    # When retention next has work or a blocked segment to report; as long as the log and the
    # settings give this `expiry_basis`.
    next_expiry_ms: int = 0
    expiry_basis: int = NEVER
    deletes: AllDeletes = ()  # of a topic with a deadline: the tombstones not off the disk yet
    # Of an adopted topic only, which has no batches:
    horizons: tuple[HorizonRange, ...] = ()
    sums: tuple[SegmentSums, ...] = ()  # of each segment
    missing: Missing = ()  # offsets that never arrived
    late: tuple[OffsetRange, ...] = ()  # rows that arrived below the log start, not removed yet
    # Topic and partition for errors, if the state was read from properties.
    place: str = field(default="", compare=False)

    @property
    def first_segment(self) -> int:
        """Base offset of the oldest segment."""
        return self.segments[0].base_offset

    @property
    def active_segment(self) -> int:
        """Base offset of the active segment."""
        return self.segments[-1].base_offset

    @property
    def next_horizon_ms(self) -> int | None:
        """The next delete horizon of a tombstone or marker that the last round knew of, or None."""
        known = self.next_clean_ms if self.next_clean_ms > 0 else self.horizon_ms
        return known if known > 0 else None

    @property
    def has_dirty_segments(self) -> bool:
        """True if a closed segment is not clean."""
        # The active segment may have no offset below the high watermark yet.
        return max(self.first_dirty_offset, self.log_start_offset) < self.active_segment

    def is_clean_at(self, now_ms: int) -> bool:
        """Return whether a round at `now_ms` would have no work."""
        if now_ms <= self.cleaned_at_ms:
            return True
        is_waiting = self.next_clean_ms == NEVER or now_ms < self.next_clean_ms
        is_new = self.cleaned_end_offset != self.log_end_offset or self.has_dirty_segments
        return is_waiting and not is_new

    def moved(self, **changes: object) -> PartitionState:
        """Return this state with `changes`. Raise StateError if an offset would decrease."""
        after = replace(self, **changes)  # type: ignore[arg-type]
        for name in ("log_start_offset", "log_end_offset", "max_event_time_ms"):
            value, changed = getattr(self, name), getattr(after, name)
            if changed < value:
                place = f"{self.place}: " if self.place else ""
                raise StateError(
                    f"{place}expected {name} at or above {value}, found a change to {changed}"
                )
        return after


_INTEGERS = (
    "log_start_offset",
    "log_end_offset",
    "first_dirty_offset",
    "first_unmarked_offset",
    "cleaned_at_ms",
    "cleaned_end_offset",
    "next_clean_ms",
    "max_event_time_ms",
    "expired_end_offset",
    "first_appended_offset",
    "horizon_ms",
    "next_expiry_ms",
    "expiry_basis",
)

# Fields by which a job spares the next one work, with their values in a new partition.
CLOCKS: Mapping[str, Any] = {
    "cleaned_at_ms": NEVER,
    "cleaned_end_offset": NEVER,
    "next_clean_ms": 0,
    "horizon_ms": NEVER,
    "next_expiry_ms": 0,
    "expiry_basis": NEVER,
}


def is_state(name: str) -> bool:
    """Return whether a property belongs to the state table."""
    return name.startswith((PREFIX, ROWS_PREFIX, SEEN_PREFIX)) or name in _OF_TOPIC


def state_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that belong to the state table."""
    return {name: value for name, value in properties.items() if is_state(name)}


def settings_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that belong to the records table."""
    return {name: value for name, value in properties.items() if not is_state(name)}


def sealed(state: Mapping[str, str]) -> dict[str, str]:
    """Return the state with its layout version and a checksum, which reveals foreign changes."""
    versioned = {**state, LAYOUT: str(LAYOUT_VERSION)}
    return {**versioned, CHECKSUM: _checksum(versioned)}


def unsealed(topic: str, state: Mapping[str, str]) -> dict[str, str]:
    """Return the state without both. Raise StateError unless a job of ebbtide wrote it."""
    _check_layout(topic, state.get(LAYOUT, str(LAYOUT_VERSION)))
    if state.get(CHECKSUM) != _checksum(state):
        raise StateError(
            f"expected the state of {topic} as ebbtide's last job wrote it, found that {CHECKSUM} "
            "does not match: another tool changed properties of its state table. "
            f"{_IS_REBUILT}"
        )
    return {name: value for name, value in state.items() if name not in (CHECKSUM, LAYOUT)}


def check_layout_of_settings(topic: str, settings: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a records table without a state table has a state itself."""
    if state_of(settings):
        raise _old_layout(topic, "1")


def _old_layout(topic: str, layout: str) -> ConfigurationError:
    return ConfigurationError(
        f"expected the tables of {topic} in layout {LAYOUT_VERSION}, found {layout}, which no "
        "release of ebbtide wrote. Nothing was changed. Drop the topic's tables and ingest it again"
    )


def _check_layout(topic: str, layout: str) -> None:
    if layout == "1":
        raise _old_layout(topic, layout)
    if not layout.isdecimal() or int(layout) > LAYOUT_VERSION:
        raise NotCoveredError(
            f"expected the tables of {topic} in a layout up to version {LAYOUT_VERSION}, found "
            f"{LAYOUT} = {layout}: a newer ebbtide has changed them. Upgrade this one"
        )


def _checksum(state: Mapping[str, str]) -> str:
    lines = (f"{name}={value}\n" for name, value in sorted(state.items()) if name != CHECKSUM)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def to_properties(partition: int, state: PartitionState) -> dict[str, str]:
    """Return the state as table properties."""
    key = f"{PREFIX}{partition}."
    properties = {key + name.replace("_", "-"): str(getattr(state, name)) for name in _INTEGERS}
    lists = {name: getattr(state, name) for name in ("segments", *_LISTS)}
    return properties | {
        key + name: json.dumps(values, separators=(",", ":"))
        for name, values in lists.items()
        if values or name == "segments"
    }


def to_changes(partition: int, state: PartitionState) -> dict[str, str | None]:
    """Return the state as property changes: None unsets a list that is empty."""
    lists = dict.fromkeys(f"{PREFIX}{partition}.{name}" for name in _LISTS)
    return {**lists, **to_properties(partition, state)}


def parse_states(properties: Mapping[str, str], topic: str = "") -> dict[int, PartitionState]:
    """Return the state of each partition from a table's properties; errors name the topic."""
    partitions = {_partition(name) for name in properties if name.startswith(PREFIX)}
    return {
        partition: _parse_state(partition, properties, f"{topic} partition {partition}".lstrip())
        for partition in sorted(partitions)
    }


def has_partitions(properties: Mapping[str, str]) -> bool:
    """Return whether the state has a partition, readable or not."""
    return any(name.startswith(PREFIX) for name in properties)


def readable_states(properties: Mapping[str, str]) -> dict[int, PartitionState]:
    """Return the partitions' states whose offsets and segments can be read.

    An unreadable clock gets the value of a new partition, because a repair resets all clocks.
    """
    states = {}
    for partition in _readable_partitions(properties):
        with suppress(StateError):
            states[partition] = _parse_state(
                partition, {**properties, **_new_clocks(partition, properties)}, ""
            )
    return states


def _readable_partitions(properties: Mapping[str, str]) -> list[int]:
    partitions = set()
    for name in properties:
        if name.startswith(PREFIX):
            with suppress(StateError):
                partitions.add(_partition(name))
    return sorted(partitions)


def _new_clocks(partition: int, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a new partition's values for those clocks that cannot be read."""
    clocks = {}
    for name, value in CLOCKS.items():
        key = f"{PREFIX}{partition}.{name.replace('_', '-')}"
        try:
            _integer(properties, key)
        except (KeyError, StateError):
            clocks[key] = str(value)
    return clocks


def _partition(name: str) -> int:
    partition = name.removeprefix(PREFIX).split(".")[0]
    try:
        return parse_whole(partition, MAX_INT)
    except ValueError:
        raise StateError(
            f"expected a partition number after {PREFIX}, found {name[:100]}. {_IS_REBUILT}"
        ) from None


def _parse_state(partition: int, properties: Mapping[str, str], place: str) -> PartitionState:
    key = f"{PREFIX}{partition}."
    keys = {name: key + name.replace("_", "-") for name in _INTEGERS}
    missing = [name for name in (*keys.values(), key + "segments") if name not in properties]
    if missing:
        raise StateError(
            f"expected the whole state of {place}, found no {quoted_list(missing)} in it. "
            f"{_IS_REBUILT}"
        )
    numbers: dict[str, Any] = {name: _integer(properties, key) for name, key in keys.items()}
    segments = _segments(properties, key + "segments")
    lists = {
        name: parse_property(
            key + name, properties[key + name], f"{name} of a log", partial(_each_as, kind)
        )
        for name, kind in _LISTS.items()
        if key + name in properties
    }
    return PartitionState(**{**numbers, **lists}, segments=segments, place=place)


def _integer(properties: Mapping[str, str], name: str) -> int:
    try:
        return whole(int(properties[name]))
    except (TypeError, ValueError):
        raise unreadable(name, properties[name], "an integer") from None


def _segments(properties: Mapping[str, str], name: str) -> tuple[SegmentStart, ...]:
    expected = "one or more [base offset, modified ms]"
    segments = parse_property(name, properties[name], expected, partial(_each_as, SegmentStart))
    if not segments:
        raise unreadable(name, properties[name], expected)
    return segments


def _each_as(kind: Callable[..., T], values: Any) -> tuple[T, ...]:
    return tuple(kind(*map(whole, numbers)) for numbers in values)


# Fields that not every topic has, with the type of their elements.
_LISTS: Mapping[str, Callable[..., Any]] = {
    "deletes": Deletes,
    "horizons": HorizonRange,
    "sums": SegmentSums,
    "missing": MissingRange,
    "late": OffsetRange,
}


# The live rows of each data table after ebbtide's last commit: a difference is a foreign change.
#
# Each table (`records`, `batches`) has one property with the snapshot at which it was counted. Each
# partition has one more with the rows of its physical segments.


# Live rows by (partition, physical segment), without zeros.
RowsBySegment = Mapping[tuple[int, int], int]


class Seen(NamedTuple):
    """The snapshot at which rows were counted."""

    snapshot: int | None = None  # None: the table had none
    sequence_number: int = 0  # of the table's newest commit then; later commits have larger ones


NOTHING_SEEN = Seen()


def seen_of(properties: Mapping[str, str], what: str) -> Seen | None:
    """Return the snapshot at which a table's rows were last counted, or None in an old state."""
    name = SEEN_PREFIX + what
    if name not in properties:
        return None
    return parse_property(name, properties[name], "a snapshot and its sequence number", _seen)


def seen_property(what: str, seen: Seen) -> dict[str, str]:
    """Return the property for `seen_of`."""
    return {SEEN_PREFIX + what: json.dumps([seen.snapshot, seen.sequence_number])}


def _seen(values: Any) -> Seen:
    snapshot, sequence_number = values
    return Seen(None if snapshot is None else whole(snapshot), whole(sequence_number))


def told_rows(
    properties: Mapping[str, str], what: str, partitions: Iterable[int] | None = None
) -> RowsBySegment:
    """Return the row counts of a table in the state, of all partitions or only of some."""
    if partitions is None:
        prefix = _name(what, "")
        names = [name for name in properties if name.startswith(prefix)]
    else:
        names = [name for p in partitions if (name := _name(what, p)) in properties]
    rows = {}
    for name in names:
        try:
            partition = parse_whole(name.rpartition(".")[2], MAX_INT)
        except ValueError:
            raise unreadable(name, properties[name], "rows by a partition's number") from None
        expected = "pairs of a segment and its rows"
        for segment, count in parse_property(name, properties[name], expected, _pairs):
            rows[partition, segment] = count
    return rows


def rows_properties(
    what: str, rows: RowsBySegment, partitions: Iterable[int]
) -> dict[str, str | None]:
    """Return the properties with the row counts of these partitions; None for one without rows."""
    of_partitions: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    for (partition, segment), count in sorted(rows.items()):
        of_partitions[partition].append((segment, count))
    return {
        _name(what, partition): json.dumps(pairs, separators=(",", ":")) if pairs else None
        for partition, pairs in of_partitions.items()
    }


def _name(what: str, partition: int | str) -> str:
    return f"{ROWS_PREFIX}{what}.{partition}"


def _pairs(values: Any) -> list[tuple[int, int]]:
    return [(whole(segment), whole(count)) for segment, count in values]


def partitions_of(*rows: RowsBySegment) -> set[int]:
    """Return the partitions with rows in any of these counts."""
    return {partition for counts in rows for partition, _ in counts}


def added(rows: RowsBySegment, *changes: RowsBySegment) -> RowsBySegment:
    """Return the row counts after changes, which may be negative."""
    total = Counter(dict(rows))
    for change in changes:
        total.update(change)
    return {place: count for place, count in total.items() if count}


def differences(told: RowsBySegment, held: RowsBySegment) -> dict[tuple[int, int], int]:
    """Return the surplus of rows found over rows recorded, by place; negative for missing rows."""
    both = {p: held.get(p, 0) - told.get(p, 0) for p in sorted({*told, *held})}
    return {place: count for place, count in both.items() if count}
