"""The two dates of a deletion: out of the table, and off the disk; or that it was taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ebbtide.lake.reader import LakeTopic
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.ledger.undo_points import UndoPoint, standing_points
from ebbtide.moments import after, to_datetime
from ebbtide.orchestration.outcome import cause_of
from ebbtide.state.topic_state import max_snapshot_age_ms

JOB = "expire_snapshots"
NIGHTLY = "nightly_retention"
# How far back the report and the page look.
HISTORY = timedelta(days=35)
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The run that took a deletion back, when, and in which partitions if not in all of its own."""

    run_id: str
    at: datetime
    partitions: Sequence[int] = ()

    def in_words(self) -> str:
        """Format it as the end of a sentence."""
        only = f" in {self._named()} only" if self.partitions else ""
        return f"run {self.run_id} took that back on {self.at:%Y-%m-%d %H:%M} UTC{only}"

    def _named(self) -> str:
        what = "partition" if len(self.partitions) == 1 else "partitions"
        return f"{what} {', '.join(map(str, self.partitions))}"


@dataclass(frozen=True, slots=True)
class DeletionDates:
    """The newest deletion of a topic, by the clock of the machines that commit.

    `off_disk` is when an expire_snapshots had freed the last file that may hold its rows, None
    until then. `due` is from when on one does that, None while there is no such date; `wait` is
    then the one thing that it waits for. One that was taken back everywhere has no such dates;
    `standing` is then the newest that was not.
    """

    rows: int
    out_of_table: datetime
    off_disk: datetime | None = None
    due: datetime | None = None
    wait: str | None = None
    taken_back: TakenBack | None = None
    standing: DeletionDates | None = None

    def in_words(self) -> str:
        """Format both dates, or what the second one waits for, and what an undo took back."""
        if self.taken_back is None:
            return self._dates()
        if self.taken_back.partitions:
            undone = self.taken_back.in_words()
            return f"{self._dates()} {undone[0].upper()}{undone[1:]}."
        out = f"{self._out()}; {self.taken_back.in_words()}."
        return out if self.standing is None else f"{out} {self.standing.in_words()}"

    def _out(self) -> str:
        return f"{self.rows:,} records left the table on {self.out_of_table:%Y-%m-%d %H:%M} UTC"

    def _dates(self) -> str:
        out = self._out()
        if self.off_disk:
            return f"{out} and the disk by {_full_minute(self.off_disk)}."
        if self.wait:
            return f"{out}; {self.wait}."
        assert self.due is not None
        return (
            f"{out}; they leave the disk with the first expire_snapshots after "
            f"{_full_minute(self.due)}."
        )


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far a deletion has come by the reports of expire_snapshots since then.

    `last` is the newest report, `dated` the first that has a date. The newest snapshot that needs
    an old file is that one's: a file that is dropped later never held the deletion's rows.
    """

    last: LeftOnDisk | None = None
    last_at: datetime | None = None
    dated: LeftOnDisk | None = None
    off_disk: datetime | None = None

    def after(self, run: Run, left: LeftOnDisk) -> _Progress:
        """Return the progress once `run` has reported."""
        dated = self.dated
        if left.old_files_refs:
            dated = None  # from a branch, later snapshots may take old files over
        elif dated is None and left.has_date:
            dated = left
        is_off = dated is not None and left.has_expired(dated.old_files_ms)
        return _Progress(left, run.ended, dated, run.ended if is_off else None)


def newest_deletion(
    topic: LakeTopic, runs: Sequence[Run], clock: datetime, points: Sequence[UndoPoint] = ()
) -> DeletionDates | None:
    """Return the newest deletion in `runs`, oldest first; None when nothing was ever deleted.

    `points` are the topic's undo points: they tell which deletions were taken back.
    """
    removals = [run for run in runs if run.rows_removed and run.job != JOB]
    newest: DeletionDates | None = None
    for removal in reversed(removals):
        undone = _taken_back(removal, points)
        if undone is None or undone.partitions:
            dates = replace(_dates(topic, runs, clock, removal), taken_back=undone)
            return dates if newest is None else replace(newest, standing=dates)
        if newest is None:
            newest = DeletionDates(removal.rows_removed, removal.ended, taken_back=undone)
    return newest


def _taken_back(removal: Run, points: Sequence[UndoPoint]) -> TakenBack | None:
    """Return the newest undo of what a run's job removed; None where there is none."""
    own = {p.point_id for p in points if (p.run_id, p.job) == (removal.run_id, removal.job)}
    undos = [point for point in points if any(own & set(ids) for ids in point.undone.values())]
    if not undos:
        return None
    undo = max(undos, key=lambda point: point.at)
    standing = standing_points(points).values()
    if not any(
        point.point_id in own for partition_points in standing for point in partition_points
    ):
        return TakenBack(undo.run_id, undo.at)
    back = {p for undo_point in undos for p, ids in undo_point.undone.items() if own & set(ids)}
    return TakenBack(undo.run_id, undo.at, sorted(back))


def _dates(topic: LakeTopic, runs: Sequence[Run], clock: datetime, removal: Run) -> DeletionDates:
    """Return when a run's rows left the table, and when they leave the disk."""
    rows, out = removal.rows_removed, removal.ended
    progress = _progress(runs, out)
    if progress.off_disk:
        return DeletionDates(rows, out, off_disk=progress.off_disk)
    due = None
    age_ms = max_snapshot_age_ms(topic.properties)
    expires_ms = None if progress.dated is None else progress.dated.expires_ms(age_ms)
    if expires_ms is not None:
        due = to_datetime(expires_ms)
        if due > clock:
            return DeletionDates(rows, out, due=due)
    wait = _hindrance(topic, runs, progress.last_at or out) or _wait(topic, progress, due)
    return DeletionDates(rows, out, due=due, wait=wait)


def _progress(runs: Sequence[Run], removed: datetime) -> _Progress:
    progress = _Progress()
    for run, left in _reports(runs):
        if run.started >= removed and progress.off_disk is None:
            progress = progress.after(run, left)
    return progress


def _reports(runs: Sequence[Run]) -> Iterator[tuple[Run, LeftOnDisk]]:
    """Yield each expire_snapshots run with its report; runs without a report are left out."""
    for run in runs:
        left = LeftOnDisk.of_result(run.topic_result) if run.job == JOB else None
        if left is not None:
            yield run, left


def _wait(topic: LakeTopic, progress: _Progress, due: datetime | None) -> str:
    """Describe what the topic waits for where nothing hinders the next expire_snapshots."""
    if progress.last is None:
        return "the next expire_snapshots tells when they leave the disk"
    if due is not None:
        return f"they leave the disk with the next expire_snapshots, due since {_full_minute(due)}"
    return progress.last.wait_in_words(topic.config.rewrite_deleted_ratio)


def _hindrance(topic: LakeTopic, runs: Sequence[Run], since: datetime) -> str | None:
    """Return why no expire_snapshots has succeeded since then, as far as runs tell."""
    if topic.is_adopted:
        return (
            "others write this table, and the records leave the disk when its owner expires its "
            "snapshots"
        )
    if not topic.config.is_enabled:
        return "no night takes the topic, since ebbtide.enabled is false"
    of_night = [run for run in runs if run.job == JOB or run.dag == NIGHTLY]
    newest_of_job = {run.job: run for run in of_night}
    failed = [run for run in newest_of_job.values() if not run.succeeded and run.ended >= since]
    if not failed:
        return None
    newest = max(failed, key=lambda run: run.ended)
    first = _first_failure([run for run in of_night if run.job == newest.job])
    return (
        f"no expire_snapshots gets to their files: {newest.job} has failed since "
        f"{first.started:%Y-%m-%d %H:%M} UTC ({cause_of(newest)})"
    )


def _first_failure(runs: Sequence[Run]) -> Run:
    """Return the first of the consecutive failures that end a job's attempts."""
    first = runs[-1]
    for run in reversed(runs):
        if run.succeeded:
            break
        first = run
    return first


def _full_minute(when: datetime) -> str:
    """Format the first full minute at or after a time, so that no date is promised too early."""
    start = when.replace(second=0, microsecond=0)
    return f"{start if start == when else after(start, MINUTE_MS):%Y-%m-%d %H:%M} UTC"
