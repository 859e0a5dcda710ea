"""A machine whose clock went back: the run fails by name, and its row is in `runs`."""

from __future__ import annotations

from datetime import timedelta

from ebbtide.errors import ExitCode
from ebbtide.iceberg.own_tables import create_own
from ebbtide.ledger.own_tables import RUNS
from jobs import expire_segments
from tests.tables.bench import Bench
from tests.tables.clocks import let_newest_be_ahead
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS, at
from tests.tables.planned import Jobs

HOUR = timedelta(hours=1)


def test_a_clock_that_went_back_leaves_a_row(bench: Bench, jobs: Jobs) -> None:
    config = {"cleanup.policy": "delete", "retention.bytes": "0"}
    bench.log([[Message("a", "1")], [Message("b", "2")]], config, FIRST_MS)
    ask = ("--topic", str(bench.name), "--now", at(FIRST_MS + DAY_MS).isoformat())
    create_own(bench.spark, RUNS)
    for table in (bench.name.state_table, RUNS.in_catalog()):
        let_newest_be_ahead(bench.spark, table, HOUR)
    assert jobs.run(expire_segments, *ask) == ExitCode.TRANSIENT
    row = jobs.last_run()
    assert (row.error_class, row.succeeded) == ("UnavailableError", False)
    assert "this clock went back, or another machine's clock is ahead" in row.error
    assert jobs.run(expire_segments, *ask) == ExitCode.TRANSIENT
    assert "this clock went back" in jobs.last_run().error
