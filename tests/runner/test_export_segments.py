"""export_segments as a real process: killed with -9 before it renames its target, and run again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.ledger.own_tables import RUNS
from ebbtide.records.log_directory import list_log_directory
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.runner.submit import KILLED, submit
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import at, ingest

pytestmark = pytest.mark.long

NAME = TopicName("log", "t")
MESSAGES = [[Message("a", "1"), Message("b", "1")], [Message("a", None)], []]


@pytest.fixture
def arguments(lake: LakeSandbox, tmp_path: Path) -> list[str]:
    """What exports the first of two partitions."""
    for partition in range(2):
        write_log(tmp_path / "log", "t", MESSAGES, {}, partition=partition)
    ingest(lake.session, str(NAME), tmp_path / "log", FIRST_MS)
    target = ["--target", str(tmp_path / "out"), "--partition", "0"]
    return ["--topic", str(NAME), *target, "--now", at(FIRST_MS).isoformat()]


def test_a_killed_export_is_finished_by_the_next(
    lake: LakeSandbox, tmp_path: Path, arguments: list[str]
) -> None:
    killed = submit(lake, "export_segments", *arguments, kill_at=Step.EXPORT_TARGET)
    assert killed.returncode == KILLED, killed.stdout[-2000:]
    assert not (tmp_path / "out").exists()

    # Killed once more when its target is whole and nobody has been told.
    killed = submit(lake, "export_segments", *arguments, kill_at=Step.RUN_ROW)
    assert killed.returncode == KILLED, killed.stdout[-2000:]
    done = submit(lake, "export_segments", *arguments)
    assert done.returncode == 0, done.stdout[-2000:]

    assert not (tmp_path / "out.unfinished").exists()
    (exported,) = list_log_directory(str(tmp_path / "out"))
    assert [segment.base_offset for segment in exported.segments] == [0, 2, 3]
    (row,) = lake.session.table(RUNS.in_catalog()).collect()
    assert (row["job"], row["status"], row["rows_removed"]) == ("export_segments", "succeeded", 0)
    result = json.loads(row["result"])
    assert result["topic"]["target"] == str(tmp_path / "out")
    assert result["partitions"]["0"]["records"] == 3
    assert list(result["partitions"]) == ["0"]


def test_two_topics_are_a_bad_argument() -> None:
    job = ROOT / "jobs" / "export_segments.py"
    topics = ["--topic", "log.t", "--topic", "log.u", "--target", "out"]
    command = [sys.executable, str(job), *topics, "--now", at(0).isoformat(), "--run-id", "run"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "expected one --topic, found 2" in refused.stderr
