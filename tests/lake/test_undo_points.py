"""Airflow's side lists which runs of a topic can be undone, and until when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.lake.own_tables import UndoableRun, undoable_runs
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.runner.undo_points import append_point
from tests.lake_sandbox import MIDNIGHT, LakeSandbox, state_of

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def noted(lake: LakeSandbox) -> LakeSandbox:
    lake.topic("log.a")
    for number, (run_id, job, partitions) in enumerate(
        [("r1", "clean_log", (0, 1)), ("r1", "expire_segments", (0,)), ("r2", "clean_log", (1,))]
    ):
        point = UndoPoint(
            point_id=f"p{number}",
            run_id=run_id,
            job=job,
            topic="log.a",
            at=MIDNIGHT + number * HOUR,
            states=dict.fromkeys(partitions, state_of()),
        )
        append_point(lake.session, point, Step.UNDO_POINT)
    return lake


def test_runs_newest_first_with_those_that_go_back_with_them(noted: LakeSandbox) -> None:
    until = MIDNIGHT + 3 * DAY
    jobs = ("clean_log", "expire_segments")
    with open_lake() as lake:
        assert undoable_runs(lake, "log.a", MIDNIGHT + DAY) == [
            UndoableRun("r2", MIDNIGHT + 2 * HOUR, until + 2 * HOUR, jobs[:1], (1,), ()),
            UndoableRun("r1", MIDNIGHT, until, jobs, (0, 1), ("r2",)),
        ]
        (left,) = undoable_runs(lake, "log.a", until + timedelta(minutes=90))
        assert left.run_id == "r2"
        assert undoable_runs(lake, "log.a", until + DAY) == []


def test_what_went_back_or_lies_before_an_erasure_is_not_listed(noted: LakeSandbox) -> None:
    back = {"point_id": "u", "run_id": "u", "job": "undo_run", "undone": {1: ["p0", "p2"]}}
    erased = {"point_id": "e", "run_id": "e", "job": "erase_keys", "states": {0: state_of()}}
    for given, left in ((back, ["r1"]), (erased, [])):
        point = UndoPoint(topic="log.a", at=MIDNIGHT + 4 * HOUR, **given)  # type: ignore[arg-type]
        append_point(noted.session, point, Step.UNDO_POINT)
        with open_lake() as lake:
            runs = undoable_runs(lake, "log.a", MIDNIGHT + DAY)
        assert [run.run_id for run in runs] == left
    with open_lake() as lake:
        assert undoable_runs(lake, "log.a", MIDNIGHT + DAY) == []
