from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from ebbtide.lake.reader import LakeTopic
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.orchestration.deletions import newest_deletion
from tests import rows
from tests.lake_sandbox import MIDNIGHT, state_of

OUT = "3 records were removed from the table on 2026-01-02 00:00 UTC"
UNKNOWN = "the next expire_snapshots reports when they are off the disk"
DUE = "the first expire_snapshots after 2026-01-07 00:00 UTC frees their files"
OVERDUE = "the next expire_snapshots frees their files, due since 2026-01-07 00:00 UTC"
TAG = "the tag audit of the records table needs old files"
SHARE = (
    "2 deleted rows are in files with less than 30% deleted rows, which are not rewritten yet "
    "(ebbtide.rewrite.deleted.ratio; 0: rewritten at the first deleted row)"
)
ACTIVE = "2 deleted rows are in files of active segments, which are rewritten once they are closed"
NEXT = "2 deleted rows are in files that the next expire_snapshots rewrites"


def on_day(days: float) -> datetime:
    return MIDNIGHT + timedelta(days=days)


def ms(days: float) -> int:
    return int(on_day(days).timestamp() * 1000)


def run_of(job: str, days: float, rows_removed: int = 0, **given: Any) -> Run:
    error_class = "StateError" if given.get("error") else None
    fields = {"run_id": "r", "rows_removed": rows_removed, "error_class": error_class}
    return rows.run(job, on_day(days), **{**fields, **given})


def report(days: float, error: str | None = None, **left: Any) -> Run:
    """An expire_snapshots that reports what is left on the disk."""
    return run_of(
        "expire_snapshots", days, result={"topic": LeftOnDisk(**left).result()}, error=error
    )


CLEANED = run_of("clean_log", 0, rows_removed=3)
FAILED = {"error": "expected x"}
# Snapshots need an old file until that of midnight expires.
YOUNG = {"oldest_snapshot_ms": ms(-4), "old_files_ms": ms(0)}
TAGGED = {"old_files_ms": ms(-9), "old_files_refs": {"audit": "tag"}}


def words(
    runs: list[Run],
    days: float = 1,
    properties: dict[str, str] | None = None,
    points: Sequence[UndoPoint] = (),
) -> str:
    deletion = newest_deletion(LakeTopic("log.a", properties or {}), runs, on_day(days), points)
    assert deletion is not None
    return deletion.in_words()


NOTHING_LEFT = {"topic": LeftOnDisk().result()}
LATER = {"oldest_snapshot_ms": ms(3)}
REWRITTEN = YOUNG | {"old_files_ms": ms(4)}
OLD_REPORT = run_of("expire_snapshots", 6, result={"topic": {"deleted_rows_in_files": 0}})
BEFORE = run_of("expire_segments", -3, rows_removed=9)
OFF = ", and were off the disk by 2026-01-0{} 00:00 UTC."
# Runs, the day of the look, and how the sentence goes on.
DATES = {
    "nothing reported yet": ([CLEANED], 1, f"; {UNKNOWN}."),
    "the newest deletion counts": ([BEFORE, CLEANED], 1, f"; {UNKNOWN}."),
    "a report of an older version tells nothing": ([CLEANED, OLD_REPORT], 7, f"; {UNKNOWN}."),
    "a report from before tells nothing": ([report(-1), CLEANED], 9, f"; {UNKNOWN}."),
    "snapshots are young": ([CLEANED, report(1, **YOUNG)], 1, f"; {DUE}."),
    "the date is past": ([CLEANED, report(1, **YOUNG)], 6, f"; {OVERDUE}."),
    "past its date a snapshot is still there": (
        [CLEANED, report(1, **YOUNG), report(6, **YOUNG)],
        6,
        f"; {OVERDUE}.",
    ),
    "no snapshot needs an old file": ([CLEANED, report(1)], 1, OFF.format(3)),
    "the last snapshot with them has expired": (
        [CLEANED, report(1, **YOUNG), report(6, **LATER)],
        6,
        OFF.format(8),
    ),
    "files that are dropped later never held them": (
        [CLEANED, report(1, **YOUNG), report(6, **LATER, old_files_ms=ms(5), rows_below_share=1)],
        6,
        OFF.format(8),
    ),
    "what is outside the snapshots is named until it is gone": (
        [CLEANED, report(1, still_in={"object_versions": 1200, "held_copies": 2})],
        1,
        "; still in: 1,200 noncurrent versions of objects, which the bucket's lifecycle deletes, "
        "2 copies for holds.",
    ),
    "what was outside the snapshots is gone": (
        [CLEANED, report(1, still_in={"waiting_files": 1}), report(6)],
        6,
        OFF.format(8),
    ),
    "the run that rewrites a file begins a snapshot's age": (
        [CLEANED, report(1, rows_below_share=2), report(5, **REWRITTEN)],
        5,
        f"; {DUE.replace('01-07', '01-11')}.",
    ),
    "below the share": ([CLEANED, report(1, rows_below_share=2)], 9, f"; {SHARE}."),
    "active": ([CLEANED, report(1, rows_in_active_segments=2)], 9, f"; {ACTIVE}."),
    "too many files": ([CLEANED, report(1, rows_due=2)], 1, f"; {NEXT}."),
    "a tag holds them": ([CLEANED, report(9, **TAGGED)], 9, f"; {TAG}."),
    "a tag is dropped and its snapshot has to expire": (
        [CLEANED, report(1, **YOUNG), report(6, **TAGGED), report(7, **YOUNG)],
        7,
        f"; {OVERDUE}.",
    ),
    "a job that fails by hand hinders no night": (
        [CLEANED, report(1, rows_due=2), run_of("delete_records", 2, **FAILED, dag="by_hand")],
        9,
        f"; {NEXT}.",
    ),
    "a failure that was mended hinders no night": (
        [CLEANED, run_of("clean_log", 1, **FAILED), run_of("clean_log", 2), report(2, rows_due=2)],
        9,
        f"; {NEXT}.",
    ),
    "a run that began before the deletion proves nothing": (
        [
            CLEANED,
            run_of(
                "expire_snapshots", 1, started=on_day(-1), result={"topic": LeftOnDisk().result()}
            ),
        ],
        1,
        f"; {UNKNOWN}.",
    ),
}


@pytest.mark.parametrize(("runs", "days", "expected"), DATES.values(), ids=DATES)
def test_both_dates(runs: list[Run], days: float, expected: str) -> None:
    assert words(runs, days) == f"{OUT}{expected}"


@pytest.mark.parametrize(
    ("runs", "job"),
    [
        ([("expire_snapshots", 2), ("expire_snapshots", 6)], "expire_snapshots"),
        ([("clean_log", 2), ("clean_log", 6), ("clean_log", 8)], "clean_log"),
        ([("mark_tombstones", 1.5), ("clean_log", 2), ("clean_log", 8)], "clean_log"),
    ],
)
def test_past_its_date_the_job_that_fails_is_named(runs: list[tuple[str, float]], job: str) -> None:
    told = [CLEANED, report(1, **YOUNG), *(run_of(job, days, **FAILED) for job, days in runs)]
    assert words(told, 4) == f"{OUT}; {DUE}."
    assert words(told, 9) == (
        f"{OUT}; expire_snapshots cannot free their files: {job} has failed since "
        "2026-01-04 00:00 UTC (StateError: expected x)."
    )


def test_a_rewrite_that_fails_is_the_failure_although_its_run_reports() -> None:
    assert "expire_snapshots has failed since 2026-01-03 00:00 UTC" in words(
        [CLEANED, report(1, rows_due=2, error="the disk is full")], 1
    )


def test_a_topic_that_no_night_takes_says_so() -> None:
    disabled = {"ebbtide.enabled": "false"}
    assert words([CLEANED, report(1, **YOUNG)], 9, disabled) == (
        f"{OUT}; nightly runs skip the topic, because ebbtide.enabled=false."
    )


@pytest.mark.parametrize(
    ("undo_until_ms", "date"),
    [(None, "01:00"), (ms(0) + 1_800_000, "01:00"), (ms(0) + 7_200_000, "02:00")],
)
def test_the_longer_of_age_and_undo_counts(undo_until_ms: int | None, date: str) -> None:
    hour = {"history.expire.max-snapshot-age-ms": "3600000"}
    reported = report(0, **YOUNG, undo_until_ms=undo_until_ms)
    assert words([CLEANED, reported], 0, hour).endswith(
        f"after 2026-01-02 {date} UTC frees their files."
    )


def test_a_date_is_not_named_too_early() -> None:
    young = YOUNG | {"old_files_ms": ms(0) + 1}
    assert words([CLEANED, report(0, **young)]).endswith(
        "after 2026-01-07 00:01 UTC frees their files."
    )


def test_nothing_was_deleted() -> None:
    expired = run_of("expire_snapshots", 0, rows_removed=1)
    topic = LakeTopic("log.a", {})
    assert newest_deletion(topic, [run_of("clean_log", 0), expired], MIDNIGHT) is None


def point(run_id: str, days: float, *partitions: int, **undone: list[str]) -> UndoPoint:
    """What a run noted of partitions before it removed; or, of an undo, what it took back."""
    return UndoPoint(
        point_id=run_id,
        run_id=run_id,
        job="undo_run" if undone else "clean_log",
        topic="log.a",
        at=on_day(days),
        states=dict.fromkeys(partitions, state_of()),
        undone={int(p.removeprefix("p")): ids for p, ids in undone.items()},
    )


EARLIER = run_of("clean_log", -1, rows_removed=9, run_id="earlier")
BACK = "run back undid the removal on 2026-01-02 12:00 UTC"


OLDER = f"{OUT}; {BACK}. 9 records were removed from the table on 2026-01-01 00:00 UTC; {UNKNOWN}."
UNDOS = {
    "nothing was taken back": ([point("r", 0, 0, 1)], f"{OUT}; {UNKNOWN}."),
    "the newest that stands comes after one that was taken back": (
        [point("r", 0, 0, 1), point("back", 0.5, p0=["r"], p1=["r"])],
        OLDER,
    ),
    "in one partition only": (
        [point("r", 0, 0, 1), point("back", 0.5, p0=["r"])],
        f"{OUT}; {UNKNOWN}. R{BACK[1:]}, in partition 0 only.",
    ),
    "by two undos": (
        [point("r", 0, 0, 1), point("b", 0.1, p0=["r"]), point("back", 0.5, p1=["r"])],
        OLDER,
    ),
    "all were taken back": (
        [point("earlier", -1, 0), point("r", 0, 0), point("back", 0.5, p0=["earlier", "r"])],
        f"{OUT}; {BACK}.",
    ),
    "an older one was taken back": (
        [point("earlier", -1, 0), point("back", -0.5, p0=["earlier"]), point("r", 0, 0)],
        f"{OUT}; {UNKNOWN}.",
    ),
}


@pytest.mark.parametrize(("points", "expected"), UNDOS.values(), ids=UNDOS)
def test_what_was_taken_back_says_so(points: list[UndoPoint], expected: str) -> None:
    assert words([EARLIER, CLEANED], points=points) == expected


def test_snapshots_that_never_expire_have_a_date_too() -> None:
    age = {"history.expire.max-snapshot-age-ms": str(2**63 - 1)}
    told = words([CLEANED, report(1, **YOUNG)], properties=age)
    assert told == (
        f"{OUT}; the first expire_snapshots after 9999-12-31 23:59 UTC frees their files."
    )
