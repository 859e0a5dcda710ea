"""A live topic against what its own broker makes of it: by its files, and by its cleaner."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.jobs.configure_topic import changes_from_source, execute_configure, plan_configure
from ebbtide.moments import to_ms
from ebbtide.settings.config import drifts
from ebbtide.settings.names import TopicName
from tests.jobs.export_segments.exports import assert_same, export, kafkas_states
from tests.jobs.ingest_topic.live import FIRST_MS, NOW_MS, Writer, connect, create, records_of, take
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import ConsumedRecord, consume
from tests.kafka.delete_broker import SETTINGS, lines_of
from tests.lake_sandbox import LakeSandbox
from tests.tables.kafka_view import view_of_kafka, view_of_table
from tests.tables.nights import HOUR_MS, clean, ingest, mark
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One whose log cleaner looks often."""
    cleaning = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200"}
    settings = {**SETTINGS, **cleaning}
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker"), **settings) as broker:
        yield broker


@pytest.fixture
def spark(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> SparkSession:
    connect(monkeypatch, broker)
    return sandbox.session


def consumed(broker: KafkaBroker, topic: str) -> list[ConsumedRecord]:
    return consume(broker.client(), [(topic, 0)], "read_committed")[topic, 0]


def checkpointed(broker: KafkaBroker, checkpoint: str, topic: str) -> int:
    """The offset that a checkpoint file has for partition 0; -1 for none."""
    for line in lines_of(broker.log_dir / checkpoint):
        if line.startswith(f"{topic} 0 "):
            return int(line.split()[-1])
    return -1


def wait_for_offset(broker: KafkaBroker, checkpoint: str, topic: str, offset: int) -> None:
    wait_until(
        lambda: checkpointed(broker, checkpoint, topic) >= offset,
        f"{checkpoint} to have offset {offset} of {topic}",
    )


def alter(broker: KafkaBroker, topic: str, **config: str) -> None:
    """Change the topic's configuration at the broker; `_` stands for the dots in names."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    admin = AdminClient(broker.client())
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for done in admin.incremental_alter_configs([asked]).values():
        done.result(timeout=PATIENCE_S)


def write_all_kinds(broker: KafkaBroker, topic: str) -> int:
    """All codecs, tombstones, committed and aborted transactions; where the log ends."""
    for codec in CODECS:
        Writer(broker, topic, compression_codec=codec).write(5, codec).write(3, "shared", codec)
    writer = Writer(broker, topic, transactional_id=topic, compression_codec="zstd")
    writer.begin().write(4, "shared", "c").commit().begin().write(4, "shared", "a").abort()
    writer.begin().write(2, "none", value=None).commit()
    return 8 * len(CODECS) + 4 + 4 + 2 + 3


def latest(records: list[ConsumedRecord]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


def test_a_topic_is_the_same_by_its_files_and_live(
    spark: SparkSession, broker: KafkaBroker
) -> None:
    live, files = TopicName("live", "kinds"), TopicName("files", "kinds")
    create(broker, "kinds", segment_ms="1")  # but for the last, each batch can be cleaned
    end = write_all_kinds(broker, "kinds")
    wait_for_offset(broker, "replication-offset-checkpoint", "kinds", end)
    take(spark, live, max_offsets=11)
    ingest(spark, str(files), broker.log_dir, NOW_MS)
    expected = consumed(broker, "kinds")
    assert len(expected) == 46
    assert records_of(spark, live) == records_of(spark, files) == expected
    ends = {name: load(spark, name).partitions[0].log_end_offset for name in (live, files)}
    assert ends == {live: end, files: end}

    compact = {"kafka.cleanup.policy": "compact", "kafka.min.cleanable.dirty.ratio": "0"}
    for name in (live, files):
        compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: compact)
        mark(spark, str(name))
    Writer(broker, "kinds", first_ms=FIRST_MS + 1000).write(1, "last")
    wait_for_offset(broker, "replication-offset-checkpoint", "kinds", end + 1)
    for name in (live, files):
        take(spark, name) if name is live else ingest(spark, str(name), broker.log_dir, NOW_MS)
        mark(spark, str(name))
        assert clean(spark, str(name), NOW_MS).rows_removed > 0
        assert latest(records_of(spark, name)) == latest(consumed(broker, "kinds"))


def test_kafkas_classes_read_an_export_of_it_as_the_tables_say(
    spark: SparkSession, broker: KafkaBroker, kafka_jars: Path, tmp_path: Path
) -> None:
    """Sizes of batches too, which are worked out and not read."""
    for kind in ("CreateTime", "LogAppendTime"):
        topic = f"exported-{kind}"
        create(broker, topic, message_timestamp_type=kind)
        Writer(broker, topic).write(30, "k", "v" * 100, step_ms=7).write(3, value=None)
        name = TopicName("live", topic)
        take(spark, name, max_offsets=20)
        export(spark, name, tmp_path / kind)
        view = view_of_kafka(kafkas_states(tmp_path / kind, kafka_jars)[f"{topic}-0"])
        held = view_of_table(spark, name, 0)
        epochs = [{**batch, "leader_epoch": -1} for batch in held.batches]
        assert_same(view, held._replace(batches=epochs))
        assert [batch["size_bytes"] for batch in view.batches] == [
            batch["size_bytes"] for batch in held.batches
        ]


def test_what_the_night_leaves_of_a_live_topic_is_what_its_brokers_cleaner_leaves(
    spark: SparkSession, broker: KafkaBroker
) -> None:
    """From broker to table, marked and cleaned; the settings are taken over from the broker."""
    name = TopicName("live", "cleaned")
    # Segments by time alone; no round begins while nothing is dirtier than all.
    create(
        broker, "cleaned", segment_ms="1", cleanup_policy="compact", min_cleanable_dirty_ratio="1"
    )
    for i in range(4):
        Writer(broker, "cleaned", first_ms=FIRST_MS + i * 10).write(
            6 - i, value=f"r{i}-", step_ms=0
        )
    writer = Writer(broker, "cleaned", transactional_id="cleaned", first_ms=FIRST_MS + 100)
    writer.begin().write(3, "k", "t", step_ms=0).commit()
    writer.begin().write(5, "k", "aborted", step_ms=0).abort()
    writer.begin().write(2, "k", value=None, step_ms=0).commit()
    # After all markers, which have the broker's clock: the active segment of both logs. A commit
    # returns before its marker is written.
    active = 18 + 4 + 6 + 3
    wait_for_offset(broker, "replication-offset-checkpoint", "cleaned", active)
    last_ms = to_ms(datetime.now(UTC)) + HOUR_MS
    Writer(broker, "cleaned", first_ms=last_ms).write(1, "last")
    take(spark, name, now_ms=to_ms(datetime.now(UTC)))
    assert load(spark, name).partitions[0].active_segment == active
    before = consumed(broker, "cleaned")
    assert records_of(spark, name) == before
    assert "kafka.cleanup.policy" not in load(spark, name).properties

    alter(broker, "cleaned", min_cleanable_dirty_ratio="0")
    wait_for_offset(broker, "cleaner-offset-checkpoint", "cleaned", active)
    topic = load(spark, name)
    changes = changes_from_source(topic)
    assert changes == {
        "kafka.cleanup.policy": "compact",
        "kafka.min.cleanable.dirty.ratio": "0.0",
    }
    execute_configure(plan_configure(topic, changes, to_ms(datetime.now(UTC))))
    mark(spark, str(name))
    clean(spark, str(name), to_ms(datetime.now(UTC)))

    after = consumed(broker, "cleaned")
    assert len(after) < len(before)
    assert records_of(spark, name) == after

    # What the cleaner left has gaps, and goes live into another table as it is.
    again = TopicName("again", "cleaned")
    take(spark, again)
    assert records_of(spark, again) == after


def test_settings_that_lay_out_come_along_and_those_that_remove_are_reported(
    spark: SparkSession, broker: KafkaBroker
) -> None:
    name = TopicName("live", "drifting")
    create(
        broker, "drifting", segment_bytes="2000000", cleanup_policy="compact", retention_bytes="5"
    )
    Writer(broker, "drifting").write(2)
    outcome = take(spark, name)
    properties = load(spark, name).properties
    assert properties["kafka.segment.bytes"] == "2000000"
    assert "kafka.cleanup.policy" not in properties
    expected = [
        {"name": "kafka.cleanup.policy", "table": None, "broker": "compact"},
        {"name": "kafka.retention.bytes", "table": None, "broker": "5"},
    ]
    assert outcome.topic["drift"] == expected
    assert '{"topic": "live.drifting", "from_source": true' in outcome.topic["note"]

    topic = load(spark, name)
    execute_configure(plan_configure(topic, changes_from_source(topic), NOW_MS))
    assert load(spark, name).config.is_compacted
    quiet = take(spark, name)
    assert quiet.topic == {"drift": []}

    alter(broker, "drifting", segment_bytes="3000000")
    assert [difference["name"] for difference in take(spark, name).topic["drift"]] == [
        "kafka.segment.bytes"
    ]
    assert drifts(load(spark, name).properties, {"segment.bytes": "2000000"}) == []
