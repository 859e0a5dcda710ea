"""A table with several values in its column of topics gives as many topics."""

import json

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError, RequestError, UnknownTopicError
from ebbtide.iceberg.catalog import java_table, table_exists
from ebbtide.iceberg.topics import find, load
from ebbtide.jobs.abandon_table import execute_abandonment, plan_abandonment
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.lake.reader import open_lake
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import as_dict
from jobs import abandon_table, adopt_table, clean_log, delete_records
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import COMPACTED, Record, adopt, append, clean, rewrite, spark_table
from tests.tables.nights import at
from tests.tables.planned import Jobs

pytestmark = pytest.mark.long

ONE = [Record(0, "a"), Record(1, "b"), Record(2, "a")]
OTHER = [Record(0, "a"), Record(1, "a"), Record(2, "a", None), Record(7, "z", partition=3)]


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def name(spark: SparkSession, cluster: str) -> str:
    """A table with two topics in one file, and rows of no topic."""
    spark_table(spark, f"{cluster}.t")
    append(spark, f"{cluster}.t", ONE, topic="one")
    append(spark, f"{cluster}.t", OTHER, topic="the.other")
    table = TopicName(cluster, "t").records_table
    spark.sql(
        f"INSERT INTO {table} SELECT key, value, null, partition, offset, timestamp, timestampType "
        f"FROM {table} WHERE topic = 'one'"
    )
    rewrite(spark, f"{cluster}.t")
    return f"{cluster}.t"


def live_of(spark: SparkSession, name: str, topic: str | None) -> list[int]:
    rows = spark.table(TopicName.parse(name).records_table).orderBy("partition", "offset")
    return [int(row["offset"]) for row in rows.collect() if row["topic"] == topic]


def test_each_topic_has_its_own_state_and_settings(spark: SparkSession, name: str) -> None:
    one, other = (TopicName.parse(f"{name}@{topic}") for topic in ("one", "the.other"))
    outcome = adopt(spark, name)
    assert outcome.topic["topics"] == [
        f"{one}: 1 partitions, 3 records",
        f"{other}: 2 partitions, 4 records",
    ]
    with pytest.raises(UnknownTopicError, match="a table with several topics"):
        load(spark, TopicName.parse(name))
    with pytest.raises(UnknownTopicError, match=r"found no state of it\. .*: adopt_table --topic"):
        find(spark, TopicName.parse(f"{name}@third"))
    with pytest.raises(UnknownTopicError, match=r"found rows of 'one', 'the\.other'"):
        adopt(spark, f"{name}@third")
    adopt(spark, str(one), {"kafka.segment.ms": "5", "kafka.cleanup.policy": "compact,delete"})
    assert (load(spark, one).config.segment_ms, load(spark, other).config.segment_ms) == (5, 1)
    clean(spark, str(one), 10_000)
    assert live_of(spark, name, "one") == [1, 2]
    assert live_of(spark, name, "the.other") == [0, 1, 2, 7]
    assert live_of(spark, name, None) == [0, 1, 2]
    append(spark, name, [Record(0, "n")], topic="third")  # disturbs nobody
    clean(spark, str(other), 20_000)
    assert live_of(spark, name, "the.other") == [2, 7]
    state = load(spark, other)
    assert adopt(spark, name).topic["topics"][2] == f"{name}@third: 1 partitions, 1 records"
    assert load(spark, other).partitions == state.partitions
    adopt(spark, str(one), {"kafka.retention.ms": "1"})
    plan = plan_expire(load(spark, one), 30_000)
    execute_expire(plan)
    assert live_of(spark, name, "one") == []
    assert live_of(spark, name, "the.other") == [2, 7]
    assert live_of(spark, name, None) == [0, 1, 2]


def test_one_of_them_is_abandoned_alone(spark: SparkSession, name: str) -> None:
    one, other = (TopicName.parse(f"{name}@{topic}") for topic in ("one", "the.other"))
    table = one.records_table
    before = as_dict(spark, java_table(spark, table).properties())
    adopt(spark, name)
    adopt(spark, str(one), {"kafka.segment.ms": "5"})
    done = execute_abandonment(plan_abandonment(spark, one))
    assert done.topic == {"properties": ["kafka.segment.ms@one"], "tables": [one.state_table]}
    assert load(spark, other).partitions
    execute_abandonment(plan_abandonment(spark, other))
    assert as_dict(spark, java_table(spark, table).properties()) == before
    assert not table_exists(spark, other.state_table)


def test_a_table_of_one_topic_stops_where_another_comes(spark: SparkSession, cluster: str) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, ONE, topic="one")
    adopt(spark, name)
    append(spark, name, OTHER, topic="other")
    with pytest.raises(NotCoveredError, match=r"found records of one, other\. Run abandon_table"):
        clean(spark, name, 10_000)
    with pytest.raises(NotCoveredError, match=r"as one topic\. Run abandon_table, then adopt_t"):
        adopt(spark, name)
    spark_table(spark, f"{cluster}.odd")
    append(spark, f"{cluster}.odd", ONE, topic="a b")
    append(spark, f"{cluster}.odd", OTHER, topic="other")
    with pytest.raises(RequestError, match="expected a topic name that Kafka takes"):
        adopt(spark, f"{cluster}.odd")


def test_jobs_count_what_left_each_topic(spark: SparkSession, name: str, jobs: Jobs) -> None:
    """Both rounds delete from one file at once: one of them is planned again."""
    now = ("--now", at(10_000).isoformat())
    policy = {**COMPACTED, "kafka.cleanup.policy": "compact,delete"}
    settings = [word for setting in policy.items() for word in ("--set", "=".join(setting))]
    assert jobs.run(adopt_table, "--topic", name, *now, *settings) == 0
    assert jobs.last_run().topic == name
    topics = [f"{name}@one", f"{name}@the.other"]
    arguments = [word for topic in topics for word in ("--topic", topic)]
    assert jobs.run(clean_log, *arguments, *now) == 0
    with open_lake() as lake:
        runs = {run.topic: run for run in lake.runs(run_id=jobs.run_id)}
        assert [runs[topic].rows_removed for topic in topics] == [1, 2]
        assert [
            topic_name for topic_name in lake.topic_names() if topic_name.startswith(name)
        ] == topics
        assert lake.live_rows(topics[1]) == {0: 1, 3: 1}
        assert lake.topic(topics[0]).config.segment_ms == 1
    request = {"topic": topics[1], "partitions": [{"partition": 0, "offset": 3}]}
    assert jobs.run(delete_records, "--request", json.dumps({"topics": [request]}), *now) == 0
    assert jobs.last_run().rows_removed == 1
    assert live_of(spark, name, "the.other") == [7]
    assert live_of(spark, name, "one") == [1, 2]
    assert live_of(spark, name, None) == [0, 1, 2]
    assert jobs.run(abandon_table, "--topic", name, *now) == 0
    assert len(jobs.last_run().topic_result["tables"]) == 2
    with open_lake() as lake:
        assert [
            topic_name for topic_name in lake.topic_names() if topic_name.startswith(name)
        ] == []
