"""A topic's state as a table: refused where commits are not exclusive, small where it is long."""

import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import iceberg_catalog, java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.state_table import (
    HeldState,
    create_namespace,
    create_state,
    drop_state,
    read_state,
)
from ebbtide.iceberg.topics import compare_and_set, load, read_again, set_properties
from ebbtide.lake.reader import open_lake
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import java_class
from ebbtide.state.topic_state import to_properties
from tests.lake_sandbox import LakeSandbox, state_of
from tests.tables.fixtures import KilledError
from tests.tables.nights import DAY_MS
from tests.tables.partition_log import T0
from tests.waiting import PATIENCE_S, wait_until

PARTITIONS, SEGMENTS = 1_000, 100
END = dict.fromkeys(("log_end_offset", "first_dirty_offset", "first_unmarked_offset"), 10**9)
MIB = 1024 * 1024


def _database_of(sandbox: LakeSandbox, catalog: str) -> sqlite3.Connection:
    uri = sandbox.catalogs()[f"spark.sql.catalog.{catalog}.uri"]
    file = uri.removeprefix("jdbc:sqlite:").partition("?")[0]
    return sqlite3.connect(file, isolation_level=None)


def test_two_jobs_may_open_a_new_database_at_the_same_time(sandbox: LakeSandbox) -> None:
    """The other one adds Iceberg's column after this one found none, and before it adds its own."""
    spark = sandbox.session
    sandbox.add_catalog("old")
    iceberg_catalog(spark, "old")
    uri = sandbox.catalogs()["spark.sql.catalog.old.uri"]
    patient = uri.replace("/old/", "/young/").replace("30000", "1800000")  # waits for the lock
    sandbox.add_catalog("young", {"uri": patient})
    with (
        closing(_database_of(sandbox, "old")) as old,
        closing(_database_of(sandbox, "young")) as other,
        ThreadPoolExecutor() as pool,
    ):
        for (statement,) in old.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"):
            other.execute(statement)
        other.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
        other.execute("BEGIN IMMEDIATE")  # others may read and not write
        opened = pool.submit(iceberg_catalog, spark, "young")
        try:
            wait_until(lambda: _waits_to_add(spark) or opened.done(), "the other job to wait")
            assert not opened.done()
            other.execute("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)")
        finally:
            other.execute("COMMIT")
        assert opened.result(PATIENCE_S).listNamespaces().size() == 0


def _waits_to_add(spark: SparkSession) -> bool:
    """Return whether a thread of the JVM waits for SQLite to add the column."""
    threads = java_class(spark, "org.apache.spark.util.Utils").getThreadDump()
    return any(
        "updateSchemaIfRequired" in text and "JDBC3PreparedStatement.execute" in text
        for text in (str(thread.toString()) for thread in threads)
    )


def test_two_jobs_may_create_a_namespace_at_the_same_time(sandbox: LakeSandbox) -> None:
    """The database inserts what another job has inserted since Iceberg looked, and then fails."""
    sandbox.add_catalog("both")
    create_namespace(sandbox.session, "both.before")
    columns = "catalog_name, namespace, property_key, property_value"
    with closing(_database_of(sandbox, "both")) as database:
        database.execute(
            "CREATE TRIGGER faster BEFORE INSERT ON iceberg_namespace_properties "
            "WHEN NEW.namespace = 'at_once' BEGIN "
            f"INSERT INTO iceberg_namespace_properties ({columns}) "
            f"VALUES (NEW.{columns.replace(', ', ', NEW.')}); "
            "SELECT RAISE(FAIL, 'UNIQUE constraint failed'); END"
        )
        database.execute(
            "CREATE TRIGGER refused BEFORE INSERT ON iceberg_namespace_properties "
            "WHEN NEW.namespace = 'never' BEGIN SELECT RAISE(FAIL, 'no'); END"
        )
    create_namespace(sandbox.session, "both.at_once")
    with pytest.raises(Py4JJavaError):
        create_namespace(sandbox.session, "both.never")
    namespaces = sandbox.session.sql("SHOW NAMESPACES IN both").collect()
    assert {row["namespace"] for row in namespaces} == {"before", "at_once"}


@pytest.mark.parametrize("has_parent", [False, True], ids=["first snapshot", "later ones"])
def test_a_catalog_that_takes_a_commit_from_an_older_base_is_refused(
    sandbox: LakeSandbox, cluster: str, monkeypatch: pytest.MonkeyPatch, has_parent: bool
) -> None:
    """No real catalog does; the stub commits on the newest base, whatever base was read."""
    spark, catalog = sandbox.session, f"careless_{int(has_parent)}"
    sandbox.add_catalog(catalog)
    name = TopicName(cluster, "t", catalog)
    commit = HeldState._commit

    def commit_anyway(held: HeldState, operations: Any, base: Any, to: dict[str, str]) -> None:
        if (base.currentSnapshot() is not None) == has_parent:
            base = operations.refresh()
        commit(held, operations, base, to)

    with monkeypatch.context() as patched:
        patched.setattr(HeldState, "_commit", commit_anyway)
        with pytest.raises(ConfigurationError, match=f"^expected catalog {catalog} to refuse a"):
            create_state(spark, name, {})
    assert spark.sql(f"SHOW NAMESPACES IN {catalog}").collect() == []
    assert read_state(spark, name) is None
    create_state(spark, name, {})
    assert read_state(spark, name) is not None


def test_a_state_table_that_was_dropped_is_made_again_whenever_a_job_is_killed(
    sandbox: LakeSandbox, cluster: str, kill_at: list[Step]
) -> None:
    """Of a topic that nothing was put in."""
    spark = sandbox.session
    sandbox.add_catalog("emptied")
    name = TopicName(cluster, "t", "emptied")
    kill_at.append(Step.PROBE)
    with pytest.raises(KilledError):
        sandbox.topic(str(name))
    sandbox.topic(str(name))
    drop_state(spark, name)
    moved = to_properties(0, state_of(log_start_offset=4))
    kill_at.append(Step.STATE_TABLE)
    with pytest.raises(KilledError):
        compare_and_set(load(spark, name), Step.LOG_START_OFFSET, lambda _: moved)
    after = compare_and_set(load(spark, name), Step.LOG_START_OFFSET, lambda _: moved)
    assert after.partitions == {0: state_of(log_start_offset=4)}
    assert read_again(after).partitions == after.partitions


def test_a_state_on_the_records_table_is_refused_and_stays(
    sandbox: LakeSandbox, cluster: str
) -> None:
    """As layout 1 had it, which no release wrote."""
    spark, name = sandbox.session, TopicName(cluster, "t")
    sandbox.topic(str(name))
    drop_state(spark, name)
    set_properties(spark, name.records_table, to_properties(0, state_of()))
    before = dict(java_table(spark, name.records_table).properties())
    with (
        open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake,
        pytest.raises(ConfigurationError, match="in layout 2, found 1, which no release"),
    ):
        lake.topic(str(name))
    with pytest.raises(ConfigurationError, match="in layout 2, found 1, which no release"):
        load(spark, name)
    assert dict(java_table(spark, name.records_table).properties()) == before
    assert read_state(spark, name) is None


def segments_of(rng: random.Random) -> tuple[tuple[int, int], ...]:
    """Base offsets and times that compress as little as real ones."""
    bases = sorted(rng.sample(range(10**9), SEGMENTS))
    return tuple((base, T0 + rng.randrange(365 * DAY_MS)) for base in bases)


@pytest.mark.long
def test_a_long_state_is_little_metadata_and_one_snapshot(
    sandbox: LakeSandbox, cluster: str
) -> None:
    rng = random.Random(0)
    states = {p: state_of(segments=segments_of(rng), **END) for p in range(PARTITIONS)}
    sandbox.topic(f"{cluster}.t", states)
    topic = load(sandbox.session, TopicName(cluster, "t"))
    for start in (1, 2):
        moved = to_properties(999, states[999].moved(log_start_offset=start))
        compare_and_set(topic, Step.LOG_START_OFFSET, lambda _, moved=moved: moved)
    after = read_again(topic)
    assert len(after.partitions) == PARTITIONS
    assert after.partitions[999].log_start_offset == 2
    assert after.partitions[0] == states[0]
    table = java_table(sandbox.session, topic.name.state_table)
    assert len(list(table.snapshots())) == 1
    in_properties = sum(len(n) + len(v) for n, v in after.properties.items())
    metadata = Path(urlparse(table.operations().current().metadataFileLocation()).path)
    assert in_properties < 4 * MIB
    assert metadata.stat().st_size < 1.5 * MIB
