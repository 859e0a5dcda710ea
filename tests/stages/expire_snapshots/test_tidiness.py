"""expire_snapshots starts no Spark for a topic that has nothing to free, and says when it has."""

import json
import time
from pathlib import Path

import pytest

from ebbtide.iceberg.topics import load
from ebbtide.lake.reader import open_lake
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.left_on_disk import LeftOnDisk
from ebbtide.log.state.topic_state import TIDIED
from ebbtide.orchestration.night import nothing_to_do
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.expire_snapshots import stage
from ebbtide.stages.expire_snapshots.stage import execute_expire_snapshots
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, set_properties
from tests.tables.other_tools import rewrite_files, tables_of
from tests.waiting import wait_for_clock

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
OLD = [[Message("a", "1"), Message("b", "1"), Message("c", "1"), Message("d", "1")], []]
NEW = [OLD[0], [Message("a", "2")], []]
AT_ONCE = {"history.expire.max-snapshot-age-ms": "0"}


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A topic that expire_snapshots has left tidy."""
    write_log(tmp_path / "old", "t", OLD, COMPACT)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "old", FIRST_MS)
    mark(sandbox.session, f"{cluster}.t")
    set_properties(sandbox.session, f"{cluster}.t", AT_ONCE)
    name = TopicName(cluster, "t")
    wait_for_clock(time.time_ns() // 1_000_000)
    expire_snapshots(sandbox, name)
    return name


def expire_snapshots(sandbox: LakeSandbox, name: TopicName) -> JobOutcome:
    return execute_expire_snapshots(load(sandbox.session, name))


def is_idle(sandbox: LakeSandbox, name: TopicName) -> bool:
    """Whether Airflow's side would start no Spark."""
    with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
        return nothing_to_do("expire_snapshots", lake.topic(str(name)), 0, lake) is not None


def test_a_tidy_topic_needs_no_spark_and_costs_the_job_no_query(
    sandbox: LakeSandbox, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_idle(sandbox, name)
    monkeypatch.setattr(stage, "_disk", lambda _: pytest.fail("it was looked at"))
    outcome = expire_snapshots(sandbox, name)
    assert outcome.topic["bytes_freed"] == 0
    assert LeftOnDisk.of_result(outcome.topic) == LeftOnDisk()


def test_a_tidy_topic_whose_rows_wait_says_so_each_time(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    spark = sandbox.session
    write_log(tmp_path / "new", "t", NEW, COMPACT)
    ingest(spark, str(name), tmp_path / "new", FIRST_MS)
    mark(spark, str(name))
    clean(spark, str(name), FIRST_MS + DAY_MS)
    reports = [LeftOnDisk.of_result(expire_snapshots(sandbox, name).topic) for _ in range(2)]
    assert is_idle(sandbox, name)
    assert reports == [LeftOnDisk(rows_below_share=1)] * 2


def test_a_topic_that_an_older_version_left_tidy_is_looked_at_once_more(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    noted = json.loads(load(sandbox.session, name).properties[TIDIED])
    del noted["reported"]
    set_properties(sandbox.session, str(name), {TIDIED: json.dumps(noted)})
    assert not is_idle(sandbox, name)
    expire_snapshots(sandbox, name)
    assert is_idle(sandbox, name)


def test_what_is_written_has_to_be_looked_at(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    spark = sandbox.session
    write_log(tmp_path / "new", "t", NEW, COMPACT)
    ingest(spark, str(name), tmp_path / "new", FIRST_MS)
    assert not is_idle(sandbox, name)
    mark(spark, str(name))
    clean(spark, str(name), FIRST_MS + DAY_MS)
    outcome = expire_snapshots(sandbox, name)
    assert outcome.topic["snapshots_expired"] > 0
    assert outcome.topic["deleted_rows_in_files"] == 1  # of four: too few to rewrite the file
    assert is_idle(sandbox, name)
    set_properties(spark, str(name), {"ebbtide.rewrite.deleted.share": "0"})
    assert not is_idle(sandbox, name)
    rewritten = expire_snapshots(sandbox, name)
    assert rewritten.topic["files_rewritten"] == 1
    assert rewritten.topic["bytes_freed"] > 0
    assert not is_idle(sandbox, name)
    assert expire_snapshots(sandbox, name).topic["files_rewritten"] == 0
    assert is_idle(sandbox, name)


@pytest.mark.long
def test_a_snapshot_that_gets_old_has_to_be_looked_at(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    set_properties(spark, str(name), {"history.expire.max-snapshot-age-ms": "100000000"})
    rewrite_files(spark, tables_of(name))
    expire_snapshots(sandbox, name)
    assert is_idle(sandbox, name)
    set_properties(spark, str(name), AT_ONCE)
    assert not is_idle(sandbox, name)
    assert expire_snapshots(sandbox, name).topic["snapshots_expired"] == 2
    assert is_idle(sandbox, name)


@pytest.mark.long
def test_a_file_of_vectors_stays_while_one_of_them_is_live(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    """A round writes the vectors of all data files to one Puffin file; the next replaces some."""
    spark, name = sandbox.session, TopicName(cluster, "t")
    first, *later = [[Message(key, "1") for key in "abcdefgh"], *([Message(k, "2")] for k in "abc")]
    for night in range(3):
        source = tmp_path / str(night)
        for partition, last in ((0, night + 1), (1, 1)):
            write_log(source, "t", [first, *later[:last], []], COMPACT, partition=partition)
        ingest(spark, str(name), source, FIRST_MS)
        mark(spark, str(name))
        clean(spark, str(name), FIRST_MS + (night + 1) * DAY_MS)
        deletes = spark.table(f"{name.records_table}.delete_files").collect()
        assert len(deletes) == 2
        assert len({vector["file_path"] for vector in deletes}) == min(night + 1, 2)
    set_properties(spark, str(name), AT_ONCE)
    wait_for_clock(time.time_ns() // 1_000_000)
    assert expire_snapshots(sandbox, name).topic["snapshots_expired"] > 0
    rows = spark.table(name.records_table).orderBy("partition", "offset").collect()
    places = [(row["partition"], row["offset"]) for row in rows]
    assert places == [(0, n) for n in range(3, 11)] + [(1, n) for n in range(1, 9)]
