"""A live ingest beside what others left or wrote: killed runs, segments, erasures."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from ebbtide.errors import (
    CommitConflictError,
    ForeignLogError,
    NotCoveredError,
    UnfinishedWorkError,
)
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.jobs.ingest_segments.append import TOPIC_ID
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import SOURCE
from ebbtide.state.topic_state import SLICE, to_properties
from tests.jobs.ingest_topic.consumed import consumed
from tests.jobs.ingest_topic.live import CONNECTION, NOW_MS, Writer, create, records_of, take
from tests.kafka.broker import KafkaBroker
from tests.kafka.delete_broker import lines_of
from tests.tables.contents import contents
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.nights import ingest
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.broker
STEPS = (
    *(Step.CREATE_TOPIC, Step.LIVE_SLICE),
    *(Step.INGEST_RECORDS, Step.INGEST_BATCHES, Step.INGEST_STATE),
)


def test_a_run_that_is_killed_at_each_commit_is_finished_without_a_duplicate_or_a_hole(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, kill_at: list[Step]
) -> None:
    create(broker, name.topic, 2)
    for partition in range(2):
        Writer(broker, name.topic, partition).write(5 + partition)
    unbroken = TopicName("unbroken", name.topic)
    take(spark, unbroken)
    kill_at += STEPS
    while kill_at:
        with pytest.raises(KilledError):
            take(spark, name)

    take(spark, name)

    assert contents(spark, name) == contents(spark, unbroken)
    assert SLICE not in load(spark, name).properties


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS[1:])
def test_a_killed_run_is_finished_also_when_the_topic_has_grown(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, kill_at: list[Step], step: Step
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(4)
    take(spark, name)
    writer.write(5)
    kill_at.append(step)
    with pytest.raises(KilledError):
        take(spark, name)
    writer.write(3)

    take(spark, name)

    assert records_of(spark, name) == consumed(broker, name)
    assert [row["record_count"] for row in contents(spark, name).batches] in ([4, 8], [4, 5, 3])


def test_these_are_all_steps_of_a_run(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, name.topic)
    Writer(broker, name.topic).write(1)
    steps: list[Step] = []
    monkeypatch.setattr(commits, "before_commit", steps.append)
    take(spark, name)
    assert tuple(steps) == STEPS
    assert {step for step in Step if step.startswith(("ingest", "live"))} < set(STEPS)


@pytest.mark.long
def test_a_topic_ingested_from_its_segments_goes_on_live(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic, transactional_id=name.topic)
    writer.begin().write(3, "c").commit().begin().write(2, "a").abort()  # up to 7
    ingest_segments(spark, name, broker, 7)
    writer.begin().write(2, "d").commit()
    take(spark, name)
    assert records_of(spark, name) == consumed(broker, name)
    assert load(spark, name).properties["ebbtide.source"] == f"kafka:{CONNECTION}"
    producers = [row["producer_id"] == -1 for row in contents(spark, name).batches]
    assert producers == [False, False, False, False, True]


@pytest.mark.long
def test_a_topic_taken_live_goes_on_from_its_segments(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, kill_at: list[Step]
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(5)
    take(spark, name)
    writer.write(3)
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        take(spark, name)
    writer.write(2)
    with pytest.raises(
        UnfinishedWorkError, match=r"ingest_topic is running or was killed\. Run it again"
    ):
        ingest_segments(spark, name, broker, 10)
    take(spark, name)
    writer.write(1)
    ingest_segments(spark, name, broker, 11)
    assert records_of(spark, name) == consumed(broker, name)
    epochs = [row["leader_epoch"] for row in contents(spark, name).batches]
    assert epochs == [None, None, None, 0]


@pytest.mark.long
def test_what_another_killed_ingest_left_is_not_taken_for_a_slice(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, kill_at: list[Step]
) -> None:
    create(broker, name.topic)
    Writer(broker, name.topic, transactional_id=name.topic).begin().write(3).abort()
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        ingest_segments(spark, name, broker, 4)
    with pytest.raises(
        UnfinishedWorkError, match=r"ingest_segments is running or was killed\. Run it again"
    ):
        take(spark, name)
    ingest_segments(spark, name, broker, 4)
    take(spark, name)
    assert records_of(spark, name) == []


@pytest.mark.long
def test_records_that_were_appended_directly_are_never_mixed_with_the_brokers(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(3)
    take(spark, name)
    topic = load(spark, name)
    given = topic.partitions[0].moved(first_appended_offset=3, log_end_offset=5)
    compare_and_set(topic, Step.INGEST_STATE, lambda _: to_properties(0, given))
    assert take(spark, name).partitions[0]["records"] == 0
    writer.write(1)
    with pytest.raises(ForeignLogError, match="to end at or before offset 3"):
        take(spark, name)


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS[1:])
def test_two_runs_at_a_time_take_each_record_once(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, meanwhile: Meanwhile, step: Step
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(2)
    take(spark, name)
    writer.write(3)
    meanwhile(step, lambda: take(spark, name))
    with pytest.raises(CommitConflictError):
        take(spark, name)
    assert load(spark, name).partitions[0].log_end_offset == 5
    take(spark, name)
    assert [record.offset for record in records_of(spark, name)] == [0, 1, 2, 3, 4]


def test_segments_that_come_before_a_live_slice_are_what_the_source_names(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, meanwhile: Meanwhile
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(3)
    ingest_segments(spark, name, broker, 3)
    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: {SOURCE: None})
    writer.write(2)
    meanwhile(Step.LIVE_SLICE, lambda: ingest_segments(spark, name, broker, 5))
    with pytest.raises(CommitConflictError):
        take(spark, name)
    take(spark, name)  # there is nothing left
    assert load(spark, name).properties[SOURCE].startswith("segments:")
    assert records_of(spark, name) == consumed(broker, name)


def test_a_log_that_is_refused_pins_no_topic_id(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(3)
    take(spark, name)
    topic = load(spark, name)
    given = topic.partitions[0].moved(first_appended_offset=3, log_end_offset=5)
    compare_and_set(topic, Step.INGEST_STATE, lambda _: to_properties(0, given))
    compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: {TOPIC_ID: None})
    writer.write(1)
    with pytest.raises(ForeignLogError):
        take(spark, name)
    assert TOPIC_ID not in load(spark, name).properties


@pytest.mark.long
def test_a_table_that_waits_for_the_end_of_a_transaction_is_refused(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic, transactional_id=name.topic)
    writer.begin().write(3)
    ingest_segments(spark, name, broker, 3)
    writer.commit()
    with pytest.raises(NotCoveredError, match=r"found one of producer .* in partition 0"):
        take(spark, name)
    ingest_segments(spark, name, broker, 4)
    writer.begin().write(1).commit()
    take(spark, name)
    assert records_of(spark, name) == consumed(broker, name)


@pytest.mark.long
def test_a_time_that_spark_cannot_read_is_taken_from_the_segments(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    """Brokers 3.6 to 3.9 take any time, such as that of a producer that stamps in nanoseconds."""
    create(broker, name.topic, message_timestamp_after_max_ms=str(2**63 - 1))
    writer = Writer(broker, name.topic).write(5)
    take(spark, name)
    producer = Producer(broker.client())
    producer.produce(name.topic, b"v", b"k", timestamp=2**63 - 1)
    assert producer.flush(PATIENCE_S) == 0
    with pytest.raises(NotCoveredError, match="run ingest_segments, which reads any time"):
        take(spark, name)
    ingest_segments(spark, name, broker, 6)
    assert contents(spark, name).batches[-1]["max_timestamp_ms"] == 2**63 - 1
    writer.write(1)
    take(spark, name)
    assert [record.offset for record in records_of(spark, name)] == [*range(7)]


def ingest_segments(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, log_end_offset: int
) -> None:
    """From the broker's own directory, once its checkpoints say that it ends there."""
    checkpoint = broker.log_dir / "replication-offset-checkpoint"
    said = f"{name.topic} 0 {log_end_offset}"
    wait_until(lambda: said in lines_of(checkpoint), f"{said!r} in {checkpoint.name}")
    ingest(spark, str(name), broker.log_dir, NOW_MS)
