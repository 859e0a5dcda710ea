"""Keys are erased from a table that others write: rows leave, and the bytes of their files."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures import ROWS_OF_ERASED_KEYS
from ebbtide.iceberg.topics import load
from ebbtide.jobs.abandon_table import execute_abandonment, plan_abandonment
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.ledger.own_tables import ERASURES
from ebbtide.runner.holds import Covered, count_covered, keep_leaving, keep_removed
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import KEYS
from jobs import clean_log, erase_keys, undo_run
from tests.jobs.hold_records.builders import hashed, kept, make_hold
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, live, spark_table
from tests.tables.nights import at
from tests.tables.planned import Jobs

ASKED = ("--requested-by", "ann", "--reason", "7")
SECRET = "somebody@example.org"


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, monkeypatch: pytest.MonkeyPatch) -> TopicName:
    """Three files; one holds a row of the key that another engine has deleted, merge-on-read."""
    spark, name = sandbox.session, TopicName(cluster, "t")
    spark_table(spark, str(name))
    append(spark, str(name), [Record(0, SECRET), Record(1, "b"), Record(2, SECRET, None)])
    append(spark, str(name), [Record(3, "c"), Record(4, SECRET)])
    append(spark, str(name), [Record(5, "d"), Record(0, "e", "v", 1)])
    adopt(spark, str(name))
    table = name.records_table
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"DELETE FROM {table} WHERE offset = 4")
    monkeypatch.setenv(KEYS, f"{SECRET}\nnobody")
    return name


def ask(jobs: Jobs, name: TopicName, *more: str, now_ms: int = 10_000) -> int:
    now = ("--now", at(now_ms).isoformat())
    return jobs.run(erase_keys, "--topic", str(name), *now, *ASKED, *more)


def keys_in_files(spark: SparkSession, name: TopicName) -> set[str]:
    """The keys in the data files of the newest snapshot, whatever is deleted from them."""
    files = [row["file_path"] for row in spark.table(f"{name.records_table}.data_files").collect()]
    rows = spark.read.parquet(*files).select("key").collect()
    return {bytes(row["key"]).decode() for row in rows}


def test_rows_leave_and_no_file_of_the_newest_snapshot_holds_the_key(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, kill_at: list[Step]
) -> None:
    spark = sandbox.session
    assert SECRET in keys_in_files(spark, name)
    untouched = {row["file_path"] for row in _files(spark, name) if row["record_count"] == 2}
    run_id = ("--run-id", "erase-it")
    now = ("--now", at(10_000).isoformat())
    for step in (Step.ERASE_RECORDS, Step.ERASURE_ROWS):
        kill_at.append(step)
        assert erase_keys.main(["--topic", str(name), *now, *ASKED, *run_id]) != ExitCode.DONE
    assert erase_keys.main(["--topic", str(name), *now, *ASKED, *run_id]) == ExitCode.DONE
    assert live(spark, str(name)) == [0, 1, 3, 5]
    assert keys_in_files(spark, name) == {"b", "c", "d", "e"}
    assert untouched & {row["file_path"] for row in _files(spark, name)}
    rows = spark.table(ERASURES.in_catalog()).where(f"topic = '{name}' AND status = 'reported'")
    told = {row["key_hmac"]: row for row in rows.collect()}
    row, missing = (told[secret_of(str(name)).name(key.encode())] for key in (SECRET, "nobody"))
    assert (row["found"], row["superseded"], row["left"], row["way"]) == (2, 2, 0, "deleted")
    assert (missing["partition"], missing["found"]) == (None, 0)
    assert row["off_disk_from"] is None


def _files(spark: SparkSession, name: TopicName) -> list[Any]:
    return list(spark.table(f"{name.records_table}.data_files").collect())


@pytest.mark.long
def test_a_plan_erases_what_it_says_and_no_run_before_it_is_undone(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    spark, of_topic = sandbox.session, ("--topic", str(name))
    append(spark, str(name), [Record(6, "b")])
    assert jobs.run(clean_log, *of_topic, "--now", at(9_000).isoformat()) == ExitCode.DONE
    before = jobs.run_id
    plan = jobs.plan(erase_keys, 10_000, *of_topic, *ASKED)
    assert {p: list(offsets) for p, offsets in (plan.removes or {}).items()} == {0: [2]}
    assert SECRET not in plan.text
    append(spark, str(name), [Record(7, SECRET)])  # a new one is none of the plan's
    assert jobs.run(erase_keys, "--plan", plan.plan_id) == ExitCode.DONE
    run = jobs.last_run()
    assert (run.rows_removed, run.topic_result["superseded"]) == (1, 1)
    assert "older snapshots, branches and tags have them until" in run.topic_result["note"]
    assert run.topic_result["remaining"] == 1
    assert "1 rows of the keys remain: they arrived after the plan" in run.topic_result["note"]
    assert live(spark, str(name)) == [0, 3, 5, 6, 7]
    undo = ("--run", before, "--now", at(20_000).isoformat())
    assert jobs.run(undo_run, *of_topic, *undo) != ExitCode.DONE
    assert "keys were erased" in str(jobs.last_run().error)


def test_rows_of_an_erased_key_that_return_are_counted_once(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    """The rows that a run deletes are not reported by it."""
    spark, of_topic = sandbox.session, ("--topic", str(name))
    assert ask(jobs, name) == ExitCode.DONE
    assert ROWS_OF_ERASED_KEYS not in jobs.last_run().topic_result
    again = [Record(6, SECRET, None, timestamp_ms=9_999), Record(0, SECRET)]
    append(spark, str(name), [*again, Record(7, SECRET, timestamp_ms=10_000), Record(8, "b")])
    results = []
    for now_ms in (20_000, 21_000):
        assert jobs.run(clean_log, *of_topic, "--now", at(now_ms).isoformat()) == ExitCode.DONE
        results.append(jobs.last_run().topic_result)
    assert [result.get(ROWS_OF_ERASED_KEYS) for result in results] == [2, None]
    assert "2 new rows have a key that was erased after they were written" in results[0]["note"]
    assert SECRET not in str(results)
    append(spark, str(name), [Record(9, SECRET)])
    assert ask(jobs, name, now_ms=30_000) == ExitCode.DONE
    assert ROWS_OF_ERASED_KEYS not in jobs.last_run().topic_result
    assert SECRET not in keys_in_files(spark, name)


def test_a_hold_does_not_bring_an_erased_key_back(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    """The owner's older snapshot has its rows."""
    spark = sandbox.session
    assert ask(jobs, name) == ExitCode.DONE
    append(spark, str(name), [Record(6, SECRET), Record(7, SECRET, timestamp_ms=20_000)])
    hold = make_hold(spark, name)
    topic = load(spark, name)
    keep_removed(topic)
    assert kept(spark, name) == {}
    assert count_covered(topic, hold) == Covered(Counter({0: 4, 1: 1}), Counter({0: 1}))
    assert keep_leaving(topic, {0: BitMap64([3, 6, 7])}) == {str(hold): 2}
    assert kept(spark, name) == {"h-1": [3, 7]}


@pytest.mark.long
def test_rows_of_an_erased_key_are_reported_whoever_sees_them_first(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = sandbox.session
    assert ask(jobs, name) == ExitCode.DONE
    append(spark, str(name), [Record(6, SECRET)])
    monkeypatch.setenv(KEYS, "b")
    assert ask(jobs, name, now_ms=20_000) == ExitCode.DONE
    result = jobs.last_run().topic_result
    assert result[ROWS_OF_ERASED_KEYS] == 1
    assert "Run erase_keys again with this key" in result["note"]
    execute_abandonment(plan_abandonment(spark, name))
    adopted = adopt(spark, str(name))
    assert adopted.topic[ROWS_OF_ERASED_KEYS] == 1
    assert "Run erase_keys again with this key" in adopted.topic["note"]


@pytest.mark.long
def test_what_cannot_be_promised_is_refused(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    assert ask(jobs, name, "--append") != ExitCode.DONE
    refusal = "erase_keys deletes rows there, without a tombstone. Nothing was erased."
    assert refusal in str(jobs.last_run().error)
    make_hold(sandbox.session, name, key_hashes=hashed(SECRET))
    assert ask(jobs, name) != ExitCode.DONE
    assert "found rows of them under hold h-1 (case 7)" in str(jobs.last_run().error)
    assert live(sandbox.session, str(name)) == [0, 0, 1, 2, 3, 5]
