"""The files of lake.ebbtide.runs."""

from datetime import timedelta

from ebbtide.stages.expire_snapshots.run_files import compact_runs
from tests.lake_sandbox import MIDNIGHT, LakeSandbox


def test_each_day_that_is_over_becomes_one_file(sandbox: LakeSandbox) -> None:
    spark = sandbox.session
    spark.sql("DROP TABLE IF EXISTS lake.ebbtide.runs PURGE")
    for day in range(3):
        for hour in range(3):
            when = MIDNIGHT + timedelta(days=day, hours=hour)
            sandbox.run("log.a", "clean_log", run_id=f"{day}-{hour}", now=when)
    assert compact_runs(spark, MIDNIGHT + timedelta(days=2, hours=5)) == 6
    files = spark.sql(
        "SELECT partition.started_day AS day, count(*) AS files FROM lake.ebbtide.runs.files "
        "GROUP BY 1 ORDER BY 1"
    ).collect()
    assert [row["files"] for row in files] == [1, 1, 3]
    assert spark.table("lake.ebbtide.runs").count() == 9
    assert compact_runs(spark, MIDNIGHT + timedelta(days=2, hours=5)) == 0
