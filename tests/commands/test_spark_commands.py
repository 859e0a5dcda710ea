"""`ebbtide sql` and `ebbtide plan`, each by a real Spark."""

import json
import os
from pathlib import Path

import pytest

from ebbtide.commands.plan import command_of
from ebbtide.errors import ExitCode
from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.driver_inputs import Paths
from tests.commands.conftest import Ebbtide
from tests.lake_sandbox import LakeSandbox, state_of
from tests.runner.submit import BIN


@pytest.fixture
def with_spark(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> LakeSandbox:
    """A topic of three records, and Spark's commands on the path."""
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    lake.package()
    lake.topic("log.a", {0: state_of(log_end_offset=3)}, {"kafka.cleanup.policy": "delete"})
    lake.records("log.a", [(0, 0), (0, 1), (0, 2)])
    return lake


@pytest.mark.long
def test_sql_gives_rows_as_json(with_spark: LakeSandbox, ebbtide: Ebbtide) -> None:
    query = "SELECT offset, `partition` FROM log.a WHERE offset > 0 ORDER BY offset;"
    answer = ebbtide("sql", "--json", query)
    assert answer.document["rows"] == [
        {"offset": 1, "partition": 0},
        {"offset": 2, "partition": 0},
    ]
    assert answer.code == 0


@pytest.mark.long
def test_a_bad_statement_fails_with_its_cause(with_spark: LakeSandbox, ebbtide: Ebbtide) -> None:
    answer = ebbtide("sql", "SELECT * FROM log.nope")
    assert answer.code == 1
    assert "log`.`nope" in answer.err


@pytest.mark.long
def test_a_plan_changes_nothing(with_spark: LakeSandbox, ebbtide: Ebbtide) -> None:
    request = {"topics": [{"topic": "log.a", "partitions": [{"partition": 0, "offset": 2}]}]}
    answer = ebbtide("plan", "--json", "delete_records", "--request", json.dumps(request))
    assert answer.code == 0
    assert answer.document["exit_code"] == 0
    assert answer.document["plan"].startswith("delete_records log.a: plan only")
    with open_lake() as opened:
        assert answer.document["plan_ids"] == [plan.plan_id for plan in opened.plans()]
    assert len(answer.document["plan_ids"]) == 1
    assert with_spark.session.table("lake.log.a").count() == 3
    assert not with_spark.session.catalog.tableExists("lake.ebbtide.runs")


@pytest.mark.long
def test_a_plan_is_executed_and_its_run_reported(with_spark: LakeSandbox, ebbtide: Ebbtide) -> None:
    request = {"topics": [{"topic": "log.a", "partitions": [{"partition": 0, "offset": 2}]}]}
    planned = ebbtide("plan", "--json", "delete_records", "--request", json.dumps(request))
    (plan_id,) = planned.document["plan_ids"]
    answer = ebbtide("execute", "--json", plan_id, "--approved-by", "ben")
    (attempt,) = answer.document["attempts"]
    assert (answer.code, attempt["job"], attempt["status"]) == (0, "delete_records", "succeeded")
    assert attempt["result"]["partitions"]["0"]["log_start_offset"] == 2
    again = ebbtide("execute", plan_id)
    assert again.code == ExitCode.FAILED
    assert f"expected an open plan, found {plan_id} executed by ben" in again.out
    unknown = ebbtide("execute", "delete_records-20260102-0123abcd")
    assert (unknown.code, unknown.out) == (ExitCode.REFUSED, "")
    assert "expected a plan in lake.ebbtide.plans, found none with the id" in unknown.err


def test_what_is_no_id_of_a_plan_is_refused(lake: LakeSandbox, ebbtide: Ebbtide) -> None:
    answer = ebbtide("execute", "delete_records")
    assert answer.code == ExitCode.FAILED
    assert "expected the id of a plan, such as" in answer.err
    assert "expected one of the jobs" in ebbtide("execute", "nothing-20260102-0123abcd").err


def test_a_job_that_there_is_not_is_refused(lake: LakeSandbox, ebbtide: Ebbtide) -> None:
    answer = ebbtide("plan", "delete_everything")
    assert answer.code == ExitCode.FAILED
    assert "expected one of the jobs abandon_table, adopt_table, certify_erasure, " in answer.err


def test_a_missing_spark_is_a_line(
    lake: LakeSandbox, ebbtide: Ebbtide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(lake.home))
    for arguments in (("plan", "clean_log", "--topic", "log.a"), ("sql", "SELECT 1"), ("sql",)):
        answer = ebbtide(*arguments)
        assert answer.code == ExitCode.FAILED
        assert "Install the package into this environment and run `ebbtide doctor`" in answer.err


def test_the_clock_of_a_plan_is_the_jobs_own_where_given() -> None:
    where = Paths(root=Path("/r"), home=Path("/h"))
    given = command_of(where, "clean_log", ["--now", "2026-01-01T00:00:00Z"], Path("/p"))
    assert given.count("--now") == 1
    assert "--now" in command_of(where, "clean_log", [], Path("/p"))
