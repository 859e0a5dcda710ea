from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from ebbtide.lake.reader import LakeTopic, Run
from ebbtide.log.state.left_on_disk import LeftOnDisk
from ebbtide.log.undo.points import UndoPoint
from ebbtide.orchestration.deletions import newest_deletion
from tests.lake_sandbox import MIDNIGHT, state_of

OUT = "3 records left the table on 2026-01-02 00:00 UTC"
UNKNOWN = "the next expire_snapshots tells when they leave the disk"
DUE = "they leave the disk with the first expire_snapshots after 2026-01-07 00:00 UTC"
OVERDUE = "they leave the disk with the next expire_snapshots, due since 2026-01-07 00:00 UTC"
TAG = "the tag audit of the records table keeps old files on the disk"
SHARE = (
    "2 deleted rows stay in their files until 30% of a file's rows are deleted "
    "(ebbtide.rewrite.deleted.share; 0 means at the first)"
)
ACTIVE = "2 deleted rows stay in files of active segments until these are closed"
NEXT = "2 deleted rows stay in files that the next expire_snapshots rewrites"


def on_day(days: float) -> datetime:
    return MIDNIGHT + timedelta(days=days)


def ms(days: float) -> int:
    return int(on_day(days).timestamp() * 1000)


def run_of(job: str, days: float, rows_removed: int = 0, **given: Any) -> Run:
    when = on_day(days)
    error: str | None = given.get("error")
    return Run(
        run_id=given.get("run_id", "r"),
        dag=given.get("dag", "nightly_retention"),
        task=job,
        job=job,
        topic="log.a",
        started=given.get("started", when),
        ended=when,
        now=when,
        status="succeeded" if error is None else "failed",
        error=error,
        error_class=None if error is None else "StateError",
        is_transient=False,
        result={"topic": given.get("topic", {})},
        rows_removed=rows_removed,
        files_removed=0,
        bytes_removed=0,
        snapshot_ids=(),
    )


def report(days: float, error: str | None = None, **left: Any) -> Run:
    """An expire_snapshots that reports what is left on the disk."""
    return run_of("expire_snapshots", days, topic=LeftOnDisk(**left).result(), error=error)


CLEANED = run_of("clean_log", 0, rows_removed=3)
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


@pytest.mark.parametrize(
    ("runs", "days", "expected"),
    [
        pytest.param([CLEANED], 1, f"{OUT}; {UNKNOWN}.", id="nothing reported yet"),
        pytest.param(
            [run_of("expire_segments", -3, rows_removed=9), CLEANED],
            1,
            f"{OUT}; {UNKNOWN}.",
            id="the newest deletion counts",
        ),
        pytest.param(
            [CLEANED, run_of("expire_snapshots", 6, topic={"deleted_rows_in_files": 0})],
            7,
            f"{OUT}; {UNKNOWN}.",
            id="a report of an older version tells nothing",
        ),
        pytest.param(
            [report(-1), CLEANED], 9, f"{OUT}; {UNKNOWN}.", id="a report from before tells nothing"
        ),
        pytest.param([CLEANED, report(1, **YOUNG)], 1, f"{OUT}; {DUE}.", id="snapshots are young"),
        pytest.param([CLEANED, report(1, **YOUNG)], 6, f"{OUT}; {OVERDUE}.", id="the date is past"),
        pytest.param(
            [CLEANED, report(1, **YOUNG), report(6, **YOUNG)],
            6,
            f"{OUT}; {OVERDUE}.",
            id="past its date a snapshot is still there",
        ),
        pytest.param(
            [CLEANED, report(1)],
            1,
            f"{OUT} and the disk by 2026-01-03 00:00 UTC.",
            id="no snapshot needs an old file",
        ),
        pytest.param(
            [CLEANED, report(1, **YOUNG), report(6, oldest_snapshot_ms=ms(3))],
            6,
            f"{OUT} and the disk by 2026-01-08 00:00 UTC.",
            id="the last snapshot with them has expired",
        ),
        pytest.param(
            [
                CLEANED,
                report(1, **YOUNG),
                report(6, oldest_snapshot_ms=ms(3), old_files_ms=ms(5), rows_below_share=1),
            ],
            6,
            f"{OUT} and the disk by 2026-01-08 00:00 UTC.",
            id="files that are dropped later never held them",
        ),
        pytest.param(
            [CLEANED, report(1, rows_below_share=2), report(5, **YOUNG | {"old_files_ms": ms(4)})],
            5,
            f"{OUT}; {DUE.replace('01-07', '01-11')}.",
            id="the run that rewrites a file begins a snapshot's age",
        ),
        pytest.param(
            [CLEANED, report(1, rows_below_share=2)], 9, f"{OUT}; {SHARE}.", id="below the share"
        ),
        pytest.param(
            [CLEANED, report(1, rows_in_active_segments=2)], 9, f"{OUT}; {ACTIVE}.", id="active"
        ),
        pytest.param([CLEANED, report(1, rows_due=2)], 1, f"{OUT}; {NEXT}.", id="too many files"),
        pytest.param([CLEANED, report(9, **TAGGED)], 9, f"{OUT}; {TAG}.", id="a tag holds them"),
        pytest.param(
            [CLEANED, report(1, **YOUNG), report(6, **TAGGED), report(7, **YOUNG)],
            7,
            f"{OUT}; {OVERDUE}.",
            id="a tag is dropped and its snapshot has to expire",
        ),
    ],
)
def test_both_dates(runs: list[Run], days: float, expected: str) -> None:
    assert words(runs, days) == expected


def failure(job: str, days: float, **given: Any) -> Run:
    return run_of(job, days, error="expected x", **given)


@pytest.mark.parametrize(
    ("runs", "job"),
    [
        pytest.param([failure("expire_snapshots", d) for d in (2, 6, 8)], "expire_snapshots"),
        pytest.param([failure("clean_log", d) for d in (2, 6, 8)], "clean_log", id="an earlier"),
        pytest.param(
            [failure("mark_tombstones", 1.5), failure("clean_log", 2), failure("clean_log", 8)],
            "clean_log",
            id="the last of several",
        ),
    ],
)
def test_past_its_date_the_job_that_fails_is_named(runs: list[Run], job: str) -> None:
    reported = [CLEANED, report(1, **YOUNG)]
    assert words([*reported, *runs], 4) == f"{OUT}; {DUE}."
    assert words([*reported, *runs], 9) == (
        f"{OUT}; no expire_snapshots gets to their files: {job} has failed since "
        "2026-01-04 00:00 UTC (StateError: expected x)."
    )


def test_a_job_that_fails_by_hand_hinders_no_night() -> None:
    by_hand = failure("delete_records", 2, dag="delete_records")
    assert words([CLEANED, report(1, rows_due=2), by_hand], 9) == f"{OUT}; {NEXT}."


def test_a_failure_that_was_mended_hinders_no_night() -> None:
    runs = [CLEANED, failure("clean_log", 1), run_of("clean_log", 2), report(2, rows_due=2)]
    assert words(runs, 9) == f"{OUT}; {NEXT}."


def test_a_rewrite_that_fails_is_the_failure_although_its_run_reports() -> None:
    assert "expire_snapshots has failed since 2026-01-03 00:00 UTC" in words(
        [CLEANED, report(1, rows_due=2, error="the disk is full")], 1
    )


def test_a_topic_that_no_night_takes_says_so() -> None:
    disabled = {"ebbtide.enabled": "false"}
    assert words([CLEANED, report(1, **YOUNG)], 9, disabled) == (
        f"{OUT}; no night takes the topic, since ebbtide.enabled is false."
    )


def test_a_run_that_began_before_the_deletion_proves_nothing() -> None:
    expiry = run_of("expire_snapshots", 1, started=on_day(-1), topic=LeftOnDisk().result())
    assert words([CLEANED, expiry]) == f"{OUT}; {UNKNOWN}."


@pytest.mark.parametrize(
    ("undo_until_ms", "date"),
    [
        pytest.param(None, "2026-01-02 01:00", id="the age alone"),
        pytest.param(ms(0) + 1800000, "2026-01-02 01:00", id="the age, which is longer"),
        pytest.param(ms(0) + 7200000, "2026-01-02 02:00", id="the time of an undo"),
    ],
)
def test_the_longer_of_age_and_undo_counts(undo_until_ms: int | None, date: str) -> None:
    hour = {"history.expire.max-snapshot-age-ms": "3600000"}
    reported = report(0, **YOUNG, undo_until_ms=undo_until_ms)
    assert words([CLEANED, reported], 0, hour).endswith(f"after {date} UTC.")


def test_a_date_is_not_named_too_early() -> None:
    young = YOUNG | {"old_files_ms": ms(0) + 1}
    assert words([CLEANED, report(0, **young)]).endswith("after 2026-01-07 00:01 UTC.")


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
BACK = "run back took that back on 2026-01-02 12:00 UTC"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        pytest.param([point("r", 0, 0, 1)], f"{OUT}; {UNKNOWN}.", id="nothing was taken back"),
        pytest.param(
            [point("r", 0, 0, 1), point("back", 0.5, p0=["r"], p1=["r"])],
            f"{OUT}; {BACK}. 9 records left the table on 2026-01-01 00:00 UTC; {UNKNOWN}.",
            id="the newest that stands comes after one that was taken back",
        ),
        pytest.param(
            [point("r", 0, 0, 1), point("back", 0.5, p0=["r"])],
            f"{OUT}; {UNKNOWN}. R{BACK[1:]} in partition 0 only.",
            id="in one partition only",
        ),
        pytest.param(
            [point("r", 0, 0, 1), point("b", 0.1, p0=["r"]), point("back", 0.5, p1=["r"])],
            f"{OUT}; {BACK}. 9 records left the table on 2026-01-01 00:00 UTC; {UNKNOWN}.",
            id="by two undos",
        ),
        pytest.param(
            [
                *(point("earlier", -1, 0), point("r", 0, 0)),
                point("back", 0.5, p0=["earlier", "r"]),
            ],
            f"{OUT}; {BACK}.",
            id="all were taken back",
        ),
        pytest.param(
            [point("earlier", -1, 0), point("back", -0.5, p0=["earlier"]), point("r", 0, 0)],
            f"{OUT}; {UNKNOWN}.",
            id="an older one was taken back",
        ),
    ],
)
def test_what_was_taken_back_says_so(points: list[UndoPoint], expected: str) -> None:
    assert words([EARLIER, CLEANED], points=points) == expected


def test_snapshots_that_never_expire_have_a_date_too() -> None:
    age = {"history.expire.max-snapshot-age-ms": str(2**63 - 1)}
    told = words([CLEANED, report(1, **YOUNG)], properties=age)
    assert told == (
        f"{OUT}; they leave the disk with the first expire_snapshots after 9999-12-31 23:59 UTC."
    )
