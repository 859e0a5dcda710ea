"""Report an erasure: what is left of each key, and when it is gone from table and disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.erasures_table import append_erasures, hash_of
from ebbtide.iceberg.topics import Topic
from ebbtide.log.erasures import REPORTED, KeyRow
from ebbtide.log.requests.erase_request import PartitionKey
from ebbtide.log.state.properties import max_snapshot_age_ms
from ebbtide.moments import minute
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_log.choice import DIRTY_RATIO
from ebbtide.stages.clean_log.stage import CleanPlan
from ebbtide.stages.erase_keys.held_keys import LeftOfKey, find_left
from ebbtide.stages.erase_keys.plan import ErasePlan
from ebbtide.stages.expire_snapshots.left_on_disk import find_left_on_disk

DIRTY_RATIO_DECIDES = "; kafka.min.cleanable.dirty.ratio or kafka.max.compaction.lag.ms decides"

KeyRows = dict[PartitionKey, KeyRow]


def report(plan: ErasePlan, rows: KeyRows, cleaning: CleanPlan) -> JobOutcome:
    """Return the run's numbers; a row in `erasures` for each key."""
    topic = plan.topic
    tombstones = {place: row.tombstone_offset or 0 for place, row in rows.items()}
    left = find_left(topic, tombstones)
    disk = _Disk.of(topic)
    reported = [_reported(row, left.get(place, LeftOfKey()), disk) for place, row in rows.items()]
    outcome = plan.outcome()
    report_rows(plan, outcome, reported)
    for partition, numbers in outcome.partitions.items():
        numbers |= _delay(numbers["left"], cleaning, partition)
    outcome.topic["note"] = _in_words(outcome.topic, disk)
    return outcome


def report_rows(plan: ErasePlan, outcome: JobOutcome, reported: list[KeyRow]) -> None:
    """Write a row in `erasures` for each key, and add their numbers to the outcome."""
    topic = plan.topic
    missing = [KeyRow(hash_of(key)) for key in plan.not_found]
    append_erasures(topic.spark, topic.name, plan.erasure, REPORTED, [*reported, *missing])
    for partition, numbers in outcome.partitions.items():
        numbers |= _numbers([row for row in reported if row.partition == partition])
    outcome.topic |= _numbers(reported)


@dataclass(frozen=True, slots=True)
class _Disk:
    """When the table last changed, by the clock that ages its snapshots, and when the disk follows.

    From `off_from_ms` on an expire_snapshots takes all deleted rows off it; None while there is
    something else to `wait` for.
    """

    changed_ms: int
    off_from_ms: int | None
    wait: str

    @classmethod
    def of(cls, topic: Topic) -> _Disk:
        snapshot = open_table(topic.spark, topic.name.records_table).current
        changed_ms = 0 if snapshot is None else snapshot.at_ms
        left = find_left_on_disk(topic)
        if not left.has_date:
            return cls(changed_ms, None, left.wait_in_words(topic.config.rewrite_deleted_share))
        expires_ms = left.expires_ms(max_snapshot_age_ms(topic.properties)) or 0
        return cls(changed_ms, max(changed_ms, expires_ms), "")


def _reported(row: KeyRow, left: LeftOfKey, disk: _Disk) -> KeyRow:
    is_out = not left.records
    return row._replace(
        superseded=max(0, row.found - left.records),
        left=left.records,
        horizon=left.horizon_ms,
        out_of_table_at=disk.changed_ms if is_out else None,
        off_disk_from=disk.off_from_ms if is_out else None,
    )


def _numbers(rows: list[KeyRow]) -> dict[str, Any]:
    horizons = [row.horizon for row in rows if row.horizon is not None]
    return {
        "superseded": sum(row.superseded or 0 for row in rows),
        "left": sum(row.left or 0 for row in rows),
        "last_horizon_ms": max(horizons, default=None),
        "out_of_table_ms": _latest([row.out_of_table_at for row in rows]),
        "off_disk_from_ms": _latest([row.off_disk_from for row in rows]),
    }


def _latest(times_ms: list[int | None]) -> int | None:
    """Return the latest of all; None while one of them is not known."""
    known = [ms for ms in times_ms if ms is not None]
    return max(known) if known and len(known) == len(times_ms) else None


def _in_words(numbers: Mapping[str, Any], disk: _Disk) -> str:
    """Describe the run in a sentence, without naming a key."""
    text = (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; "
        f"{numbers['superseded']} superseded records have left the table, {numbers['left']} have "
        "not"
    )
    if numbers["off_disk_from_ms"] is not None:
        moment = _moment(numbers["off_disk_from_ms"])
        text += f"; they leave the disk with the first expire_snapshots after {moment}"
    elif numbers["out_of_table_ms"] is not None:
        text += f"; they are on the disk still: {disk.wait}"
    if numbers["last_horizon_ms"] is not None:
        text += f"; their tombstones may leave from {_moment(numbers['last_horizon_ms'])} on"
    return f"{text}. Key by key: lake.ebbtide.erasures"


def _moment(ms: int) -> str:
    """Format the first full minute at or after a time."""
    ms = -(-ms // 60_000) * 60_000
    return f"{minute(ms)} UTC"


def _delay(left: int, cleaning: CleanPlan, partition: int) -> dict[str, str]:
    """Return a note on why values are left and what would change that; empty where none are."""
    if not left:
        return {}
    cleaned = cleaning.outcome().partitions[partition]
    if cleaned["picked"]:
        reason = "the segment of their tombstone is not closed yet, or not old enough"
    else:
        reason = str(cleaned["reason"])
        reason += DIRTY_RATIO_DECIDES if reason.startswith(DIRTY_RATIO) else ""
    return {"note": f"{left} records of the keys wait for a cleaner round: {reason}"}
