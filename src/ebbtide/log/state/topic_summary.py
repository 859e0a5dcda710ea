"""A topic in a few numbers, as each job leaves it in its row of `runs`: the overview reads these.

A row without one is of a failed job that has no tables, or of a newer version whose numbers mean
something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ebbtide.json_text import MALFORMED
from ebbtide.log.delete_answers import INVALID_LOW_WATERMARK
from ebbtide.log.settings.config import COMPACT, TopicConfig
from ebbtide.log.state.row_counts import RowsBySegment
from ebbtide.log.state.topic_state import PartitionState

# Rises when a number without a default goes, or any means something else.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic at the end of a job: counts, bytes, and milliseconds since the epoch.

    `closed_records` lie in segments that a round may clean, `dirty_records` are those of them that
    no round has covered. Numbers with a default are None where this job does not know them.
    """

    cleanup_policy: str  # as Kafka writes it; empty where it is not set
    is_enabled: bool
    partitions: int
    records: int
    closed_records: int
    dirty_records: int
    file_bytes: int  # of the files that the newest snapshots of both tables need
    next_horizon_ms: int | None = None
    oldest_event_ms: int | None = None  # by its files: no event in them is older
    waiting: int | None = None  # tombstones and markers that stay until their horizon
    low_watermark_lag: int | None = None  # offsets that the slowest replica has yet to give up
    drifted_settings: int | None = None  # settings that the brokers have differently

    @property
    def dirty_share(self) -> float | None:
        """The dirty part of the records that may be cleaned; None if no round cleans any."""
        is_cleaned = COMPACT in self.cleanup_policy.split(",") and self.closed_records > 0
        return self.dirty_records / self.closed_records if is_cleaned else None

    def to_json(self) -> str:
        """Return the text for `parse_summary`."""
        numbers = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps({"version": VERSION, **numbers}, separators=(",", ":"))


_NAMES = frozenset(field.name for field in fields(TopicSummary))


def parse_summary(text: str | None) -> TopicSummary | None:
    """Return the summary of a row; None where the row has none that this version understands."""
    if text is None:
        return None
    try:
        numbers = json.loads(text)
        known = {name: value for name, value in numbers.items() if name in _NAMES}
        return TopicSummary(**known) if numbers["version"] == VERSION else None
    except MALFORMED:
        return None


def summarize(
    config: TopicConfig,
    states: Mapping[int, PartitionState],
    rows: RowsBySegment,
    file_bytes: int,
    partitions: Mapping[int, Mapping[str, Any]],
    topic: Mapping[str, Any],
    oldest_event_ms: int | None = None,
) -> TopicSummary:
    """Return the summary of a topic: `rows` are those of the records table.

    `partitions` and `topic` are the results of the job that has just ended.
    """
    closed = dirty = 0
    for (partition, segment), count in rows.items():
        state = states.get(partition)
        if state is not None and segment < state.active_segment:
            closed += count
            dirty += count if segment >= state.first_dirty_offset else 0
    horizons = [ms for state in states.values() if (ms := state.next_horizon_ms) is not None]
    return TopicSummary(
        cleanup_policy=",".join(sorted(config.cleanup_policy or ())),
        is_enabled=config.is_enabled,
        partitions=len(states),
        records=sum(rows.values()),
        closed_records=closed,
        dirty_records=dirty,
        file_bytes=file_bytes,
        next_horizon_ms=min(horizons, default=None),
        oldest_event_ms=oldest_event_ms,
        waiting=_waiting(partitions.values()),
        low_watermark_lag=_lag(partitions.values()),
        drifted_settings=len(topic["drift"]) if "drift" in topic else None,
    )


def _waiting(results: Iterable[Mapping[str, Any]]) -> int | None:
    """Count what a round has left for later; None where none of the results is of a round."""
    counted = [numbers for numbers in results if "tombstones_kept" in numbers]
    if not counted:
        return None
    waiting: int = sum(of["tombstones_kept"] + of.get("markers_kept", 0) for of in counted)
    return waiting


def _lag(results: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the largest lag of a partition; None where no replica was asked."""
    lags: list[int] = [
        of["log_start_offset"] - of["low_watermark"]
        for of in results
        if of.get("low_watermark", INVALID_LOW_WATERMARK) != INVALID_LOW_WATERMARK
        and "log_start_offset" in of
    ]
    return max(lags, default=None)
