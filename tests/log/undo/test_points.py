"""Which runs go back together, and which still can."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ebbtide.errors import RequestError
from ebbtide.ledger.undo_points import (
    UNDO_POINTS,
    UndoPoint,
    can_be_undone,
    check_is_noted,
    points_to_follow,
    points_to_undo,
    standing_points,
)
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState

MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)
STATE = PartitionState(
    log_start_offset=3,
    log_end_offset=9,
    first_dirty_offset=3,
    first_unmarked_offset=9,
    segments=(SegmentStart(0, 1), SegmentStart(5, 2)),
)


def point(name: str, hour: int, *partitions: int, job: str = "clean_log") -> UndoPoint:
    """A point of run r<hour>."""
    return UndoPoint(
        point_id=name,
        run_id=f"r{hour}",
        job=job,
        topic="log.a",
        at=MIDNIGHT + timedelta(hours=hour),
        records_snapshot=7,
        states=dict.fromkeys(partitions, STATE),
    )


def undone(hour: int, **ids: list[str]) -> UndoPoint:
    """The points that an undo took back, given as p0=[...]."""
    by_partition = {int(p[1:]): points for p, points in ids.items()}
    at = MIDNIGHT + timedelta(hours=hour)
    return UndoPoint(
        point_id=f"u{hour}", run_id="u", job="undo_run", topic="log.a", at=at, undone=by_partition
    )


NOTED = [point("c", 3, 1), point("a", 1, 0, 1), point("b", 2, 0)]


def ids(points: dict[int, list[UndoPoint]]) -> dict[int, list[str]]:
    return {p: [each.point_id for each in undo_points] for p, undo_points in points.items()}


@pytest.mark.parametrize(
    ("run_id", "going"),
    [
        pytest.param("r1", {0: ["a", "b"], 1: ["a", "c"]}, id="all later ones of its partitions"),
        pytest.param("r2", {0: ["b"]}, id="none of a partition that it left alone"),
        pytest.param("r3", {1: ["c"]}, id="none before it"),
        pytest.param("r9", {}, id="an unknown run takes nothing back"),
    ],
)
def test_a_run_takes_the_later_ones_with_it(run_id: str, going: dict[int, list[str]]) -> None:
    assert ids(dict(points_to_undo(NOTED, run_id))) == going


def test_the_first_of_several_attempts_counts() -> None:
    again = UndoPoint(**{**fields(point("d", 5, 0)), "run_id": "r1"})
    assert ids(dict(points_to_undo([*NOTED, again], "r1")))[0] == ["a", "b", "d"]


def fields(undo_point: UndoPoint) -> dict[str, object]:
    return {name: getattr(undo_point, name) for name in UndoPoint.__dataclass_fields__}


def test_what_went_back_in_one_partition_still_stands_in_others() -> None:
    noted = [*NOTED, undone(4, p0=["a", "b"])]
    assert ids(dict(standing_points(noted))) == {1: ["a", "c"]}
    assert ids(dict(points_to_undo(noted, "r1"))) == {1: ["a", "c"]}
    assert points_to_undo(noted, "r2") == {}


def moved(name: str, hour: int, start: int) -> UndoPoint:
    """A point of partition 0 before a run moved its log start from here."""
    before = replace(STATE, log_start_offset=start)
    return UndoPoint(**{**fields(point(name, hour, 0)), "states": {0: before}})


# By the hours 1, 2 and 3 the replica began at 3, 5 and 5; now it does at 8.
MOVED = [moved("a", 1, 3), moved("b", 2, 5), moved("c", 3, 5)]
NOW = {0: replace(STATE, log_start_offset=8)}


@pytest.mark.parametrize(
    ("run_id", "start", "going"),
    [
        pytest.param("r2", 8, ["b", "c"], id="what the run removed, and later ones"),
        pytest.param("other", 5, ["c"], id="what another run brought beyond the primary's start"),
        pytest.param("other", 4, ["a", "b", "c"], id="as far as that needs"),
        pytest.param("r3", 4, ["a", "b", "c"], id="further than the run's own"),
        pytest.param("other", 0, ["a", "b", "c"], id="as low as it was ever"),
        pytest.param("other", 8, [], id="nothing where it begins no later"),
    ],
)
def test_a_replica_begins_no_later_than_its_primary(
    run_id: str, start: int, going: list[str]
) -> None:
    chosen = points_to_follow(MOVED, run_id, NOW, {0: start})
    assert ids(dict(chosen)).get(0, []) == going


@pytest.mark.parametrize("run_id", ["r1", "other"])
def test_what_an_outrun_replica_held_before_it_began_anew_stays_away(run_id: str) -> None:
    """Between its old end, 9, and its new start there is nothing that could come back."""
    anew = [replace(STATE, log_start_offset=start, log_end_offset=20) for start in (10, 12)]
    noted = [*MOVED, UndoPoint(**{**fields(MOVED[0]), "point_id": "d", "states": {0: anew[0]}})]
    noted[-1] = UndoPoint(**{**fields(noted[-1]), "at": MIDNIGHT + timedelta(hours=9)})
    chosen = points_to_follow(noted, run_id, {0: anew[1]}, {0: 0})
    assert ids(dict(chosen)) == {0: ["d"]}
    assert points_to_follow(MOVED, run_id, {0: anew[0]}, {0: 0}) == {}


def test_a_point_survives_its_row() -> None:
    noted = point("a", 1, 0, 4)
    assert fields(UNDO_POINTS.to_row(UNDO_POINTS.to_cells(noted))) == fields(noted)
    back = undone(2, p0=["a"])
    assert fields(UNDO_POINTS.to_row(UNDO_POINTS.to_cells(back))) == fields(back)


def test_an_unknown_run_names_the_newest_that_can_be_undone() -> None:
    check_is_noted(NOTED, "log.a", "r2")
    with pytest.raises(RequestError, match=r"found r9. Runs that can: r3, r2, r1$"):
        check_is_noted(NOTED, "log.a", "r9")
    with pytest.raises(RequestError, match=r"Runs that can: none$"):
        check_is_noted([], "log.a", "r1")


def test_an_erasure_stands_in_the_way() -> None:
    assert can_be_undone(NOTED)
    assert not can_be_undone([*NOTED, point("e", 4, 0, job="erase_keys")])
