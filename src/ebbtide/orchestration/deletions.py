"""The two dates of a removal, out of the table and off the disk, and whether it was undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
# How far back the report and the pages read `runs`.
HISTORY = timedelta(days=35)
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The undo of a removal."""

    run_id: str  # of the undo
    at: datetime
    partitions: Sequence[int] = ()  # empty: all partitions of the removal

    def in_words(self) -> str:
        """Format the undo as a clause."""
        only = f", in {self._named()} only" if self.partitions else ""
        return f"run {self.run_id} undid the removal on {self.at:%Y-%m-%d %H:%M} UTC{only}"

    def _named(self) -> str:
        what = "partition" if len(self.partitions) == 1 else "partitions"
        return f"{what} {', '.join(map(str, self.partitions))}"


@dataclass(frozen=True, slots=True)
class DeletionDates:
    """The newest removal of a topic. Times are by the clock of the machines that commit."""

    rows: int
    out_of_table: datetime
    off_disk: datetime | None = None  # when expire_snapshots had freed the last file with the rows
    due: datetime | None = None  # from then on, an expire_snapshots frees that file; None: unknown
    wait: str | None = None  # what the removal waits for, if `due` is unknown or has passed
    taken_back: TakenBack | None = None  # a removal that was undone in all partitions has no dates
    standing: DeletionDates | None = None  # of an undone removal: the newest that was not undone

    def in_words(self) -> str:
        """Format both dates, or what the second date waits for, and the undo if there is one."""
        if self.taken_back is None:
            return self._dates()
        if self.taken_back.partitions:
            undone = self.taken_back.in_words()
            return f"{self._dates()} {undone[0].upper()}{undone[1:]}."
        out = f"{self._out()}; {self.taken_back.in_words()}."
        return out if self.standing is None else f"{out} {self.standing.in_words()}"

    def _out(self) -> str:
        out = f"{self.out_of_table:%Y-%m-%d %H:%M} UTC"
        return f"{self.rows:,} records were removed from the table on {out}"

    def _dates(self) -> str:
        out = self._out()
        if self.off_disk:
            return f"{out}, and were off the disk by {full_minute(self.off_disk)}."
        if self.wait:
            return f"{out}; {self.wait}."
        assert self.due is not None
        due = full_minute(self.due)
        return f"{out}; the first expire_snapshots after {due} frees their files."


@dataclass(frozen=True, slots=True)
class _Progress:
    """Progress of a removal towards "off the disk", from later reports of expire_snapshots."""

    last: LeftOnDisk | None = None  # the newest report
    last_at: datetime | None = None
    # The first report with a date. Its newest snapshot that needs an old file decides: a file that
    # is dropped later never had the removed rows.
    dated: LeftOnDisk | None = None
    off_disk: datetime | None = None
    still_in: str = ""  # other places, once no snapshot has the rows any more

    def after(self, run: Run, left: LeftOnDisk) -> _Progress:
        """Return the progress after the report of `run`."""
        dated = self.dated
        if left.old_files_refs:
            dated = None  # later snapshots may take old files from a branch
        elif dated is None and left.has_date:
            dated = left
        is_freed = dated is not None and left.has_expired(dated.old_files_ms)
        still_in = left.still_in_words if is_freed else ""
        off_disk = run.ended if is_freed and not still_in else None
        return _Progress(left, run.ended, dated, off_disk, still_in)


def newest_deletion(
    topic: LakeTopic, runs: Sequence[Run], clock: datetime, points: Sequence[UndoPoint] = ()
) -> DeletionDates | None:
    """Return the newest removal in `runs` (oldest first), or None if nothing was removed.

    `points` are the topic's undo points: they show which removals were undone.
    """
    removals = [run for run in runs if run.rows_removed and run.job != JOB]
    newest: DeletionDates | None = None
    for removal in reversed(removals):
        undone = _taken_back(removal, points)
        if undone is None or undone.partitions:
            dates = dates_of(topic, runs, clock, removal.rows_removed, removal.ended)
            dates = replace(dates, taken_back=undone)
            return dates if newest is None else replace(newest, standing=dates)
        if newest is None:
            newest = DeletionDates(removal.rows_removed, removal.ended, taken_back=undone)
    return newest


def _taken_back(removal: Run, points: Sequence[UndoPoint]) -> TakenBack | None:
    """Return the newest undo of a removal, or None if no partition was undone."""
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


def out_of_table(runs: Sequence[Run], tombstones: Mapping[int, int]) -> datetime | None:
    """Return when cleaner rounds had covered these tombstones, or None if one is not yet covered.

    `tombstones` are offsets by partition. A round that covers a tombstone removes the key's older
    records.
    """
    ends = [
        next((run.ended for run in runs if _cleaned_to(run, partition) > offset), None)
        for partition, offset in tombstones.items()
    ]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _cleaned_to(run: Run, partition: int) -> int:
    return int(run.partitions.get(partition, {}).get("cleaned_to", 0)) if run.succeeded else 0


def dates_of(
    topic: LakeTopic, runs: Sequence[Run], clock: datetime, rows: int, out: datetime
) -> DeletionDates:
    """Return the dates of rows that left the table at `out`, from later expire_snapshots runs."""
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
    """Yield each expire_snapshots run that has a report, with that report."""
    for run in runs:
        left = LeftOnDisk.of_result(run.topic_result) if run.job == JOB else None
        if left is not None:
            yield run, left


def _wait(topic: LakeTopic, progress: _Progress, due: datetime | None) -> str:
    """Describe what a removal waits for if nothing hinders the next expire_snapshots."""
    if progress.last is None:
        return "the next expire_snapshots reports when they are off the disk"
    if progress.still_in:
        return f"still in: {progress.still_in}"
    if due is not None:
        return f"the next expire_snapshots frees their files, due since {full_minute(due)}"
    return progress.last.wait_in_words(topic.config.rewrite_deleted_ratio)


def _hindrance(topic: LakeTopic, runs: Sequence[Run], since: datetime) -> str | None:
    """Return why no expire_snapshots has succeeded since then, or None if no run shows a reason."""
    if topic.is_adopted:
        return "they are off the disk once the owner of this adopted table expires its snapshots"
    if not topic.config.is_enabled:
        return "nightly runs skip the topic, because ebbtide.enabled=false"
    of_night = [run for run in runs if run.job == JOB or run.dag == NIGHTLY]
    newest_of_job = {run.job: run for run in of_night}
    failed = [run for run in newest_of_job.values() if not run.succeeded and run.ended >= since]
    if not failed:
        return None
    newest = max(failed, key=lambda run: run.ended)
    first = _first_failure([run for run in of_night if run.job == newest.job])
    return (
        f"expire_snapshots cannot free their files: {newest.job} has failed since "
        f"{first.started:%Y-%m-%d %H:%M} UTC ({cause_of(newest)})"
    )


def _first_failure(runs: Sequence[Run]) -> Run:
    """Return the first failure since a job's last success."""
    first = runs[-1]
    for run in reversed(runs):
        if run.succeeded:
            break
        first = run
    return first


def full_minute(when: datetime) -> str:
    """Format a time, rounded up to a full minute so that no date is too early."""
    start = when.replace(second=0, microsecond=0)
    return f"{start if start == when else after(start, MINUTE_MS):%Y-%m-%d %H:%M} UTC"
