"""replicate_log on tables: what a replica holds, whatever became of its primary meanwhile."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from ebbtide.errors import (
    CommitConflictError,
    ConfigurationError,
    ForeignLogError,
    UnavailableError,
)
from ebbtide.iceberg import commits
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, current_snapshot, load
from ebbtide.log.replica_lag import settings_to_follow
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import REPLICATION
from ebbtide.runs.application import run_topics
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_log.segment_merge import merge_segments
from ebbtide.stages.clean_log.stage import execute_clean, plan_clean
from ebbtide.stages.delete_records.primary import execute_delete, plan_delete
from ebbtide.stages.expire_segments.stage import execute_expire, plan_expire
from ebbtide.stages.expire_snapshots.stage import execute_expire_snapshots
from ebbtide.stages.replicate_log.stage import execute_replicate, plan_replicate
from ebbtide.stages.unfinished import settle
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.fixtures import kill as kill_job
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, clean, ingest, mark
from tests.tables.other_tools import expire_all, rewrite_files, tables_of

COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
NIGHT_MS = FIRST_MS + 10 * DAY_MS
STEPS = tuple(step for step in Step if step.name.startswith("REPLICATE"))
# Each night writes `a` again, one key of its own, and deletes the key of the night before.
NIGHTS = [
    [Message("a", str(n)), Message(f"k{n}", "1"), Message(f"k{n - 1}", None)] for n in range(12)
]


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


def replica_of(name: TopicName) -> TopicName:
    return name._replace(catalog="other")


def replicate(sandbox: LakeSandbox, name: TopicName) -> JobOutcome:
    return execute_replicate(plan_replicate(load(sandbox.session, name)), NIGHT_MS)


def clean_both(sandbox: LakeSandbox, name: TopicName, now_ms: int) -> None:
    for of in (name, replica_of(name)):
        mark(sandbox.session, str(of))
        execute_clean(plan_clean(settle(load(sandbox.session, of), "expire_segments"), now_ms))
        execute_expire(plan_expire(settle(load(sandbox.session, of), "expire_segments"), now_ms))


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
    found = []
    for partition in range(2):
        records = view_of_table(sandbox.session, name, partition).records
        values = {record[3]: record[4] for record in records}
        found.append({key: value for key, value in values.items() if value is not None})
    return found


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
    for of in ("v1_view", "table_view"):
        views = [sandbox.session.table(getattr(n, of)) for n in (name, replica_of(name))]
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


def test_rows_are_counted_though_other_tools_expire_the_snapshots_that_brought_them(
    sandbox: LakeSandbox, name: TopicName, meanwhile: Meanwhile
) -> None:
    def tools() -> None:
        rewrite_files(sandbox.session, tables_of(replica_of(name)))
        expire_all(sandbox.session, tables_of(replica_of(name)))

    meanwhile(Step.REPLICATE_STATE, tools)
    numbers = replicate(sandbox, name).topic["replicas"][str(replica_of(name))]
    assert (numbers["records"], numbers["batches"]) == (24, 8)


def test_nothing_to_replicate_commits_nothing(sandbox: LakeSandbox, name: TopicName) -> None:
    replicate(sandbox, name)
    tables = [t for of in (name, replica_of(name)) for t in (of.records_table, of.batches_table)]
    before = [metadata_of(sandbox, table) for table in tables]
    assert replicate(sandbox, name).topic["replicas"] == {}
    assert [metadata_of(sandbox, table) for table in tables] == before


def metadata_of(sandbox: LakeSandbox, table: str) -> str:
    operations = java_table(sandbox.session, table).operations()
    return str(operations.current().metadataFileLocation())


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
    found = load(sandbox.session, replica_of(name))
    assert found.config.retention_ms == 7
    assert found.config.min_cleanable_dirty_ratio == 0.5
    assert not found.config.is_enabled
    assert "ebbtide.replicas" not in found.properties


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


@pytest.mark.parametrize("step", [Step.CREATE_TOPIC, *STEPS, Step.TRUNCATE_RECORD_SEGMENTS])
def test_a_killed_replication_is_finished_by_the_next(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kill_at: list[Step], step: Step
) -> None:
    if step is not Step.CREATE_TOPIC:
        replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:6])
    set_replicas(sandbox, name, None)
    execute_delete(plan_delete(load(sandbox.session, name), {0: 4, 1: 16}, NIGHT_MS))
    set_replicas(sandbox, name, f"other.{name.cluster}")
    if step is Step.REPLICATE_LEFTOVERS:
        kill(sandbox, name, kill_at, Step.REPLICATE_STATE)
    kill(sandbox, name, kill_at, step)
    # The primary goes on meanwhile, so that what a killed try has left is not what belongs there.
    clean(sandbox.session, str(name), NIGHT_MS)
    replicate(sandbox, name)
    assert_sound(sandbox, replica_of(name))
    for partition in range(2):
        expected = view_of_table(sandbox.session, name, partition)
        found = view_of_table(sandbox.session, replica_of(name), partition)
        new = 12 if partition == 0 and step is not Step.CREATE_TOPIC else 0
        assert found[:2] == expected[:2]
        assert [r for r in found.records if r[0] >= new] == [
            r for r in expected.records if r[0] >= new
        ]
        assert [b for b in found.batches if b["last_offset"] >= max(new, found[0])] == [
            b for b in expected.batches if b["last_offset"] >= max(new, found[0])
        ]
    clean_both(sandbox, name, NIGHT_MS + DAY_MS)
    assert latest_values(sandbox, replica_of(name)) == latest_values(sandbox, name)


def kill(sandbox: LakeSandbox, name: TopicName, kill_at: list[Step], step: Step) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        replicate(sandbox, name)


@pytest.mark.parametrize("step", [s for s in STEPS if s is not Step.REPLICATE_LEFTOVERS])
def test_of_two_runs_at_a_time_one_goes_on(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, meanwhile: Meanwhile, step: Step
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:5])
    meanwhile(step, lambda: replicate(sandbox, name))
    if step is not Step.REPLICATE_STARTED:
        with pytest.raises(CommitConflictError):
            replicate(sandbox, name)
    replicate(sandbox, name)
    assert_equal(sandbox, name)


def test_a_primary_whose_snapshot_goes_while_it_is_read_is_read_again(
    sandbox: LakeSandbox,
    name: TopicName,
    meanwhile: Meanwhile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tools() -> None:
        rewrite_files(sandbox.session, tables_of(name))
        expire_all(sandbox.session, tables_of(name))

    monkeypatch.setattr(sandbox.session, "newSession", lambda: sandbox.session)
    meanwhile(Step.REPLICATE_RECORDS, tools)
    args = Namespace(plan_only=False, job="replicate_log", run_id="r", dag=None, task=None)
    args.now = at(NIGHT_MS)
    assert run_topics(sandbox.session, args, [name], lambda *_: replicate(sandbox, name)) == 0
    assert "planned again on what is there now (attempt 1)" in capsys.readouterr().err
    assert_equal(sandbox, name)


def test_what_another_run_left_just_before_is_taken_over(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:5])
    plan = plan_replicate(load(sandbox.session, name))

    def die(step: Step) -> None:
        if step is Step.REPLICATE_BATCHES:
            kill_job(step)

    with monkeypatch.context() as patched:
        patched.setattr(commits, "before_commit", die)
        with pytest.raises(KilledError):
            replicate(sandbox, name)
    # This one found its replica before the other began.
    execute_replicate(plan, NIGHT_MS)
    assert_equal(sandbox, name)


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


def test_one_replica_out_of_reach_does_not_stop_the_others(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc"}.items():
        sandbox.session.conf.set(f"spark.sql.catalog.gone{key}", value)
    sandbox.session.conf.set("spark.sql.catalog.gone.uri", "jdbc:sqlite:/nowhere/catalog.db")
    sandbox.session.conf.set("spark.sql.catalog.gone.warehouse", "/nowhere")
    set_replicas(sandbox, name, f"gone.{name.cluster}, other.{name.cluster}")
    outcome = replicate(sandbox, name)
    assert isinstance(outcome.error, UnavailableError)
    assert "expected the catalog of the replica gone:" in str(outcome.error)
    assert outcome.partitions[0]["low_watermark"] == -1
    assert_equal(sandbox, name)


def test_a_catalog_that_spark_does_not_know_names_its_property(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    set_replicas(sandbox, name, "elsewhere.log")
    with pytest.raises(ConfigurationError, match=r"^expected spark.sql.catalog.elsewhere in"):
        replicate(sandbox, name)
    set_replicas(sandbox, name, f"lake.{name.cluster}")
    with pytest.raises(ConfigurationError, match="to name other namespaces, found its own"):
        replicate(sandbox, name)


# -- what a replica has not reached is held back


def dues(outcome: JobOutcome) -> dict[str, object]:
    """What a round did with the tombstones of one partition."""
    numbers = outcome.partitions[0]
    return {of: numbers.get(of) for of in ("picked", "tombstones_removed", "held_back")}


def test_a_tombstone_that_a_replica_lacks_outlives_its_horizon(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:7])
    clean(sandbox.session, str(name), NIGHT_MS)
    second = clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    # The tombstones at 2, 5, 8 and 11 are in the replica, those at 14, 17 and 20 are not.
    assert dues(second) == {"picked": True, "tombstones_removed": 4, "held_back": held_back(3)}
    tombstones = [r[0] for r in view_of_table(sandbox.session, name, 0).records if r[4] is None]
    assert tombstones == [14, 17, 20]

    # What is only held back is no reason for a round.
    third = clean(sandbox.session, str(name), NIGHT_MS + 2 * DAY_MS)
    assert dues(third) == {"picked": False, "tombstones_removed": None, "held_back": None}
    replicate(sandbox, name)
    fourth = clean(sandbox.session, str(name), NIGHT_MS + 3 * DAY_MS)
    assert dues(fourth) == {"picked": True, "tombstones_removed": 3, "held_back": held_back(0)}


def held_back(tombstones: int) -> dict[str, int]:
    return {"tombstones": tombstones, "markers": 0}


def test_a_round_that_was_killed_holds_back_what_it_began_with(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kill_at: list[Step]
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:7])
    clean(sandbox.session, str(name), NIGHT_MS)
    kill_at.append(Step.ROUND_RECORDS)
    with pytest.raises(KilledError):
        clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    set_replicas(sandbox, name, None)
    settle(load(sandbox.session, name), "expire_segments")
    records = view_of_table(sandbox.session, name, 0).records
    assert [record[0] for record in records if record[4] is None] == [14, 17, 20]


def test_a_replica_without_tables_holds_back_everything(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    clean(sandbox.session, str(name), NIGHT_MS)
    outcome = clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert dues(outcome)["picked"] is False
    set_replicas(sandbox, name, None)
    outcome = clean(sandbox.session, str(name), NIGHT_MS + 2 * DAY_MS)
    assert dues(outcome) == {"picked": True, "tombstones_removed": 4, "held_back": None}
