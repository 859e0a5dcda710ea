"""The two dates of a deletion: out of the table, and off the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.tables.reader import Run, Topic

MAX_AGE_PROPERTY = "history.expire.max-snapshot-age-ms"
# Iceberg's default: five days.
DEFAULT_MAX_AGE_MS = 5 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Deletion:
    """The newest deletion of a topic; `off_disk` is when it happened, or is due at the latest."""

    rows: int
    out_of_table: datetime
    off_disk: datetime
    is_off_disk: bool

    def in_words(self) -> str:
        """Both dates as a sentence."""
        out = f"{self.rows:,} records left the table on {_day(self.out_of_table)}"
        if self.is_off_disk:
            return f"{out} and the disk by {_day(self.off_disk)}."
        due = _day(self.off_disk)
        return f"{out}; their bytes leave the disk with the first expire_snapshots after {due}."


def newest_deletion(topic: Topic, runs: Sequence[Run]) -> Deletion | None:
    """The newest deletion in `runs`, oldest first; None when nothing was ever deleted.

    What a deletion took is still held by the snapshots before it, until they are past their age.
    """
    removals = [run for run in runs if run.rows_removed and run.job != "expire_snapshots"]
    if not removals:
        return None
    removal = removals[-1]
    max_age_ms = int(topic.properties.get(MAX_AGE_PROPERTY, DEFAULT_MAX_AGE_MS))
    due = removal.ended + timedelta(milliseconds=max_age_ms)
    freed = [run.now for run in runs if _frees(run) and run.now >= due]
    return Deletion(
        rows=removal.rows_removed,
        out_of_table=removal.ended,
        off_disk=freed[0] if freed else due,
        is_off_disk=bool(freed),
    )


def _frees(run: Run) -> bool:
    return run.job == "expire_snapshots" and run.succeeded


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
