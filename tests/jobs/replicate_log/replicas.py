"""A topic with a replica in another catalog, and what both hold."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import REPLICATION
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.kafka_view import view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, ingest, mark

COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
NIGHT_MS = FIRST_MS + 10 * DAY_MS
# Each night writes `a` again, one key of its own, and deletes the key of the night before.
NIGHTS = [
    [Message("a", str(n)), Message(f"k{n}", "1"), Message(f"k{n - 1}", None)] for n in range(12)
]


def grow(
    sandbox: LakeSandbox, name: TopicName, home: Path, nights: Sequence[Sequence[Message]]
) -> None:
    """Ingest a log that goes on as far as these nights, a segment each and an empty active one."""
    directory = home / f"log{len(nights)}"
    for partition in range(2):
        write_log(directory, "t", [*nights, []], COMPACT, partition=partition)
    ingest(sandbox.session, str(name), directory, FIRST_MS)
    mark(sandbox.session, str(name))


def set_replicas(sandbox: LakeSandbox, name: TopicName, text: str | None) -> None:
    topic = load(sandbox.session, name)
    compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: {"ebbtide.replicas": text})


def name_lost_catalog(sandbox: LakeSandbox) -> None:
    """Set up a catalog `gone` that does not answer."""
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc"}.items():
        sandbox.session.conf.set(f"spark.sql.catalog.gone{key}", value)
    sandbox.session.conf.set("spark.sql.catalog.gone.uri", "jdbc:sqlite:/nowhere/catalog.db")
    sandbox.session.conf.set("spark.sql.catalog.gone.warehouse", "/nowhere")


def replica_of(name: TopicName) -> TopicName:
    return name._replace(catalog="other")


def replicate(sandbox: LakeSandbox, name: TopicName) -> JobOutcome:
    return execute_replicate(plan_replicate(load(sandbox.session, name)), NIGHT_MS)


def clean_both(sandbox: LakeSandbox, name: TopicName, now_ms: int) -> None:
    for topic in (name, replica_of(name)):
        mark(sandbox.session, str(topic))
        execute_clean(plan_clean(settle(load(sandbox.session, topic), "expire_segments"), now_ms))
        execute_expire(plan_expire(settle(load(sandbox.session, topic), "expire_segments"), now_ms))


def assert_equal(sandbox: LakeSandbox, name: TopicName) -> None:
    """All that Kafka and a table know of both partitions."""
    for partition in range(2):
        expected = view_of_table(sandbox.session, name, partition)
        assert view_of_table(sandbox.session, replica_of(name), partition) == expected
    assert_sound(sandbox, replica_of(name))


def assert_sound(sandbox: LakeSandbox, name: TopicName) -> None:
    """No physical segment reaches over the beginning of a logical one, and no row is there twice.

    Who plans a round or a truncation by segment relies on it.
    """
    assert_counted(sandbox.session, name)
    topic = load(sandbox.session, name)
    assert REPLICATION not in topic.properties
    for table, offset in ((name.records_table, "offset"), (name.batches_table, "base_offset")):
        rows = sandbox.session.sql(f"SELECT `partition`, segment, {offset} FROM {table}").collect()
        assert len(set(rows)) == len(rows)
        for partition, state in topic.partitions.items():
            bases = [base for base, _ in state.segments]
            for row in (row for row in rows if row["partition"] == partition):
                between = [b for b in bases if row["segment"] < b <= row[offset]]
                assert not between, (table, row, bases)


def latest_values(sandbox: LakeSandbox, name: TopicName) -> list[dict[bytes, bytes | None]]:
    """The latest value of each key in each partition; a tombstone is none."""
    by_partition = []
    for partition in range(2):
        records = view_of_table(sandbox.session, name, partition).records
        values = {record[3]: record[4] for record in records}
        by_partition.append({key: value for key, value in values.items() if value is not None})
    return by_partition


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> LakeSandbox:
    """A lake with another catalog beside it."""
    sandbox = LakeSandbox(tmp_path_factory.mktemp("lake") / "home")
    sandbox.add_catalog("other")
    return sandbox


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """Four nights in two partitions, ingested and marked, with a replica to be."""
    name = TopicName(cluster, "t")
    grow(sandbox, name, tmp_path, NIGHTS[:4])
    set_replicas(sandbox, name, f"other.{cluster}")
    return name
