"""Deleted rows that files on the disk may still hold, and what keeps each file there.

A deleted row leaves the disk in two steps. First its file leaves the current snapshot, because it
was rewritten or removed whole. Then the last snapshot that needs the file expires. An old file is
one that some snapshot needs and the current one does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from ebbtide.log.results import SnapshotsTopic
from ebbtide.moments import later


class LeftOnDisk(NamedTuple):
    """What holds files with deleted rows of a records table on the disk.

    The rows are those in files of the current snapshot: too few to rewrite the file, in a segment
    that still grows, or due to be rewritten. `old_files_ms` is the newest snapshot that needs an
    old file, `old_files_refs` are the tags and branches that do, each with its kind;
    `oldest_snapshot_ms` is the oldest snapshot that may expire. None stands for no such snapshot.
    `undo_until_ms` is until when an undo may need an old file, None where none may.
    """

    rows_below_share: int = 0
    rows_in_active_segments: int = 0
    rows_due: int = 0
    oldest_snapshot_ms: int | None = None
    old_files_ms: int | None = None
    old_files_refs: Mapping[str, str] = {}
    undo_until_ms: int | None = None

    @classmethod
    def of_result(cls, topic_result: Mapping[str, Any]) -> LeftOnDisk | None:
        """Read an expire_snapshots run's report; None if it failed before it made one."""
        try:
            return cls(*(topic_result[name] for name in _IN_RESULT))
        except KeyError:
            return None

    def result(self) -> SnapshotsTopic:
        """Return the fields of `result` that `of_result` reads."""
        fields = {
            "deleted_rows_in_files": self.rows,
            **dict(zip(_IN_RESULT, self, strict=True)),
            "old_files_refs": dict(self.old_files_refs),
        }
        return cast("SnapshotsTopic", fields)

    def expires_ms(self, max_age_ms: int) -> int | None:
        """Return when the last snapshot that needs an old file may expire; None without one."""
        if self.old_files_ms is None:
            return None
        return max(later(self.old_files_ms, max_age_ms), self.undo_until_ms or 0)

    @property
    def rows(self) -> int:
        """All deleted rows in files of the current snapshot."""
        return self.rows_below_share + self.rows_in_active_segments + self.rows_due

    @property
    def has_date(self) -> bool:
        """Whether nothing but the age of snapshots holds old files, and all deleted rows are there.

        What was deleted before is off the disk once the snapshot of `old_files_ms` has expired.
        """
        return not (self.rows or self.old_files_refs)

    def has_expired(self, snapshot_ms: int | None) -> bool:
        """Return whether all snapshots up to that time have expired, except referenced ones."""
        return (
            snapshot_ms is None
            or self.oldest_snapshot_ms is None
            or self.oldest_snapshot_ms > snapshot_ms
        )

    def wait_in_words(self, deleted_share: float) -> str:
        """Name the one thing that must happen before a date is known; only where there is none.

        `deleted_share` is the topic's `ebbtide.rewrite.deleted.share`.
        """
        if self.old_files_refs:
            name, kind = next(iter(self.old_files_refs.items()))
            return f"the {kind} {name} of the records table keeps old files on the disk"
        if self.rows_below_share:
            return (
                f"{self.rows_below_share:,} deleted rows stay in their files until "
                f"{deleted_share:.0%} of a file's rows are deleted "
                "(ebbtide.rewrite.deleted.share; 0 means at the first)"
            )
        if self.rows_in_active_segments:
            return (
                f"{self.rows_in_active_segments:,} deleted rows stay in files of active segments "
                "until these are closed"
            )
        return (
            f"{self.rows_due:,} deleted rows stay in files that the next expire_snapshots rewrites"
        )


# What a run's result calls each field.
_IN_RESULT = (
    *("deleted_rows_below_share", "deleted_rows_in_active_segments", "deleted_rows_due"),
    *("oldest_snapshot_ms", "old_files_ms", "old_files_refs", "undo_until_ms"),
)
