"""Files that a table names and that are gone: the error says so, and its way out works."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from ebbtide.errors import CommitConflictError, ExitCode
from ebbtide.iceberg import file_changes
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.settings.names import TopicName
from jobs import clean_log, expire_segments, expire_snapshots, mark_tombstones, repair_state
from tests.lake_sandbox import LakeSandbox
from tests.tables.contents import contents
from tests.tables.fixtures import Meanwhile
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest
from tests.tables.partition_log import batch, write_segments
from tests.tables.planned import Jobs

MESSAGES = [[Message("a", "1")], [Message("b", "2")], [Message("c", "3")]]
CONFIG = {"cleanup.policy": "delete", "retention.ms": str(DAY_MS)}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def test_orphan_removal_under_an_ingest_is_named_before_the_commit(
    sandbox: LakeSandbox,
    cluster: str,
    tmp_path: Path,
    meanwhile: Meanwhile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, spark = TopicName(cluster, "t"), sandbox.session
    monkeypatch.setattr(file_changes, "CHECKED_AFTER_S", 0)
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)

    def remove_orphans() -> None:
        place = open_table(spark, name.records_table).java.location().removeprefix("file:")
        for file in Path(place).rglob("*.parquet"):
            file.unlink()

    meanwhile(Step.INGEST_RECORDS, remove_orphans)
    with pytest.raises(CommitConflictError, match=r"another tool removed them as orphans"):
        ingest(spark, str(name), tmp_path / "log", FIRST_MS)
    ingest(spark, str(name), tmp_path / "log", FIRST_MS)
    assert spark.table(name.records_table).count() == 3


@pytest.mark.long
def test_a_list_of_manifests_that_is_gone_has_a_way_out(
    sandbox: LakeSandbox,
    jobs: Jobs,
    cluster: str,
    tmp_path: Path,
    kill_at: list[Step],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    name, spark = TopicName(cluster, "t"), sandbox.session
    write_log(tmp_path / "log", "t", MESSAGES, {**CONFIG, "retention.bytes": "100"})
    ingest(spark, str(name), tmp_path / "log", FIRST_MS)
    ask = ("--topic", str(name), "--now", at(FIRST_MS).isoformat())
    assert jobs.run(expire_segments, *ask) == ExitCode.DONE
    left = spark.table(name.records_table).count()
    assert 0 < left < 3
    current = open_table(spark, name.records_table).current
    assert current is not None
    Path(current.manifest_list.removeprefix("file:")).unlink()

    ask = ("--topic", str(name), "--now", at(FIRST_MS + 2 * DAY_MS).isoformat())
    assert jobs.run(expire_segments, *ask) == ExitCode.FAILED
    error = jobs.last_run().error
    found = re.search(r"snapshot (\d+) of .*\. The snapshot before it is (\d+)\.", error)
    assert found is not None, error
    assert int(found[1]) == current.id
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{name}', {found[2]})")
    repair = ("--topic", str(name), "--now", at(FIRST_MS).isoformat(), "--keep-changes")
    kill_at.append(Step.LOST_SNAPSHOTS)
    assert jobs.run(repair_state, *repair) == ExitCode.FAILED
    assert jobs.run(repair_state, *repair) == ExitCode.DONE, jobs.last_run().error
    assert jobs.run(expire_segments, *ask) == ExitCode.DONE, jobs.last_run().error
    assert spark.table(name.records_table).count() == 0
    assert jobs.run(expire_snapshots, *ask) == ExitCode.DONE, jobs.last_run().error


@pytest.mark.long
@pytest.mark.parametrize("way", ["restore the file", "roll both tables back"])
def test_a_data_file_that_is_gone_has_a_way_out(
    sandbox: LakeSandbox,
    jobs: Jobs,
    cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    name, spark = TopicName(cluster, "t"), sandbox.session
    write_log(tmp_path / "log", "t", MESSAGES, COMPACT)
    ingest(spark, str(name), tmp_path / "log", FIRST_MS)
    before = {
        table: current_snapshot(spark, table) for table in (name.records_table, name.batches_table)
    }
    write_segments(tmp_path / "log", {3: [batch(3, 2)], 5: []})
    ingest(spark, str(name), tmp_path / "log", FIRST_MS)
    whole = contents(spark, name).records
    row = spark.sql(f"SELECT _file FROM {name.records_table} WHERE offset = 3").first()
    assert row is not None
    file = Path(row["_file"].removeprefix("file:"))
    saved = file.read_bytes()
    file.unlink()
    ask = ("--topic", str(name), "--now", at(FIRST_MS + 2 * DAY_MS).isoformat())
    assert jobs.run(mark_tombstones, *ask) == ExitCode.DONE  # it reads manifests alone
    assert jobs.run(clean_log, *ask) == ExitCode.FAILED
    row = jobs.last_run()
    assert row.error_class == "ForeignChangeError"
    assert f"found one missing in 5 attempts: expected file://{file}, " in row.error
    assert "run the job again" not in row.error.lower()
    if way == "restore the file":
        file.write_bytes(saved)
    else:
        for table, snapshot in before.items():
            plain = table.replace("`", "").removeprefix("lake.")
            spark.sql(f"CALL lake.system.rollback_to_snapshot('{plain}', {snapshot})")
        assert jobs.run(repair_state, *ask, "--keep-changes") == ExitCode.DONE, (
            jobs.last_run().error
        )
        ingest(spark, str(name), tmp_path / "log", FIRST_MS)
    assert contents(spark, name).records == whole
    for job in (mark_tombstones, clean_log, expire_snapshots):
        assert jobs.run(job, *ask) == ExitCode.DONE, jobs.last_run().error
