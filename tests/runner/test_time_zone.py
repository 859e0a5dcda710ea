"""Times without a zone are UTC's, whatever zone the machine and Spark's defaults have."""

from __future__ import annotations

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import submit

ZONE = "Asia/Kolkata"  # 5.5 hours ahead
NAME = TopicName("log", "t")
SIX_HOURS = {
    "kafka.cleanup.policy": "delete",
    "kafka.retention.ms": "21600000",
    "kafka.segment.ms": "1",
    "ebbtide.max.delete.ratio": "1",
}


@pytest.mark.long
def test_the_zone_of_the_environment_removes_no_row(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in that zone the newest row would be 6.5 hours old, and retention is 6 hours."""
    spark = lake.session
    spark.sql("CREATE NAMESPACE lake.log")
    spark.sql(
        f"CREATE TABLE {NAME.records_table} (key BINARY, value BINARY, topic STRING, "
        "`partition` INT, offset BIGINT, timestamp TIMESTAMP_NTZ, timestampType INT) USING iceberg"
    )
    spark.sql(
        f"INSERT INTO {NAME.records_table} SELECT NULL, X'61', 't', 0, id, "
        "TIMESTAMP_NTZ '2026-01-02 07:00:00' + make_interval(0, 0, 0, 0, CAST(id AS INT)), 0 "
        "FROM range(0, 5, 1, 1)"
    )
    defaults = lake.home / "conf" / "spark-defaults.conf"
    lines = defaults.read_text().splitlines()
    zone = "spark.sql.session.timeZone"
    others = [line for line in lines if not line.startswith(zone)]
    defaults.write_text("\n".join([*others, f"{zone} {ZONE}", ""]))
    monkeypatch.setenv("TZ", ZONE)
    ask = ("--topic", str(NAME), "--now", "2026-01-02T12:00:00+00:00")
    settings = [word for n, v in SIX_HOURS.items() for word in ("--set", f"{n}={v}")]
    for job, more in {"adopt_table": settings, "expire_segments": []}.items():
        done = submit(lake, job, *ask, *more)
        assert done.returncode == ExitCode.DONE, done.stdout[-2000:]
    assert spark.table(NAME.records_table).count() == 5
    (state,) = load(spark, NAME).partitions.values()
    assert state.max_event_time_ms == 1_767_351_600_000  # 2026-01-02 11:00 UTC
