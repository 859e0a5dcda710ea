"""adopt_table: what it says of a table, what it writes, and what it refuses."""

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError, UnknownTopicError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.jobs.adopt_table import plan_adoption
from ebbtide.layouts.layout import LAYOUT, Choices
from ebbtide.runner.plan_text import render_plan
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import as_dict, iceberg_class
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import COMPACTED, Record, adopt, append, clean, spark_table
from tests.tables.adopted_layouts import REDPANDA
from tests.tables.fixtures import KilledError

ROWS = [Record(7, "a"), Record(9, None), Record(3, "b", None, partition=1)]


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def name(spark: SparkSession, cluster: str) -> str:
    spark_table(spark, f"{cluster}.t")
    append(spark, f"{cluster}.t", ROWS)
    return f"{cluster}.t"


def test_a_table_is_a_topic_from_then_on(
    spark: SparkSession, name: str, kill_at: list[Step]
) -> None:
    topic_name = TopicName.parse(name)
    before = current_snapshot(spark, topic_name.records_table)
    text = render_plan(
        "adopt_table", name, plan_adoption(spark, topic_name, Choices(), {}, 0).outcome()
    )
    assert "layout: Spark's Kafka source" in text
    assert "columns: partition: partition; offset: offset; timestamp: timestamp; key: key" in text
    assert "exact: supersede by key: the newest record of each key is retained" in text
    assert "approximate: segments: a nightly run begins a segment at the log end" in text
    for step in (Step.ADOPTED_STATE, Step.ADOPTED_LAYOUT):
        assert LAYOUT not in as_dict(
            spark, java_table(spark, topic_name.records_table).properties()
        )
        kill_at.append(step)
        with pytest.raises(KilledError):
            adopt(spark, name)
    adopt(spark, name)
    topic = load(spark, topic_name)
    assert topic.is_adopted
    assert current_snapshot(spark, topic_name.records_table) == before
    ends = {p: (s.log_start_offset, s.log_end_offset) for p, s in topic.partitions.items()}
    assert ends == {0: (0, 10), 1: (0, 4)}
    adopt(spark, name, {**COMPACTED, "kafka.segment.ms": "5"})
    again = load(spark, topic_name)
    assert again.config.segment_ms == 5
    assert again.partitions == topic.partitions


def test_what_cannot_be_a_topic_is_refused(
    sandbox: LakeSandbox, spark: SparkSession, cluster: str
) -> None:
    with pytest.raises(UnknownTopicError, match="found none"):
        adopt(spark, f"{cluster}.none")
    sandbox.topic(f"{cluster}.own")
    with pytest.raises(NotCoveredError, match="one of ebbtide's own topics"):
        adopt(spark, f"{cluster}.own")
    with pytest.raises(NotCoveredError, match="one of ebbtide's own topics"):
        adopt(spark, f"{cluster}.own@one")
    spark_table(spark, f"{cluster}.old", version=1)
    with pytest.raises(NotCoveredError, match="format version 2 or 3, found 1"):
        adopt(spark, f"{cluster}.old")


@pytest.mark.long
def test_columns_of_places_stay(spark: SparkSession, name: str) -> None:
    adopt(spark, name)
    with pytest.raises(NotCoveredError, match="run abandon_table first, then adopt_table"):
        adopt(spark, name, choices=Choices(offset="timestampType"))


@pytest.mark.long
def test_a_table_of_dead_letters_is_a_topic(spark: SparkSession, cluster: str) -> None:
    name = f"{cluster}.orders~dlq"
    REDPANDA.create(spark, name, 2)
    REDPANDA.append(spark, name, [Record(3, "a"), Record(9, "a")])
    assert "layout: Redpanda's Iceberg topics" in render_plan(
        "adopt_table", name, adopt(spark, name)
    )
    clean(spark, name, 10_000)
    assert REDPANDA.live(spark, name) == [(0, 9, False)]


@pytest.mark.parametrize("kind", ["timestamptz_ns", "timestamp_ns", "time"])
def test_a_column_that_spark_cannot_read_is_named(
    spark: SparkSession, name: str, kind: str
) -> None:
    types = iceberg_class(spark, "types.Types")
    changed = java_table(spark, TopicName.parse(name).records_table).updateSchema()
    changed = changed.addColumn("sent_at", types.fromPrimitiveString(kind))
    changed.addColumn("seen_at", types.ListType.ofOptional(99, types.fromPrimitiveString(kind)))
    changed.commit()
    with pytest.raises(NotCoveredError) as error:
        adopt(spark, name)
    assert f"found sent_at ({kind}), seen_at ({kind})" in str(error.value)
