"""What one run's rows cost to read, however long the table of runs has grown."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.orchestration.attempt import CLOCK_SLACK, began
from ebbtide.tables.reader import open_lake
from ebbtide.tables.schema import RUNS_TABLE, create_runs
from tests.lake_sandbox import LakeSandbox

TOPICS = 50
RUN_ID = "scheduled__2026-03-01"
NIGHT = datetime(2026, 3, 1, 2, tzinfo=UTC)


def fill(lake: LakeSandbox, nights: int) -> None:
    """So many nights of all topics, a file a day as compaction leaves them."""
    create_runs(lake.session)
    lake.session.sql(
        f"""
        INSERT INTO {RUNS_TABLE} (run_id, dag, task, job, topic, started, ended, now, status)
        SELECT date_format(night, "'scheduled__'yyyy-MM-dd"), 'nightly_retention', 'clean_log',
            'clean_log', concat('log.t', topic), night, night, night, 'succeeded'
        FROM (
            SELECT TIMESTAMP '2026-03-01 02:00:00' - make_interval(0, 0, 0, cast(id AS INT)) night
            FROM range({nights})
        ) CROSS JOIN (SELECT id topic FROM range({TOPICS}))
        """
    )


@pytest.mark.parametrize("nights", [10, 400])
def test_one_runs_rows_open_no_more_files_as_years_pass(
    nights: int, lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.io.pyarrow import ArrowScan

    fill(lake, nights)
    opened: list[int] = []
    read = ArrowScan.to_table

    def counted(scan: ArrowScan, tasks: Any) -> Any:
        chosen = list(tasks)
        opened.append(len(chosen))
        return read(scan, chosen)

    monkeypatch.setattr(ArrowScan, "to_table", counted)
    with open_lake() as found:
        runs = found.runs(NIGHT - CLOCK_SLACK, run_id=RUN_ID, dag="nightly_retention")
    assert len(runs) == TOPICS
    assert opened[0] <= 2


def test_a_run_that_was_cleared_still_finds_its_first_attempts() -> None:
    class DagRun:
        run_after = NIGHT
        start_date = NIGHT + timedelta(days=30)

    assert began(DagRun()) == NIGHT - CLOCK_SLACK
