"""The files of lake.ebbtide.runs and undo_points."""

from datetime import timedelta

import pytest

from ebbtide.errors import UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.jobs import expire_snapshots as tidying
from ebbtide.jobs.expire_snapshots import RUNS, UNDO_POINTS, compact_days, tidy_runs
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.runner.undo_points import append_point, read_points
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import MIDNIGHT, LakeSandbox
from tests.tables.clocks import in_zone


@pytest.mark.long(but="America/Los_Angeles")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Los_Angeles"])
def test_each_day_that_is_over_becomes_one_file(
    sandbox: LakeSandbox, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day is one in UTC, whatever zone the environment has."""
    spark = sandbox.session
    spark.sql("DROP TABLE IF EXISTS lake.ebbtide.runs PURGE")
    for day in range(3):
        for hour in range(3):
            when = MIDNIGHT + timedelta(days=day, hours=hour)
            sandbox.run("log.a", "clean_log", run_id=f"{day}-{hour}", now=when)
    with in_zone(sandbox, monkeypatch, zone):
        assert compact_days(spark, RUNS, MIDNIGHT + timedelta(days=2, hours=5)) == 6
    files = spark.sql(
        "SELECT partition.started_day AS day, count(*) AS files FROM lake.ebbtide.runs.files "
        "GROUP BY 1 ORDER BY 1"
    ).collect()
    assert [row["files"] for row in files] == [1, 1, 3]
    assert spark.table("lake.ebbtide.runs").count() == 9
    assert compact_days(spark, RUNS, MIDNIGHT + timedelta(days=2, hours=5)) == 0


def test_points_keep_their_files_as_long_as_they_are_read(sandbox: LakeSandbox) -> None:
    spark = sandbox.session
    spark.sql("DROP TABLE IF EXISTS lake.ebbtide.undo_points PURGE")
    for day in range(3):
        for number in range(2):
            point = UndoPoint(
                point_id=f"{day}-{number}",
                run_id="r",
                job="clean_log",
                topic="log.a",
                at=MIDNIGHT + timedelta(days=day),
            )
            append_point(spark, point, Step.UNDO_POINT)
    assert compact_days(spark, UNDO_POINTS, MIDNIGHT + timedelta(days=6, hours=5)) == 4
    assert len(read_points(spark, TopicName("log", "a"))) == 6
    young = MIDNIGHT + timedelta(days=2)
    assert len(read_points(spark, TopicName("log", "a"), young)) == 2


def test_a_catalog_that_is_away_leaves_it_to_another_night(
    sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topics are done, and their exit code stays what it is."""

    def away(*_: object) -> int:
        raise UnavailableError("no answer")

    monkeypatch.setattr(tidying, "compact_days", away)
    tidy_runs(sandbox.session, MIDNIGHT)
    assert "not merged, the next run tries again: no answer" in caplog.text


def test_what_nobody_foresaw_is_not_left(
    sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr(tidying, "compact_days", broken)
    with pytest.raises(KeyError):
        tidy_runs(sandbox.session, MIDNIGHT)
