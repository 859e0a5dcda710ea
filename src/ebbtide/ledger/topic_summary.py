"""A topic in a few numbers, which each job stores in its row of `runs` for the overview.

A row has none if the job failed and the topic has no tables, or if a newer version wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, cast

from ebbtide.json_text import MALFORMED
from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK
from ebbtide.ledger.results import SnapshotsTopic
from ebbtide.moments import earlier, later
from ebbtide.settings.config import COMPACT, TopicConfig
from ebbtide.state.deadline import erase_by_ms
from ebbtide.state.topic_state import (
    MERGE,
    ROUND,
    TIDIED,
    PartitionState,
    RowsBySegment,
    max_snapshot_age_ms,
    parse_property,
)

# Rises when a number without a default is removed, or a number changes its meaning.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic at the end of a job: counts, bytes, and milliseconds since the epoch.

    A number with a default is None if this job does not know it.
    """

    cleanup_policy: str  # as Kafka writes it; empty if it is not set
    is_enabled: bool
    partitions: int
    records: int
    closed_records: int  # in closed segments, which a round may clean
    dirty_records: int  # closed records that no round has cleaned
    file_bytes: int  # of the files that the newest snapshots of both tables need
    next_horizon_ms: int | None = None
    oldest_event_ms: int | None = None  # by the files' bounds: no event is older
    waiting: int | None = None  # tombstones and markers that are retained until their horizon
    low_watermark_lag: int | None = None  # log start offset minus low watermark, the largest
    drifted_settings: int | None = None  # settings that differ on the brokers
    erase_by_ms: int | None = None  # when the oldest delete must be off the disk

    @property
    def dirty_share(self) -> float | None:
        """The dirty share of the cleanable records, or None if the topic is not cleaned."""
        is_cleaned = COMPACT in self.cleanup_policy.split(",") and self.closed_records > 0
        return self.dirty_records / self.closed_records if is_cleaned else None

    def to_json(self) -> str:
        """Return the summary as text for `parse_summary`."""
        numbers = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps({"version": VERSION, **numbers}, separators=(",", ":"))


_NAMES = frozenset(field.name for field in fields(TopicSummary))


def parse_summary(text: str | None) -> TopicSummary | None:
    """Return the summary of a row, or None if it has none of this version."""
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
        erase_by_ms=erase_by_ms(config, states.values()),
    )


def _waiting(results: Iterable[Mapping[str, Any]]) -> int | None:
    """Count tombstones and markers that a round retained; None if no result is of a round."""
    counted = [numbers for numbers in results if "tombstones_kept" in numbers]
    if not counted:
        return None
    waiting: int = sum(
        result["tombstones_kept"] + result.get("markers_kept", 0) for result in counted
    )
    return waiting


def _lag(results: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the largest lag of a partition, or None if no replica was asked."""
    lags: list[int] = [
        result["log_start_offset"] - result["low_watermark"]
        for result in results
        if result.get("low_watermark", INVALID_LOW_WATERMARK) != INVALID_LOW_WATERMARK
        and "log_start_offset" in result
    ]
    return max(lags, default=None)


# Whether expire_snapshots would find something to free.
#
# It records the snapshots in which it left nothing to free, and its settings. There is nothing to
# free while the tables are at these snapshots and no older snapshot can expire.


# Rises when expire_snapshots reports or rewrites more, so that it reads each topic once more.
_REPORTED = 5


class TableSnapshots(NamedTuple):
    """A table's current snapshot, and the time of its oldest snapshot that can expire; None if
    none.

    A current snapshot cannot expire, nor one with a branch or tag.
    """

    current: int | None
    oldest_ms: int | None


def tidied(tables: Mapping[str, TableSnapshots], config: TopicConfig) -> dict[str, str]:
    """Return the property that records the snapshots without anything left to free."""
    snapshots = {name: table.current for name, table in sorted(tables.items())}
    settings = [config.rewrite_deleted_ratio, config.merge_target_bytes]
    note = {"snapshots": snapshots, "settings": settings, "reported": _REPORTED}
    return {TIDIED: json.dumps(note)}


def is_tidy(
    properties: Mapping[str, str],
    config: TopicConfig,
    tables: Mapping[str, TableSnapshots],
    clock_ms: int,
) -> bool:
    """Return whether nothing can be freed; `clock_ms` is the machine clock."""
    if ROUND in properties or _is_merging(properties):
        return False
    if properties.get(TIDIED) != tidied(tables, config)[TIDIED]:
        return False
    oldest_ms = earlier(clock_ms, max_snapshot_age_ms(properties))
    return all(
        snapshots.oldest_ms is None or snapshots.oldest_ms >= oldest_ms
        for snapshots in tables.values()
    )


def _is_merging(properties: Mapping[str, str]) -> bool:
    """Return whether a merge is in flight; a finished one leaves the property without groups."""
    text = properties.get(MERGE)
    if text is None:
        return False
    return parse_property(MERGE, text, "a merge", lambda merge: bool(merge["groups"]))


# Deleted rows in files on storage, and what retains each file.
#
# A deleted row's bytes are freed in two steps. First the current snapshot drops its file, because
# the file was rewritten or removed entirely. Then the last snapshot that needs the file expires.
# An old file is one that some snapshot needs and the current one does not.


class LeftOnDisk(NamedTuple):
    """Why files with deleted rows of a records table are still on storage.

    Rows are counted in files of the current snapshot. An old file is one that the current snapshot
    does not need. None: no such snapshot or time.
    """

    rows_below_share: int = 0  # too few in their file to rewrite it
    rows_in_active_segments: int = 0
    rows_due: int = 0  # the next run rewrites their files
    oldest_snapshot_ms: int | None = None  # that can expire
    old_files_ms: int | None = None  # the newest snapshot that needs an old file
    old_files_refs: Mapping[str, str] = {}  # tags and branches that need one, with their kinds
    undo_until_ms: int | None = None  # an undo can need an old file until then
    still_in: Mapping[str, int] = {}  # places outside the snapshots, by their names in STILL_IN

    @classmethod
    def of_result(cls, topic_result: Mapping[str, Any]) -> LeftOnDisk | None:
        """Return the numbers of an expire_snapshots run, or None if it failed before it had any."""
        try:
            return cls(*(topic_result[name] for name in _IN_RESULT))
        except KeyError:
            return None

    def result(self) -> SnapshotsTopic:
        """Return the fields of `result` for `of_result`."""
        fields = {
            "deleted_rows_in_files": self.rows,
            **dict(zip(_IN_RESULT, self, strict=True)),
            "old_files_refs": dict(self.old_files_refs),
            "still_in": dict(self.still_in),
        }
        return cast("SnapshotsTopic", fields)

    def expires_ms(self, max_age_ms: int) -> int | None:
        """Return when the last snapshot that needs an old file can expire, or None."""
        if self.old_files_ms is None:
            return None
        return max(later(self.old_files_ms, max_age_ms), self.undo_until_ms or 0)

    @property
    def rows(self) -> int:
        """All deleted rows in files of the current snapshot."""
        return self.rows_below_share + self.rows_in_active_segments + self.rows_due

    @property
    def has_date(self) -> bool:
        """True if all deleted rows are in old files, and only snapshots need these.

        Their bytes are freed once the snapshot of `old_files_ms` has expired.
        """
        return not (self.rows or self.old_files_refs)

    def has_expired(self, snapshot_ms: int | None) -> bool:
        """Return whether all snapshots up to this time have expired, except referenced ones."""
        return (
            snapshot_ms is None
            or self.oldest_snapshot_ms is None
            or self.oldest_snapshot_ms > snapshot_ms
        )

    @property
    def still_in_words(self) -> str:
        """The places outside the snapshots that may have removed records; empty if none has."""
        known = ((STILL_IN[name], count) for name, count in self.still_in.items())
        return ", ".join(words.format(count) for words, count in known)

    def wait_in_words(self, deleted_share: float) -> str:
        """Name the event that must come before there is a date. Call it only without `has_date`.

        `deleted_share` is the topic's `ebbtide.rewrite.deleted.ratio`.
        """
        if self.old_files_refs:
            name, kind = next(iter(self.old_files_refs.items()))
            return f"the {kind} {name} of the records table needs old files"
        if self.rows_below_share:
            return (
                f"{self.rows_below_share:,} deleted rows are in files with less than "
                f"{deleted_share:.0%} deleted rows, which are not rewritten yet "
                "(ebbtide.rewrite.deleted.ratio; 0: rewritten at the first deleted row)"
            )
        if self.rows_in_active_segments:
            return (
                f"{self.rows_in_active_segments:,} deleted rows are in files of active segments, "
                "which are rewritten once they are closed"
            )
        return (
            f"{self.rows_due:,} deleted rows are in files that the next expire_snapshots rewrites"
        )


# Places outside the snapshots of the records table that may have removed records.
STILL_IN = {
    "waiting_files": "{:,} files that ebbtide wrote and no snapshot needs",
    "other_files": "{:,} files that no snapshot needs and that ebbtide does not know",
    "object_versions": "{:,} noncurrent versions of objects, which the bucket's lifecycle deletes",
    "unknown_versions": "noncurrent versions of objects, if the bucket has any: the store of {:,} "
    "tables did not list them",
    "held_copies": "{:,} copies for holds",
    "quarantined": "{:,} records in the quarantine, which you delete",
    "old_copies": "{:,} files of older snapshots of hold copies and of the quarantine",
}
# Name of each field in a run's result.
_IN_RESULT = (
    *("deleted_rows_below_ratio", "deleted_rows_in_active_segments", "deleted_rows_due"),
    *("oldest_snapshot_ms", "old_files_ms", "old_files_refs", "undo_until_ms"),
    "still_in",
)
