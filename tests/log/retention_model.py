"""Retention said record by record in thirty lines, and hand-made logs to ask it about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from tests.log.log_files import marker

NOW_MS = 1_700_000_000_000
FUTURE_MS = 50
POLICY, TYPE = "kafka.cleanup.policy", "kafka.message.timestamp.type"
MS, BYTES = "kafka.retention.ms", "kafka.retention.bytes"
EVENT_MS = "kafka.retention.max.eventtime.ms"
COMBINE, GRANULARITY = "ebbtide.retention.combine", "ebbtide.retention.granularity"
ENTRY_BYTES = len(write_batch(BatchFields(), [Record(0, NOW_MS, b"k", b"v")]))
MARKER_BYTES = len(marker(0, "COMMIT", producer=1, at_ms=NOW_MS))

# Every value of every setting; None leaves it out.
SETTINGS: dict[str, tuple[str | None, ...]] = {
    POLICY: (None, "delete", "compact", "compact,delete"),
    MS: (None, "100", "5000"),
    BYTES: (None, str(2 * ENTRY_BYTES), str(6 * ENTRY_BYTES)),
    EVENT_MS: (None, "100", "2000"),
    TYPE: ("CreateTime", "LogAppendTime"),
    COMBINE: (None, "any", "all"),
    GRANULARITY: (None, "segment", "record"),
}


class Entry(NamedTuple):
    """A batch of one record, or of a marker."""

    event_ms: int | None
    append_ms: int
    is_marker: bool = False

    @property
    def counted_ms(self) -> int:
        """The event time, or the append time where it lies too far in the future."""
        assert self.event_ms is not None
        is_future = self.event_ms > self.append_ms + FUTURE_MS
        return self.append_ms if is_future else self.event_ms

    @property
    def size_bytes(self) -> int:
        """Of its batch."""
        return MARKER_BYTES if self.is_marker else ENTRY_BYTES

    def timestamp_ms(self, kind: str | None) -> int:
        """What Kafka stores with it."""
        if kind == "LogAppendTime" or self.is_marker:
            return self.append_ms
        return -1 if self.event_ms is None else self.event_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Segments by base offset, a record an offset; `gone_ms` is an event time that was there."""

    segments: Mapping[int, tuple[Entry, ...]]
    end: int
    start: int = 0
    high_watermark: int | None = None
    gone_ms: int = -1
    modified_ms: int = NOW_MS - 3_000

    @property
    def watermark(self) -> int:
        """The high watermark."""
        return self.end if self.high_watermark is None else self.high_watermark

    @property
    def newest_ms(self) -> int:
        """The largest event time among the records that are there."""
        entries = (entry for segment in self.segments.values() for entry in segment)
        times = (e.counted_ms for e in entries if not e.is_marker and e.event_ms is not None)
        return max(times, default=-1)


class Left(NamedTuple):
    """Where a log starts after retention, and the offsets of its records."""

    start: int
    offsets: list[int]


def retained(log: Log, settings: Mapping[str, str]) -> Left:
    """The model: what retention leaves at NOW_MS."""
    limits = {n: int(settings[n]) for n in (MS, BYTES, EVENT_MS) if n in settings}
    newest_ms = max(log.newest_ms, log.gone_ms)
    left, kind = list(log.segments.items()), settings[TYPE]

    def is_behind(e: Entry) -> bool:
        return e.event_ms is not None and newest_ms - e.counted_ms > limits[EVENT_MS]

    def is_old(e: Entry) -> bool:
        return NOW_MS - e.append_ms > limits[MS]

    def too_old(segment: tuple[Entry, ...]) -> bool:
        if EVENT_MS in limits:
            return all(map(is_old, segment))
        newest = max((e.timestamp_ms(kind) for e in segment), default=-1)
        return NOW_MS - (newest if newest >= 0 else log.modified_ms) > limits[MS]

    def too_far_behind(segment: tuple[Entry, ...]) -> bool:
        timed = [e for e in segment if not e.is_marker and e.event_ms is not None]
        return all(map(is_behind, timed)) and (bool(timed) or all(e.is_marker for e in segment))

    def too_many(segment: tuple[Entry, ...]) -> bool:
        return bytes_of(*(o for _, o in left)) - bytes_of(segment) >= limits[BYTES]

    times = [rule for n, rule in ((MS, too_old), (EVENT_MS, too_far_behind)) if n in limits]
    if settings.get(COMBINE) == "all" and times:
        times = [lambda segment, both=tuple(times): all(rule(segment) for rule in both)]
    rules = [lambda _: len(left) > 1 and left[1][0] <= log.start]
    is_deleted = "delete" in settings.get(POLICY, "")
    if is_deleted:
        rules += [too_many] * (BYTES in limits) + times
    for rule in rules:
        while left and (left[1:] or left[0][1]) and rule(left[0][1]):
            if (left[1][0] if left[1:] else log.end) > log.watermark:
                break
            left.pop(0)
    start = max(log.start, left[0][0] if left else log.end)
    singles = is_deleted and EVENT_MS in limits and settings.get(GRANULARITY) == "record"
    spares = settings.get(COMBINE) == "all" and MS in limits
    kept = [
        base + i
        for base, segment in left
        for i, e in enumerate(segment)
        if not e.is_marker and not (singles and is_behind(e) and (not spares or is_old(e)))
    ]
    return Left(start, [offset for offset in kept if offset >= start])


def bytes_of(*segments: tuple[Entry, ...]) -> int:
    """What the batches of these segments take."""
    return sum(entry.size_bytes for segment in segments for entry in segment)


def of_ages(*segments: tuple[int | None, ...], **fields: int) -> Log:
    """Records that much older than now by event time, appended when they happened."""
    return _log([[_aged(age, age) for age in ages] for ages in segments], **fields)


def of_both_ages(*segments: tuple[tuple[int | None, int], ...], **fields: int) -> Log:
    """Records of these ages by event time and by append time."""
    return _log([[_aged(*ages) for ages in segment] for segment in segments], **fields)


def _aged(event_age: int | None, append_age: int | None) -> Entry:
    event_ms = None if event_age is None else NOW_MS - event_age
    return Entry(event_ms, NOW_MS - (append_age or 0))


def _log(segments: list[list[Entry]], **fields: int) -> Log:
    batches, offset = {}, 0
    for entries in segments:
        batches[offset] = tuple(entries)
        offset += len(entries) or 2  # what was written to an empty one has been cleaned away
    end = max(batches) + len(batches[max(batches)])
    return Log(segments=batches, end=end, **fields)


def _marker(age: int) -> Entry:
    return Entry(None, NOW_MS - age, is_marker=True)


LOGS: dict[str, Log] = {
    "one active segment": of_ages((900, 300, 99)),
    "in order": of_ages((9_000, 8_000), (5_001, 5_000), (2_101, 2_100), (201, 200), (101, 100)),
    "at the limits": of_ages((5_101,), (5_100,), (2_101,), (2_100,), (201,), (200,), (100,)),
    "out of order": of_ages((300, 9_000), (2_500, 50), (7_000, 6_000), (0, 8_000), (4_000,)),
    "the newest first": of_ages((0, 50), (9_000, 8_000), (300, 200), (6_000,)),
    "all of one time": of_ages((4_000, 4_000), (4_000,), (4_000, 4_000)),
    "a replay": of_both_ages(
        ((90_000, 120), (80_000, 110)), ((70_000, 101), (60_000, 100)), ((59_950, 9), (59_900, 0))
    ),
    "late events": of_both_ages(
        ((9_000, 6_000), (200, 6_000)), ((9_500, 5_001), (150, 200)), ((9_600, 50), (0, 0))
    ),
    "events of the future": of_both_ages(
        ((9_000, 9_000), (-100_000, 8_900)),
        ((150, 200), (149, 200)),
        ((-60, 0), (-50, 0), (-90_000, 8_000), (5, 4)),
    ),
    "only future events": of_both_ages(((-9_000, 300), (-9_000, 200)), ((-9_000, 0),)),
    "records without event time": of_ages((9_000, None), (None,), (8_000, None), (0, None)),
    "only records without event time": of_ages((None, None), (None,), (None,)),
    "empty segments": of_ages((), (9_000,), (), (), (300, 200), (), (0,)),
    "an empty active segment": of_ages((9_000, 300), (250, 0), ()),
    "nothing but an empty segment": of_ages(()),
    "the newest event has gone": of_ages((900, 800), (700, 600), (500,), gone_ms=NOW_MS - 10),
    "the newest event was of another year": of_ages((900, 800), (0,), gone_ms=NOW_MS + 10**9),
    "records below the log start": of_ages((0, 900), (800, 9_000), (700, 0), (300,), start=3),
    "a segment that starts at the log start": of_ages((0, 1), (900, 800), (100,), start=2),
    "all below the log start": of_ages((9_000, 300), (200, 100), start=4),
    "a high watermark within a segment": of_ages(
        (9_000,), (8_000, 7_000), (6_000,), (0,), high_watermark=2
    ),
    "a high watermark at a segment's end": of_ages((9_000,), (8_000,), (6_000,), high_watermark=1),
    "segments of markers": _log(
        [
            [_marker(9_000)],
            [_aged(8_000, 8_000), _marker(7_900)],
            [_marker(300), _marker(200)],
            [_aged(0, 0), _marker(0)],
        ]
    ),
}
