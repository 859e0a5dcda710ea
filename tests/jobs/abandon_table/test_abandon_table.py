"""abandon_table: nothing of ebbtide's is left on a table or beside it."""

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, ExitCode, HoldError, NotCoveredError
from ebbtide.iceberg.catalog import java_table, table_exists
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import find, load, set_properties
from ebbtide.jobs.abandon_table import execute_abandonment, plan_abandonment
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.runner.holds import read_holds
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import as_dict
from jobs import hold_records
from tests.jobs.hold_records.builders import WHY, make_hold
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, live, spark_table
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.nights import at
from tests.tables.planned import Jobs


def abandon(spark: SparkSession, name: str) -> JobOutcome:
    return execute_abandonment(plan_abandonment(spark, TopicName.parse(name)))


def test_nothing_is_left(sandbox: LakeSandbox, cluster: str, kill_at: list[Step]) -> None:
    spark, name, topic = sandbox.session, f"{cluster}.t", TopicName(cluster, "t")
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a")])
    before = as_dict(spark, java_table(spark, topic.records_table).properties())
    adopt(spark, name)
    kill_at.append(Step.ABANDONED)
    with pytest.raises(KilledError):
        abandon(spark, name)
    assert abandon(spark, name).topic["tables"] == [topic.state_table]
    assert as_dict(spark, java_table(spark, topic.records_table).properties()) == before
    assert not table_exists(spark, topic.state_table)
    assert live(spark, name) == [0, 1]
    assert abandon(spark, name).topic == {"properties": [], "tables": []}


def test_a_job_at_work_brings_nothing_back(
    sandbox: LakeSandbox, cluster: str, meanwhile: Meanwhile
) -> None:
    spark, name, topic = sandbox.session, f"{cluster}.t", TopicName(cluster, "t")
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a")])
    adopt(spark, name)
    append(spark, name, [Record(2, "a")])
    meanwhile(Step.ADOPTED_ROWS_SEEN, lambda: abandon(spark, name))
    with pytest.raises(CommitConflictError, match="another tool dropped it after"):
        clean(spark, name, 10_000)
    assert not table_exists(spark, topic.state_table)


@pytest.fixture
def dirty(sandbox: LakeSandbox, cluster: str) -> TopicName:
    """An adopted topic whose next round removes a record."""
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a")])
    adopt(spark, name)
    append(spark, name, [Record(2, "a")])
    return TopicName(cluster, "t")


def test_a_round_removes_nothing_from_a_table_that_was_abandoned_meanwhile(
    sandbox: LakeSandbox, dirty: TopicName, meanwhile: Meanwhile
) -> None:
    spark, name = sandbox.session, str(dirty)
    meanwhile(Step.ROUND_RECORDS, lambda: abandon(spark, name))
    with pytest.raises(
        CommitConflictError, match=r"abandon_table ran meanwhile\. Nothing was committed"
    ):
        clean(spark, name, 10_000)
    assert live(spark, name) == [0, 1, 2]
    with pytest.raises(NotCoveredError, match="run adopt_table first"):
        clean(spark, name, 10_000)


def test_an_expiry_removes_nothing_from_a_table_that_was_abandoned_meanwhile(
    sandbox: LakeSandbox, dirty: TopicName, meanwhile: Meanwhile
) -> None:
    spark, name = sandbox.session, str(dirty)
    changes = {"kafka.cleanup.policy": "delete", "kafka.retention.ms": "1"}
    set_properties(spark, dirty.records_table, changes)
    meanwhile(Step.TRUNCATE_RECORDS, lambda: abandon(spark, name))
    with pytest.raises(CommitConflictError, match=r"abandon_table ran meanwhile\. Nothing was"):
        execute_expire(plan_expire(load(spark, dirty), 10**12))
    assert live(spark, name) == [0, 1, 2]


def test_a_round_ends_whose_table_is_abandoned_after_its_rows_are_gone(
    sandbox: LakeSandbox, dirty: TopicName, meanwhile: Meanwhile
) -> None:
    spark, name = sandbox.session, str(dirty)
    meanwhile(Step.ROUND_STATE, lambda: abandon(spark, name))
    assert clean(spark, name, 10_000).rows_removed == 2
    assert live(spark, name) == [2]
    assert not table_exists(spark, dirty.state_table)


def test_a_hold_that_is_made_meanwhile_keeps_the_topic(
    sandbox: LakeSandbox, dirty: TopicName, meanwhile: Meanwhile
) -> None:
    spark = sandbox.session
    meanwhile(Step.ABANDONED, lambda: make_hold(spark, dirty, "h-1"))
    with pytest.raises(HoldError, match=r"Nothing was abandoned\. End the hold with hold_rec"):
        abandon(spark, str(dirty))
    assert find(spark, dirty) is not None


def test_no_hold_is_made_on_a_table_that_was_abandoned_meanwhile(
    sandbox: LakeSandbox, dirty: TopicName, meanwhile: Meanwhile, jobs: Jobs
) -> None:
    meanwhile(Step.HOLD_EVENT, lambda: abandon(sandbox.session, str(dirty)))
    making = ("--action", "make", *WHY, "--requested-by", "ann", "--now", at(10_000).isoformat())
    assert jobs.run(hold_records, "--topic", str(dirty), *making) == ExitCode.FAILED
    assert "run adopt_table first" in str(jobs.last_run().error)
    assert read_holds(sandbox.session, dirty) == []


def test_an_adoption_beside_an_abandonment_says_that_it_has_to_be_run_again(
    sandbox: LakeSandbox, cluster: str, meanwhile: Meanwhile
) -> None:
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a")])
    meanwhile(Step.ADOPTED_LAYOUT, lambda: abandon(spark, name))
    with pytest.raises(CommitConflictError, match=r"dropped it meanwhile\. Run adopt_table again"):
        adopt(spark, name)
    adopt(spark, name)
    assert clean(spark, name, 10_000).partitions.keys() == {0}


def test_a_topic_of_ebbtides_own_is_refused(sandbox: LakeSandbox, cluster: str) -> None:
    sandbox.topic(f"{cluster}.own")
    for name in (f"{cluster}.own", f"{cluster}.own@one"):
        with pytest.raises(NotCoveredError, match="one of ebbtide's own topics"):
            abandon(sandbox.session, name)
