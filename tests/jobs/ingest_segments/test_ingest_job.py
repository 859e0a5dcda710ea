"""jobs/ingest_segments.py as Airflow starts it: one killed process, one that fails in part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import exists, load
from ebbtide.ledger.own_tables import RUNS
from ebbtide.settings.names import TopicName
from jobs.ingest_segments import main
from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import KILLED, submit
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.nights import HOUR_MS, at
from tests.tables.partition_log import T0, append, batch, damage, segment_path, write_segments

NOW = at(T0 + HOUR_MS).isoformat()
GOOD, BAD = TopicName("log", "t"), TopicName("log", "bad")


@pytest.mark.long
def test_a_killed_process_and_one_that_meets_damage(sandbox: LakeSandbox, tmp_path: Path) -> None:
    source = write_segments(tmp_path / "source", {0: [batch(0, 5)], 5: [batch(5, 5)]})
    arguments = ["--source", str(source), "--cluster", "log", "--now", NOW]

    killed = submit(sandbox, "ingest_segments", *arguments, kill_at=Step.INGEST_BATCHES)
    assert killed.returncode == KILLED, killed.stderr[-2000:]
    assert sandbox.session.table(GOOD.records_table).count() == 10
    assert sandbox.session.table(GOOD.batches_table).count() == 0
    assert load(sandbox.session, GOOD).partitions == {}

    append(source, 5, batch(10))
    write_segments(source, {0: [batch(0)], 1: [batch(1)]}, topic="bad")
    write_segments(source, {0: [batch(0)]}, topic="__consumer_offsets")
    damage(segment_path(source, 1, topic="bad"))
    done = submit(sandbox, "ingest_segments", *arguments)

    assert done.returncode == ExitCode.FAILED, done.stderr[-2000:]
    output = done.stdout + done.stderr
    path = segment_path(source, 1, topic="bad")
    message = f" ERROR ingest_segments log.bad: failed: CorruptSegmentError: {path}: "
    lines = [line for line in output.splitlines() if message in line]
    assert len(lines) == 1, output[-2000:]
    line = lines[0]
    assert "expected CRC-32C" in line
    assert "at position 0, found 0x" in line
    assert "Traceback" not in output
    view = view_of_table(sandbox.session, GOOD, 0)
    assert offsets(view) == list(range(11))
    assert [b["base_offset"] for b in view.batches] == [0, 5, 10]
    assert view.log_end_offset == 11
    assert offsets(view_of_table(sandbox.session, BAD, 0)) == [0]
    assert not exists(sandbox.session, TopicName("log", "__consumer_offsets"))

    runs = {row["topic"]: row for row in sandbox.session.table(RUNS.in_catalog()).collect()}
    assert {topic: row["status"] for topic, row in runs.items()} == {
        "log.t": "succeeded",
        "log.bad": "failed",
    }
    assert runs["log.bad"]["error_class"] == "CorruptSegmentError"
    assert runs["log.bad"]["is_transient"] is False
    result = json.loads(runs["log.t"]["result"])
    assert result["partitions"]["0"]["records"] == 11


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--source", "{}/none"], "SourceError: ", id="no directory"),
        pytest.param(
            ["--source", "{}", "--topic", "log.other"],
            "UnknownTopicError: expected log.other in {}, found log.t",
            id="no such topic",
        ),
        pytest.param(
            ["--source", "{}", "--topic", "elsewhere.t"],
            "UnknownTopicError: expected elsewhere.t in {}, found log.t",
            id="another cluster",
        ),
    ],
)
def test_a_source_that_is_not_there_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_segments(tmp_path, {0: [batch(0)]})
    given = [argument.format(tmp_path) for argument in arguments]
    code = main([*given, "--cluster", "log", "--now", NOW, "--run-id", "r"])
    assert code == ExitCode.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert f" ERROR ingest_segments: refused: {message.format(tmp_path)}" in line
