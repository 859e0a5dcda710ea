"""Rows of `runs` are read on from where the last look ended."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.lake.own_tables import RunLog
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.topic_summary import TopicSummary
from tests.lake_sandbox import LakeSandbox

NOW = datetime.now(UTC).replace(microsecond=0)
SINCE = NOW - timedelta(days=35)
SUMMARY = TopicSummary(
    cleanup_policy="compact",
    is_enabled=True,
    partitions=1,
    records=3,
    closed_records=2,
    dirty_records=1,
    file_bytes=900,
)


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files that were opened."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    files: list[str] = []
    new_input = PyArrowFileIO.new_input

    def counted(io: PyArrowFileIO, location: str) -> Any:
        if location.endswith(".parquet"):
            files.append(location)
        return new_input(io, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", counted)
    return files


def look(log: RunLog) -> list[tuple[str, str]]:
    """Topic and job of each row that is new since the last look."""
    with open_lake() as lake:
        table = lake.own_table(RUNS)
        assert table is not None
        return sorted((row.topic, row.job) for row in log.read_on(table, SINCE))


def test_a_lake_without_runs_has_no_table(lake: LakeSandbox) -> None:
    with open_lake() as opened:
        assert opened.own_table(RUNS) is None


def test_each_file_is_opened_once(lake: LakeSandbox, opened_files: list[str]) -> None:
    log = RunLog()
    lake.run("log.a", "clean_log", now=NOW)
    lake.run("log.b", "clean_log", now=NOW, error=ConfigurationError("no"))
    assert look(log) == [("log.a", "clean_log"), ("log.b", "clean_log")]
    assert look(log) == []
    lake.run("log.a", "expire_segments", now=NOW)
    assert look(log) == [("log.a", "expire_segments")]
    assert len(opened_files) == len(set(opened_files)) == 3


def test_what_is_older_stays_closed(lake: LakeSandbox, opened_files: list[str]) -> None:
    lake.run("log.a", "clean_log", now=SINCE - timedelta(days=2))
    lake.run("log.b", "clean_log", now=NOW)
    assert look(RunLog()) == [("log.b", "clean_log")]
    assert len(opened_files) == 1


def test_rows_come_with_their_summaries(lake: LakeSandbox) -> None:
    lake.run("log.a", "clean_log", now=NOW, summary=SUMMARY)
    with open_lake() as opened:
        table = opened.own_table(RUNS)
        assert table is not None
        (row,) = RunLog().read_on(table, SINCE)
        (run,) = opened.runs(topic="log.a")
    assert row.summary == run.summary == SUMMARY


def test_rows_that_somebody_deleted_are_not_read(lake: LakeSandbox) -> None:
    for topic in ("log.a", "log.b"):
        lake.run(topic, "clean_log", now=NOW)
    lake.session.sql(
        f"ALTER TABLE {RUNS.in_catalog()} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
    )
    lake.session.sql(
        f"CALL lake.system.rewrite_data_files(table => '{RUNS.in_catalog()}', "
        "options => map('rewrite-all', 'true'))"
    )
    lake.session.sql(f"DELETE FROM {RUNS.in_catalog()} WHERE topic = 'log.a'")
    assert look(RunLog()) == [("log.b", "clean_log")]
