"""Tombstones from their append until they and the records that they supersede are off the disk.

A partition's state has them in groups, so that no job has to scan the log for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import reduce
from itertools import groupby
from typing import NamedTuple

from ebbtide.moments import earlier

# Groups of a partition. If there are more, groups of the most similar age are joined.
MOST = 64
UNSEEN = -1


class Stage(IntEnum):
    """The last step that a group of tombstones has passed."""

    COUNTED = 0  # not tombstones: all below the end offset are in a group, or off the disk
    MARKED = 1  # no cleaner round has covered them
    HORIZON_SET = 2  # a round retains them until their delete horizon
    REMOVED = 3  # out of the table, but a data file may still have their rows
    REWRITTEN = 4  # in no file of the current snapshot, but older snapshots may need their files


class Deletes(NamedTuple):
    """Tombstones of one partition at the same stage."""

    stage: int
    written_ms: int  # the oldest append time
    first_offset: int
    end_offset: int
    # MARKED, HORIZON_SET: the latest delete horizon in ms. A broker may have set it before a round
    # covers the tombstones. REMOVED: sequence number of the last commit whose files may have their
    # rows. REWRITTEN: sequence number of the first snapshot without these files. -1: not known yet.
    until: int = UNSEEN

    @property
    def is_seen(self) -> bool:
        """True if expire_snapshots has seen that the tombstones are removed."""
        return self.until != UNSEEN

    def joined(self, other: Deletes) -> Deletes:
        """Return one group for both: as old as the older one, as late as the later one."""
        is_unseen = self.stage == Stage.REMOVED and UNSEEN in (self.until, other.until)
        return Deletes(
            self.stage,
            min(self.written_ms, other.written_ms),
            min(self.first_offset, other.first_offset),
            max(self.end_offset, other.end_offset),
            UNSEEN if is_unseen else max(self.until, other.until),
        )


AllDeletes = tuple[Deletes, ...]


class Files(NamedTuple):
    """The commits, by sequence number, that decide which deleted rows are off the disk."""

    oldest_with_deleted_rows: int | None  # of the partition's data files that have some
    current: int
    oldest_snapshot: int


def pending(deletes: AllDeletes) -> Iterator[Deletes]:
    """Yield the groups that are not off the disk."""
    return (group for group in deletes if group.stage != Stage.COUNTED)


def counted_end(deletes: AllDeletes) -> int | None:
    """Return the offset up to which all tombstones are in a group, or None if none was counted."""
    return next((group.end_offset for group in deletes if group.stage == Stage.COUNTED), None)


def with_found(deletes: AllDeletes, start: int, end: int, found: Iterable[Deletes]) -> AllDeletes:
    """Return the groups after a search has `found` the tombstones of the offsets [start, end)."""
    kept = [group for group in pending(deletes) if not _is_found_again(group, start, end)]
    return _in_order([Deletes(Stage.COUNTED, UNSEEN, 0, end), *kept, *found])


def _is_found_again(group: Deletes, start: int, end: int) -> bool:
    is_in_table = group.stage in (Stage.MARKED, Stage.HORIZON_SET)
    return is_in_table and start <= group.first_offset and group.end_offset <= end


def after_round(deletes: AllDeletes, end: int, horizon_ms: int) -> AllDeletes:
    """Return the groups after a round below offset `end`, which sets new horizons to `horizon_ms`.

    A horizon that a broker has set stays. Call `settled` next: the round may have removed some.
    """
    after: list[Deletes] = []
    for group in deletes:
        if group.stage != Stage.MARKED or group.first_offset >= end:
            after.append(group)
            continue
        covered, until = min(end, group.end_offset), max(group.until, horizon_ms)
        after.append(group._replace(stage=Stage.HORIZON_SET, end_offset=covered, until=until))
        if covered < group.end_offset:
            after.append(group._replace(first_offset=covered))
    return _in_order(after)


def settled(deletes: AllDeletes, log_start_offset: int, next_horizon_ms: int | None) -> AllDeletes:
    """Return the groups. Groups without a tombstone in the table become removed ones.

    These are below the log start offset, or no retained tombstone has a horizon as early as theirs.
    """
    after = [
        group._replace(stage=Stage.REMOVED, until=UNSEEN)
        if _is_gone(group, log_start_offset, next_horizon_ms)
        else group
        for group in deletes
    ]
    return _in_order(after)


def _is_gone(group: Deletes, log_start_offset: int, next_horizon_ms: int | None) -> bool:
    if group.stage not in (Stage.MARKED, Stage.HORIZON_SET):
        return False
    if group.end_offset <= log_start_offset:
        return True
    is_past = next_horizon_ms is None or group.until < next_horizon_ms
    return group.stage == Stage.HORIZON_SET and is_past


def after_tidying(deletes: AllDeletes, seen_at: int, files: Files) -> AllDeletes:
    """Return the groups after expire_snapshots, which began at the commit `seen_at`.

    Groups that are off the disk are omitted.
    """
    after: list[Deletes] = []
    oldest = files.oldest_with_deleted_rows
    for group in deletes:
        if group.stage == Stage.REMOVED and not group.is_seen:
            group = group._replace(until=seen_at)
        if group.stage == Stage.REMOVED and (oldest is None or oldest > group.until):
            group = group._replace(stage=Stage.REWRITTEN, until=files.current)
        if group.stage != Stage.REWRITTEN or files.oldest_snapshot < group.until:
            after.append(group)
    return _in_order(after)


def _in_order(deletes: Iterable[Deletes]) -> AllDeletes:
    """Sort the groups. Join those that wait for the same event and, beyond `MOST`, similar ones."""
    joined: list[Deletes] = []
    for (stage, _), found in groupby(sorted(deletes, key=_waits_for), key=_waits_for):
        alike = list(found)
        joined += alike if stage == Stage.MARKED else [reduce(Deletes.joined, alike)]
    while len(joined) > MOST:
        _join_two(joined)
    return tuple(joined)


def _waits_for(group: Deletes) -> tuple[int, int]:
    return group.stage, group.first_offset if group.stage == Stage.MARKED else group.until


def _join_two(deletes: list[Deletes]) -> None:
    """Join the two neighbours at the same stage whose ages differ least."""
    pairs = [
        (abs(earlier(deletes[at].written_ms, deletes[at + 1].written_ms)), at)
        for at in range(len(deletes) - 1)
        if deletes[at].stage == deletes[at + 1].stage
    ]
    _, at = min(pairs)
    deletes[at : at + 2] = [deletes[at].joined(deletes[at + 1])]
