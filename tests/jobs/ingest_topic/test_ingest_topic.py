"""A live topic into the tables, by Spark's Kafka source from a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from ebbtide.errors import (
    ConfigurationError,
    ForeignLogError,
    OffsetGapError,
    UnavailableError,
)
from ebbtide.iceberg.topics import exists, load
from ebbtide.jobs.ingest_topic import LiveSource, ingest_topic
from ebbtide.kafka.live_offsets import Isolation
from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.erased import note_erased, refused_records
from tests.jobs.ingest_topic.consumed import consumed
from tests.jobs.ingest_topic.live import (
    CONNECTION,
    FIRST_MS,
    NOW_MS,
    Writer,
    connect,
    create,
    records_of,
    take,
)
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import consume
from tests.ports import free_port
from tests.tables.contents import contents
from tests.tables.nights import at, mark
from tests.tables.truth import Truth, size_bytes
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.broker


def test_a_topic_goes_into_the_tables_as_a_consumer_gets_it(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic, 3)
    producer = Producer(broker.client())
    for i in range(41):
        producer.produce(
            name.topic,
            None if i % 5 == 0 else b"v" * i,
            None if i % 3 == 0 else b"" if i % 4 == 0 else f"k{i}".encode(),
            partition=i % 2,
            timestamp=FIRST_MS + i,
            headers=[("a", b"1"), ("é", None), ("a", b"")] if i % 4 > 1 else None,
        )
    assert producer.flush(PATIENCE_S) == 0

    outcome = take(spark, name)

    partitions = [(name.topic, partition) for partition in range(3)]
    consumed_records = consume(broker.client(), partitions, "read_committed")
    for partition in range(3):
        assert records_of(spark, name, partition) == consumed_records[name.topic, partition]
    ends = {p: state.log_end_offset for p, state in load(spark, name).partitions.items()}
    assert ends == {0: 21, 1: 20, 2: 0}
    assert outcome.partitions[0] == {
        "log_start_offset": 0,
        "low_watermark": 0,
        "log_end_offset": 21,
        "records": 21,
        "batches": 1,
        "bytes": size_bytes(Truth.nothing().read_again(spark, name).headers(0, 0)),
        "segments": 1,
        "skipped": [],
        "accepted_gaps": [],
        "timestamps_in_headers": 0,
        "event_times_missing": 0,
    }
    assert outcome.partitions[2]["records"] == 0


def test_the_next_run_adds_what_is_new_and_one_with_nothing_new_changes_nothing(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(5)
    take(spark, name)
    held = contents(spark, name)
    assert take(spark, name, now_ms=NOW_MS + 1).snapshot_ids == []
    assert contents(spark, name) == held

    writer.write(3)
    outcome = take(spark, name, now_ms=NOW_MS + 1)

    assert outcome.partitions[0]["records"] == 3
    assert records_of(spark, name) == consumed(broker, name)
    assert contents(spark, name).records[:5] == held.records
    assert [row["last_offset"] for row in contents(spark, name).batches] == [4, 7]


@pytest.mark.long
def test_an_older_record_of_an_erased_key_enters_without_it(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    Writer(broker, name.topic).write(2)  # k0, and k1 a millisecond later
    for key in ("k0", "k1"):
        note_erased(spark, name, key, FIRST_MS + 1)
    take(spark, name)
    first, second = records_of(spark, name)
    assert (first.offset, first.key, first.value, first.headers) == (0, None, None, ())
    assert second == consumed(broker, name)[1]
    mark(spark, str(name))
    assert records_of(spark, name) == [second]
    assert refused_records(spark, name) == [(0, "erased_key", None, None)]
    assert load(spark, name).partitions[0].log_end_offset == 2


@pytest.mark.long
def test_slices_of_few_offsets_make_the_same_log(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic, 2)
    for partition in range(2):
        Writer(broker, name.topic, partition).write(10 + partition)
    outcome = take(spark, name, max_offsets=8)
    tables = contents(spark, name)
    assert records_of(spark, name) == consumed(broker, name)
    bounds = [(b["base_offset"], b["last_offset"]) for b in tables.batches if b["partition"] == 1]
    assert bounds == [(0, 3), (4, 7), (8, 10)]
    assert outcome.partitions[1]["records"] == 11
    assert outcome.partitions[1]["batches"] == 3
    assert {row["segment"] for row in tables.records} == {0}


@pytest.mark.long
def test_only_what_is_decided_is_taken_and_nothing_of_what_was_aborted(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic, transactional_id=name.topic)
    writer.begin().write(3, "c").commit()  # 0 to 2, its marker at 3
    writer.begin().write(3, "a").abort()  # 4 to 6, its marker at 7
    take(spark, name)
    assert load(spark, name).partitions[0].log_end_offset == 8
    assert [record.offset for record in records_of(spark, name)] == [0, 1, 2]

    writer.begin().write(2, "o")  # 8 and 9
    Writer(broker, name.topic).write(1, "p")  # 10
    waiting = take(spark, name)
    assert load(spark, name).partitions[0].log_end_offset == 8
    assert waiting.partitions[0]["records"] == 0

    writer.commit()
    take(spark, name, max_offsets=1)
    assert load(spark, name).partitions[0].log_end_offset == 12
    assert records_of(spark, name) == consumed(broker, name)
    assert [record.offset for record in records_of(spark, name)] == [0, 1, 2, 8, 9, 10]


@pytest.mark.long
def test_read_uncommitted_takes_all_up_to_the_high_watermark(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    writer = Writer(broker, name.topic, transactional_id=name.topic)
    writer.begin().write(3, "a").abort().begin().write(2, "o")
    take(spark, name, isolation=Isolation.READ_UNCOMMITTED)
    assert load(spark, name).partitions[0].log_end_offset == 6
    assert records_of(spark, name) == consumed(broker, name, "read_uncommitted")
    assert [record.offset for record in records_of(spark, name)] == [0, 1, 2, 4, 5]
    writer.abort()


@pytest.mark.long
def test_records_that_the_broker_stamped_say_so(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic, message_timestamp_type="LogAppendTime")
    writer = Writer(broker, name.topic).write(3)
    writer.write(2)
    take(spark, name)
    tables = contents(spark, name)
    assert records_of(spark, name) == consumed(broker, name)
    assert {row["attributes"] for row in tables.batches} == {8}
    for record in tables.records:
        assert record["timestamp"] == record["append_time"] == record["event_time"]
    for batch in tables.batches:
        timestamps = {r["timestamp"] for r in tables.records if r["batch"] == batch["base_offset"]}
        assert len(timestamps) == 1
    assert load(spark, name).properties["kafka.message.timestamp.type"] == "LogAppendTime"


@pytest.mark.long
def test_a_new_partition_begins_where_the_broker_begins_it(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    Writer(broker, name.topic).write(2)
    take(spark, name)
    admin = AdminClient(broker.client())
    for done in admin.create_partitions([NewPartitions(name.topic, 2)]).values():
        done.result(timeout=PATIENCE_S)
    Writer(broker, name.topic, 1).write(3)
    take(spark, name)
    assert {p: s.log_end_offset for p, s in load(spark, name).partitions.items()} == {0: 2, 1: 3}


def test_a_topic_that_was_created_anew_is_refused(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    Writer(broker, name.topic).write(2)
    take(spark, name)
    held = contents(spark, name)
    admin = AdminClient(broker.client())
    for deleted in admin.delete_topics([name.topic]).values():
        deleted.result(timeout=PATIENCE_S)
    create(broker, name.topic)
    Writer(broker, name.topic).write(5)
    with pytest.raises(ForeignLogError, match="the topic was deleted and created again"):
        take(spark, name)
    assert contents(spark, name) == held


@pytest.mark.long
def test_offsets_that_the_broker_removed_before_are_lost_only_if_that_is_accepted(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic, 2)
    for partition in range(2):
        Writer(broker, name.topic, partition).write(3)
    take(spark, name)
    for partition in range(2):
        Writer(broker, name.topic, partition).write(4)
    remove(broker, name.topic, 5)

    lost = rf"^expected offset 3, .*, in {name.topic}-0, .* 2 offsets were removed there"
    with pytest.raises(OffsetGapError, match=lost):
        take(spark, name)
    ends = {p: state.log_end_offset for p, state in load(spark, name).partitions.items()}
    assert ends == {0: 3, 1: 7}  # the other partition goes on

    outcome = take(spark, name, accept_gap=True)
    assert outcome.partitions[0]["accepted_gaps"] == [(3, 5)]
    assert [record.offset for record in records_of(spark, name)] == [0, 1, 2, 5, 6]
    assert load(spark, name).partitions[0].log_start_offset == 0


def remove(broker: KafkaBroker, topic: str, before: int) -> None:
    """DeleteRecords on partition 0."""
    admin = AdminClient(broker.client())
    for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result(timeout=PATIENCE_S)


def test_a_plan_creates_nothing_and_says_how_much_there_is(
    spark: SparkSession, name: TopicName, broker: KafkaBroker
) -> None:
    create(broker, name.topic)
    Writer(broker, name.topic).write(5)
    source = LiveSource(CONNECTION, at(NOW_MS))
    outcome = ingest_topic(spark, name, source, is_plan_only=True)
    assert outcome.partitions[0]["offsets"] == 5
    assert not exists(spark, name)


def test_a_topic_that_the_brokers_do_not_have_is_named(
    spark: SparkSession, name: TopicName
) -> None:
    with pytest.raises(ConfigurationError, match=f"to describe {name.topic}, found UNKNOWN_TOPIC"):
        take(spark, name)
    assert not exists(spark, name)


@pytest.mark.long
def test_brokers_that_do_not_answer_may_answer_a_retry(
    spark: SparkSession, name: TopicName, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    connect(monkeypatch, broker, **{"bootstrap.servers": f"127.0.0.1:{port}"})
    with pytest.raises(UnavailableError, match="Run it again once the brokers can be reached"):
        take(spark, name)
