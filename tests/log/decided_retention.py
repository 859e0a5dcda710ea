"""What `ebbtide.log` decides of a log of the retention model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ebbtide.kafka.retention import Expiry, LogOffsets, expire, record_limit
from ebbtide.settings.config import TopicConfig, parse_config
from ebbtide.state.logical_segments import Segment
from tests.log.retention_model import FUTURE_MS, NOW_MS, Entry, Left, Log, bytes_of


def config_of(settings: Mapping[str, str]) -> TopicConfig:
    """The settings as a table's properties."""
    return parse_config({**settings, "kafka.message.timestamp.after.max.ms": str(FUTURE_MS)})


def decided(log: Log, config: TopicConfig, *, now_ms: int = NOW_MS) -> tuple[Expiry, Left]:
    """Segments that go, and what is left."""
    segments = [
        _segment_of(base, entries, log.modified_ms, config.message_timestamp_type)
        for base, entries in log.segments.items()
    ]
    newest_ms = max(log.newest_ms, log.gone_ms)
    offsets = LogOffsets(log.start, log.end, log.watermark)
    expiry = expire(segments, offsets, config, now_ms=now_ms, max_event_time_ms=newest_ms)
    limit = record_limit(config, now_ms=now_ms, max_event_time_ms=newest_ms)

    def goes(entry: Entry) -> bool:
        if limit is None or entry.event_ms is None:
            return False
        is_old = limit.append_time_ms is None or entry.append_ms < limit.append_time_ms
        return entry.counted_ms < limit.event_time_ms and is_old

    start = expiry.log_start_offset
    kept = {segment.base_offset for segment in expiry.kept}
    offsets_left = [
        base + i
        for base, entries in log.segments.items()
        if base in kept
        for i, entry in enumerate(entries)
        if base + i >= start and not entry.is_marker and not goes(entry)
    ]
    return expiry, Left(start, offsets_left)


@cache
def _segment_of(base: int, entries: tuple[Entry, ...], modified_ms: int, kind: str) -> Segment:
    """What the batches of a segment add up to."""
    data = [e for e in entries if not e.is_marker]
    return Segment(
        base,
        modified_ms,
        bytes_of(entries),
        max_timestamp_ms=max((e.timestamp_ms(kind) for e in entries), default=-1),
        max_event_time_ms=max((e.counted_ms for e in data if e.event_ms is not None), default=-1),
        max_append_time_ms=max((e.append_ms for e in entries), default=-1),
        record_count=len(data),
    )
