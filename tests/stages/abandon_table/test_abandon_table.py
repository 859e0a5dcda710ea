"""abandon_table: nothing of ebbtide's is left on a table or beside it."""

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, NotCoveredError
from ebbtide.iceberg.catalog import java_table, table_exists
from ebbtide.iceberg.commits import Step
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.jvm import as_dict
from ebbtide.stages.abandon_table.stage import execute_abandonment, plan_abandonment
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, live, spark_table
from tests.tables.fixtures import KilledError, Meanwhile


def abandon(spark: SparkSession, name: str) -> JobOutcome:
    return execute_abandonment(plan_abandonment(spark, TopicName.parse(name)))


def test_nothing_is_left(sandbox: LakeSandbox, cluster: str, kill_at: list[Step]) -> None:
    spark, name, of = sandbox.session, f"{cluster}.t", TopicName(cluster, "t")
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a")])
    before = as_dict(spark, java_table(spark, of.records_table).properties())
    adopt(spark, name)
    kill_at.append(Step.ABANDONED)
    with pytest.raises(KilledError):
        abandon(spark, name)
    assert abandon(spark, name).topic["tables"] == [of.state_table]
    assert as_dict(spark, java_table(spark, of.records_table).properties()) == before
    assert not table_exists(spark, of.state_table)
    assert live(spark, name) == [0, 1]
    assert abandon(spark, name).topic == {"properties": [], "tables": []}


def test_a_job_at_work_brings_nothing_back(
    sandbox: LakeSandbox, cluster: str, meanwhile: Meanwhile
) -> None:
    spark, name, of = sandbox.session, f"{cluster}.t", TopicName(cluster, "t")
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a")])
    adopt(spark, name)
    append(spark, name, [Record(2, "a")])
    meanwhile(Step.ADOPTED_ROWS_SEEN, lambda: abandon(spark, name))
    with pytest.raises(CommitConflictError, match="dropped it meanwhile"):
        clean(spark, name, 10_000)
    assert not table_exists(spark, of.state_table)


def test_a_topic_of_ebbtides_own_is_refused(sandbox: LakeSandbox, cluster: str) -> None:
    sandbox.topic(f"{cluster}.own")
    for name in (f"{cluster}.own", f"{cluster}.own@one"):
        with pytest.raises(NotCoveredError, match="a topic of ebbtide's own"):
            abandon(sandbox.session, name)
