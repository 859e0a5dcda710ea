"""The two dates of a deletion: out of the table, and off the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from ebbtide.lake.reader import LakeTopic, Run
from ebbtide.log.results import SnapshotsTopic
from ebbtide.log.state.properties import max_snapshot_age_ms

JOB = "expire_snapshots"
# How far back the report and the page look.
HISTORY = timedelta(days=35)


@dataclass(frozen=True, slots=True)
class DeletionDates:
    """The newest deletion of a topic, by the clock of the machines that commit.

    `due` is when the last snapshot that shows it passes its age; `waiting_rows` are out of the
    table and still in its files, until these are rewritten; `off_disk` is None until both are over.
    `is_past_due` says that an expire_snapshots has run since `due`, and left those rows.
    """

    rows: int
    out_of_table: datetime
    due: datetime
    waiting_rows: int
    off_disk: datetime | None
    is_past_due: bool
    deleted_share: float

    def in_words(self) -> str:
        """Both dates as sentences."""
        out = f"{self.rows:,} records left the table on {_minute(self.out_of_table)}"
        if self.off_disk:
            return f"{out} and the disk by {_minute(self.off_disk)}."
        wait = (
            f"{self.waiting_rows:,} deleted rows wait in files that are rewritten once "
            f"{self.deleted_share:.0%} of their rows are deleted (ebbtide.rewrite.deleted.share; 0 "
            "means at the first), and in active segments, once these are closed"
        )
        if self.is_past_due:
            return f"{out}; no snapshot shows them any more, but {wait}."
        due = (
            f"{out}; they leave the disk with the first expire_snapshots after {_minute(self.due)}"
        )
        return f"{due}, except that {wait}." if self.waiting_rows else f"{due}."


def newest_deletion(topic: LakeTopic, runs: Sequence[Run]) -> DeletionDates | None:
    """The newest deletion in `runs`, oldest first; None when nothing was ever deleted."""
    removals = [run for run in runs if run.rows_removed and run.job != JOB]
    if not removals:
        return None
    removal = removals[-1]
    max_age_ms = max_snapshot_age_ms(topic.properties)
    due = removal.ended + timedelta(milliseconds=max_age_ms)
    expired = [run for run in runs if run.job == JOB and run.succeeded]
    freed = [run.ended for run in expired if run.started >= due and not _waiting_rows(run)]
    return DeletionDates(
        rows=removal.rows_removed,
        out_of_table=removal.ended,
        due=due,
        waiting_rows=_waiting_rows(expired[-1]) if expired else 0,
        off_disk=freed[0] if freed else None,
        is_past_due=bool(expired) and expired[-1].started >= due,
        deleted_share=topic.config.rewrite_deleted_share,
    )


def _waiting_rows(run: Run) -> int:
    return cast("SnapshotsTopic", run.topic_result).get("deleted_rows_in_files", 0)


def _minute(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
