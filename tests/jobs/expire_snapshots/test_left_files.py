"""Files of killed jobs: deleted once their run has ended and they are old, and no other file is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, commits_of
from ebbtide.iceberg.file_commits import Writer, new_file_name, run_mark, table_mark, writer_of
from ebbtide.jobs.left_files import SAFE_AGE
from jobs import clean_log, expire_snapshots
from tests.tables.bench import Bench
from tests.tables.files import data_files, unneeded
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS, at
from tests.tables.planned import Jobs

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
LOG = [[Message("a", "1"), Message("b", "1")], [Message("a", "2"), Message("c", "1")], []]


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A topic with a file whose deleted row is to be freed."""
    empty.log(LOG, COMPACT)
    empty.mark()
    empty.clean(FIRST_MS + DAY_MS)
    empty.set({"ebbtide.rewrite.deleted.ratio": "0"})
    return empty


def unneeded_in(bench: Bench) -> set[Path]:
    return unneeded(bench.spark, bench.name.records_table)


def test_a_killed_jobs_file_is_deleted_once_it_is_old_and_its_run_has_ended(
    bench: Bench, jobs: Jobs, kill_at: list[Step]
) -> None:
    asked = ("--topic", str(bench.name), "--now", at(FIRST_MS + DAY_MS).isoformat())

    def expire() -> tuple[int, dict[str, int]]:
        assert jobs.run(expire_snapshots, *asked) == ExitCode.DONE
        result = jobs.last_run().topic_result
        return result["left_files_deleted"], result["still_in"]

    kill_at.append(Step.REWRITE_FILES)
    assert jobs.run(expire_snapshots, *asked) == ExitCode.FAILED
    (killed,) = unneeded_in(bench)
    writer = writer_of(killed.name)
    table = open_table(bench.spark, bench.name.records_table)
    assert writer == Writer("expire_snapshots", run_mark(jobs.run_id), table_mark(table))
    with commits_of("clean_log", "a run that is still at work"):
        living = killed.with_name(new_file_name(table, ".parquet"))
    other = killed.with_name("00000-0-of-another-tool.parquet")
    # Of a table that lies below this one.
    below = killed.with_name(killed.name.replace(table_mark(table), "0" * 8))
    for path in (living, other, below):
        path.write_bytes(killed.read_bytes())
    assert expire() == (0, {"waiting_files": 2, "other_files": 2})  # all are too young

    for path in data_files(bench.spark, bench.name.records_table):  # needed ones too
        before = time.time() - SAFE_AGE.total_seconds() - 3600
        os.utime(path, (before, before))
    assert expire() == (1, {"waiting_files": 1, "other_files": 2})
    assert unneeded_in(bench) == {living, other, below}
    assert jobs.run(clean_log, *asked) == ExitCode.DONE  # it has recovered what that run did
    assert expire() == (1, {"other_files": 2})
    assert unneeded_in(bench) == {other, below}
    other.unlink()
    below.unlink()
    assert expire() == (0, {})
    assert bench.left() == [1, 2, 3]


def test_a_name_outside_a_job_is_nobodys(bench: Bench) -> None:
    table, run_id = open_table(bench.spark, bench.name.records_table), "manual__2026-11-28T10:00:00"
    assert writer_of(new_file_name(table, ".parquet")) is None
    with commits_of("clean_log", run_id):
        written = new_file_name(table, "-deletes.puffin")
    assert writer_of(written) == Writer("clean_log", run_mark(run_id), table_mark(table))
    assert writer_of(written.replace("-deletes", "")) is None
    assert writer_of(f"copy-of-{written}") is None
