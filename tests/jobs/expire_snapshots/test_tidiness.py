"""expire_snapshots starts no Spark for a topic that has nothing to free, and says when it has."""

import json
import time

import pytest

from ebbtide.jobs import expire_snapshots as stage
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.topic_summary import LeftOnDisk
from ebbtide.orchestration.night import nothing_to_do
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.state.topic_state import TIDIED
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS
from tests.tables.other_tools import rewrite_files, tables_of
from tests.waiting import wait_for_clock

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
OLD = [[Message("a", "1"), Message("b", "1"), Message("c", "1"), Message("d", "1")], []]
NEW = [OLD[0], [Message("a", "2")], []]
AT_ONCE = {"history.expire.max-snapshot-age-ms": "0"}


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A topic that expire_snapshots has left tidy."""
    write_log(empty.home / "old", "t", OLD, COMPACT)
    empty.ingest(empty.home / "old", FIRST_MS)
    empty.mark()
    empty.set(AT_ONCE)
    wait_for_clock(time.time_ns() // 1_000_000)
    expire_snapshots(empty)
    return empty


def expire_snapshots(bench: Bench) -> JobOutcome:
    return execute_expire_snapshots(bench.load())


def is_idle(bench: Bench) -> bool:
    """Whether Airflow's side would start no Spark."""
    with open_lake(bench.sandbox.home / "conf" / "spark-defaults.conf") as lake:
        return nothing_to_do("expire_snapshots", lake.topic(str(bench.name)), 0, lake) is not None


def test_a_tidy_topic_needs_no_spark_and_costs_the_job_no_query(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_idle(bench)
    monkeypatch.setattr(stage, "_disk", lambda _: pytest.fail("it was looked at"))
    outcome = expire_snapshots(bench)
    assert outcome.topic["bytes_freed"] == 0
    assert LeftOnDisk.of_result(outcome.topic) == LeftOnDisk()


def test_a_tidy_topic_whose_rows_wait_says_so_each_time(bench: Bench) -> None:
    write_log(bench.home / "new", "t", NEW, COMPACT)
    bench.ingest(bench.home / "new", FIRST_MS)
    bench.mark()
    bench.clean(FIRST_MS + DAY_MS)
    reports = [LeftOnDisk.of_result(expire_snapshots(bench).topic) for _ in range(2)]
    assert is_idle(bench)
    assert reports == [LeftOnDisk(rows_below_share=1)] * 2


def test_a_topic_that_an_older_version_left_tidy_is_looked_at_once_more(bench: Bench) -> None:
    noted = json.loads(bench.load().properties[TIDIED])
    del noted["reported"]
    bench.set({TIDIED: json.dumps(noted)})
    assert not is_idle(bench)
    expire_snapshots(bench)
    assert is_idle(bench)


def test_what_is_written_has_to_be_looked_at(bench: Bench) -> None:
    write_log(bench.home / "new", "t", NEW, COMPACT)
    bench.ingest(bench.home / "new", FIRST_MS)
    assert not is_idle(bench)
    bench.mark()
    bench.clean(FIRST_MS + DAY_MS)
    outcome = expire_snapshots(bench)
    assert outcome.topic["snapshots_expired"] > 0
    assert outcome.topic["deleted_rows_in_files"] == 1  # of four: too few to rewrite the file
    assert is_idle(bench)
    bench.set({"ebbtide.rewrite.deleted.ratio": "0"})
    assert not is_idle(bench)
    rewritten = expire_snapshots(bench)
    assert rewritten.topic["files_rewritten"] == 1
    assert rewritten.topic["bytes_freed"] > 0
    assert not is_idle(bench)
    assert expire_snapshots(bench).topic["files_rewritten"] == 0
    assert is_idle(bench)


@pytest.mark.long
def test_a_snapshot_that_gets_old_has_to_be_looked_at(bench: Bench) -> None:
    spark = bench.spark
    bench.set({"history.expire.max-snapshot-age-ms": "100000000"})
    rewrite_files(spark, tables_of(bench.name))
    expire_snapshots(bench)
    assert is_idle(bench)
    bench.set(AT_ONCE)
    assert not is_idle(bench)
    assert expire_snapshots(bench).topic["snapshots_expired"] == 2
    assert is_idle(bench)


@pytest.mark.long
def test_a_file_of_vectors_stays_while_one_of_them_is_live(empty: Bench) -> None:
    """A round writes the vectors of all data files to one Puffin file; the next replaces some."""
    spark = empty.spark
    first, *later = [[Message(key, "1") for key in "abcdefgh"], *([Message(k, "2")] for k in "abc")]
    for night in range(3):
        source = empty.home / str(night)
        for partition, last in ((0, night + 1), (1, 1)):
            write_log(source, "t", [first, *later[:last], []], COMPACT, partition=partition)
        empty.ingest(source, FIRST_MS)
        empty.mark()
        empty.clean(FIRST_MS + (night + 1) * DAY_MS)
        deletes = spark.table(f"{empty.name.records_table}.delete_files").collect()
        assert len(deletes) == 2
        assert len({vector["file_path"] for vector in deletes}) == min(night + 1, 2)
    empty.set(AT_ONCE)
    wait_for_clock(time.time_ns() // 1_000_000)
    assert expire_snapshots(empty).topic["snapshots_expired"] > 0
    rows = spark.table(empty.name.records_table).orderBy("partition", "offset").collect()
    places = [(row["partition"], row["offset"]) for row in rows]
    assert places == [(0, n) for n in range(3, 11)] + [(1, n) for n in range(1, 9)]
