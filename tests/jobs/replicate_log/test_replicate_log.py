"""replicate_log on tables: what a replica holds, whatever became of its primary meanwhile."""

from pathlib import Path

import pytest

from ebbtide.errors import (
    ConfigurationError,
    ForeignLogError,
    UnavailableError,
)
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, current_snapshot, load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.kafka.low_watermarks import settings_to_follow
from ebbtide.settings.names import TopicName
from tests.jobs.replicate_log.replicas import (
    COMPACT,
    NIGHT_MS,
    NIGHTS,
    assert_equal,
    assert_sound,
    clean_both,
    grow,
    latest_values,
    name_lost_catalog,
    replica_of,
    replicate,
    set_replicas,
)
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import Meanwhile
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, write_log
from tests.tables.nights import DAY_MS, clean, ingest
from tests.tables.other_tools import expire_all, rewrite_files, tables_of


def test_a_new_replica_is_its_primary(sandbox: LakeSandbox, name: TopicName) -> None:
    outcome = replicate(sandbox, name)
    assert_equal(sandbox, name)
    primary, replica = load(sandbox.session, name), load(sandbox.session, replica_of(name))
    assert replica.partitions == primary.partitions
    assert settings_to_follow(primary.properties, replica.properties) == {}
    assert replica.config.is_compacted
    assert replica.config.replicas == ()
    committed = sandbox.session.table(replica_of(name).committed_view)
    assert committed.count() == 2 * 12
    for attribute in ("null_tombstones_view", "latest_view"):
        views = [sandbox.session.table(getattr(n, attribute)) for n in (name, replica_of(name))]
        rows, copied = (view.orderBy("partition", "offset").collect() for view in views)
        assert copied == rows
        assert rows
    assert outcome.error is None
    numbers = outcome.topic["replicas"][str(replica_of(name))]
    assert numbers == {"records": 24, "batches": 8, "emptied": [], "records_removed": 0}
    assert outcome.partitions[0] == {
        "log_start_offset": 0,
        "low_watermark": 0,
        "log_end_offset": 12,
        "replica_end_offsets": {str(replica_of(name)): 12},
    }


@pytest.mark.long
def test_rows_are_counted_though_other_tools_expire_the_snapshots_that_brought_them(
    sandbox: LakeSandbox, name: TopicName, meanwhile: Meanwhile
) -> None:
    def tools() -> None:
        rewrite_files(sandbox.session, tables_of(replica_of(name)))
        expire_all(sandbox.session, tables_of(replica_of(name)))

    meanwhile(Step.REPLICATE_STATE, tools)
    numbers = replicate(sandbox, name).topic["replicas"][str(replica_of(name))]
    assert (numbers["records"], numbers["batches"]) == (24, 8)


@pytest.mark.long
def test_nothing_to_replicate_commits_nothing(sandbox: LakeSandbox, name: TopicName) -> None:
    replicate(sandbox, name)
    tables = [
        t for topic in (name, replica_of(name)) for t in (topic.records_table, topic.batches_table)
    ]
    before = [metadata_of(sandbox, table) for table in tables]
    assert replicate(sandbox, name).topic["replicas"] == {}
    assert [metadata_of(sandbox, table) for table in tables] == before


def metadata_of(sandbox: LakeSandbox, table: str) -> str:
    operations = java_table(sandbox.session, table).operations()
    return str(operations.current().metadataFileLocation())


@pytest.mark.long
def test_only_what_is_new_is_appended(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    replicate(sandbox, name)
    before = current_snapshot(sandbox.session, replica_of(name).records_table)
    grow(sandbox, name, tmp_path, NIGHTS[:5])
    outcome = replicate(sandbox, name)
    assert_equal(sandbox, name)
    assert outcome.topic["replicas"][str(replica_of(name))]["records"] == 6
    snapshot = java_table(sandbox.session, replica_of(name).records_table).currentSnapshot()
    assert snapshot.parentId() == before
    # A streaming reader of the replica meets what is new as an append.
    assert snapshot.operation() == "append"


@pytest.mark.long
def test_settings_follow_but_for_the_replicas_own(sandbox: LakeSandbox, name: TopicName) -> None:
    replicate(sandbox, name)
    topic, replica = load(sandbox.session, name), load(sandbox.session, replica_of(name))
    compare_and_set(
        topic,
        Step.CONFIGURE_TOPIC,
        lambda _: {"kafka.retention.ms": "7", "kafka.min.cleanable.dirty.ratio": None},
    )
    compare_and_set(replica, Step.CONFIGURE_TOPIC, lambda _: {"ebbtide.enabled": "false"})
    replicate(sandbox, name)
    copy = load(sandbox.session, replica_of(name))
    assert copy.config.retention_ms == 7
    assert copy.config.min_cleanable_dirty_ratio == 0.5
    assert not copy.config.is_enabled
    assert "ebbtide.replicas" not in copy.properties


@pytest.mark.long
def test_a_late_replica_of_a_cleaned_and_merged_primary_ends_like_it(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS)
    for night in range(3):
        clean(sandbox.session, str(name), NIGHT_MS + night * DAY_MS)
    assert merge_segments(load(sandbox.session, name), at_least=2) > 0
    replicate(sandbox, name)
    assert_sound(sandbox, replica_of(name))
    for night in (4, 6):
        clean_both(sandbox, name, NIGHT_MS + night * DAY_MS)
    assert latest_values(sandbox, replica_of(name)) == latest_values(sandbox, name)
    assert latest_values(sandbox, name)[0] == {b"a": b"11", b"k11": b"1"}
    assert merge_segments(load(sandbox.session, replica_of(name)), at_least=2) > 0
    assert execute_expire_snapshots(load(sandbox.session, replica_of(name))).topic["bytes_kept"] > 0
    assert latest_values(sandbox, replica_of(name)) == latest_values(sandbox, name)
    assert_sound(sandbox, replica_of(name))


@pytest.mark.long
def test_a_log_start_offset_is_followed_and_what_lies_below_it_goes(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:5])
    set_replicas(sandbox, name, None)
    execute_delete(plan_delete(load(sandbox.session, name), {0: 7, 1: 14}, NIGHT_MS))
    set_replicas(sandbox, name, f"other.{name.cluster}")
    replicate(sandbox, name)
    first, second = (view_of_table(sandbox.session, replica_of(name), p) for p in range(2))
    assert (first.log_start_offset, offsets(first)) == (7, list(range(7, 15)))
    # The second was outrun, so it begins at its primary's start, inside a batch.
    assert (second.log_start_offset, offsets(second)) == (14, [14])
    assert [batch["base_offset"] for batch in second.batches] == [12]
    assert second.segments == [(12, FIRST_MS), (15, FIRST_MS)]
    assert_sound(sandbox, replica_of(name))
    clean_both(sandbox, name, NIGHT_MS)
    assert latest_values(sandbox, replica_of(name)) == latest_values(sandbox, name)


def test_a_table_that_holds_another_log_is_refused(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    other = TopicName(f"{name.cluster}_2", "t")
    write_log(tmp_path / "log", "t", NIGHTS[:1], COMPACT)
    ingest(sandbox.session, str(other), tmp_path / "log", FIRST_MS)
    before = current_snapshot(sandbox.session, other.records_table)
    set_replicas(sandbox, name, f"lake.{other.cluster}")
    error = replicate(sandbox, name).error
    assert isinstance(error, ForeignLogError)
    assert f"expected {other} to be a replica of {name}" in str(error)
    assert current_snapshot(sandbox.session, other.records_table) == before


@pytest.mark.long
def test_one_replica_out_of_reach_does_not_stop_the_others(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    name_lost_catalog(sandbox)
    set_replicas(sandbox, name, f"gone.{name.cluster}, other.{name.cluster}")
    outcome = replicate(sandbox, name)
    assert isinstance(outcome.error, UnavailableError)
    assert "expected the catalog of replica gone:" in str(outcome.error)
    assert outcome.partitions[0]["low_watermark"] == -1
    assert_equal(sandbox, name)


def test_a_catalog_that_spark_does_not_know_names_its_property(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    set_replicas(sandbox, name, "elsewhere.log")
    with pytest.raises(ConfigurationError, match=r"^expected spark.sql.catalog.elsewhere in"):
        replicate(sandbox, name)
    set_replicas(sandbox, name, f"lake.{name.cluster}")
    with pytest.raises(
        ConfigurationError, match=r"expected only other namespaces in .*, found its own"
    ):
        replicate(sandbox, name)
