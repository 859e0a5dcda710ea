"""What a job tells while it works: the story of a round, progress, and errors."""

from __future__ import annotations

import logging
import re
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError, ExitCode
from ebbtide.kafka.reasons import Reason
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.spark import job_log
from ebbtide.spark.tasks import in_tasks, in_threads
from tests.lake_sandbox import LakeSandbox
from tests.runner.on_topics import run_topics
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, clean, ingest, mark

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
MESSAGES = [[Message("a", "1")], [Message("a", "2"), Message("b", None)], [Message("c", "1")]]


def test_the_log_tells_the_story_of_a_round(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = TopicName(cluster, "t")
    write_log(tmp_path, "t", MESSAGES, CONFIG)
    with caplog.at_level(logging.INFO, "ebbtide"):
        ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
        mark(sandbox.session, str(name))
        clean(sandbox.session, str(name), FIRST_MS + DAY_MS)
    told = [re.sub(r"\d+\.\d s$", "N s", message) for message in caplog.messages]
    told = [re.sub(r"snapshot \d+", "snapshot N", line) for line in told]
    story = [
        "partition 0: ingesting 4 records in 3 batches of 218 B, new log end offset 4",
        "committed ingest_records, snapshot N in N s",
        "committed ingest_batches, snapshot N in N s",
        "committed ingest_state in N s",
        "partition 0: offsets 0 to 4: marking 1, unmarking 0, quarantining 0 records",
        "committed mark_records, snapshot N in N s",
        "partition 0: picked (dirty ratio 1.00), offsets 0 to 3 are dirty",
        "judging 2 segments, of which 2 may hold dirty records",
        "mapped 2 dirty keys",
        "judged 4 rows of data files in N s",
        "partition 0: removing 1 superseded; 218 B become 156 B; 1 tombstones retained, next "
        "delete horizon 1970-01-03 00:16",
        "committed round_records, snapshot N in N s",
        "committed round_batches, snapshot N in N s",
        "committed round_state in N s",
    ]
    assert [line for line in told if line in story] == story, "\n".join(told)
    caplog.clear()
    with caplog.at_level(logging.INFO, "ebbtide"):
        clean(sandbox.session, str(name), FIRST_MS + DAY_MS + 1)
    assert f"1 partitions not picked: {Reason.CLEAN}" in caplog.messages


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [
        pytest.param(ConfigurationError("expected x"), False, id="foreseen"),
        pytest.param(KeyError("x"), True, id="a bug"),
    ],
)
def test_only_what_nobody_foresaw_comes_with_a_traceback(
    sandbox: LakeSandbox,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    has_traceback: bool,
) -> None:
    def work(_: SparkSession, name: TopicName) -> JobOutcome:
        raise error

    monkeypatch.setattr(sandbox.session, "newSession", lambda: sandbox.session)
    args = Namespace(job="a_job", run_id="r", dag=None, task=None, now=at(FIRST_MS))
    args.plan_only = False
    code = run_topics(sandbox.session, args, [TopicName("nowhere", "t")], work)
    assert code == ExitCode.FAILED
    told = capsys.readouterr().err
    assert f" ERROR a_job nowhere.t: failed: {type(error).__name__}: " in told
    assert ("Traceback" in told) is has_traceback


@pytest.mark.parametrize(("how", "units"), [(in_tasks, "tasks"), (in_threads, "segments")])
def test_work_of_more_than_a_moment_tells_how_far_it_is(
    sandbox: LakeSandbox,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: Callable[..., list[int]],
    units: str,
) -> None:
    def work(number: int) -> int:
        time.sleep(0.2)
        return number

    monkeypatch.setattr(job_log, "WORD_EVERY_S", 0.3)
    with caplog.at_level(logging.INFO, "ebbtide"):
        assert how(sandbox.session, work, range(16), "waits in") == list(range(16))
    far = re.compile(rf"waits in 16 segments: (\d+) of 16 {units} done in \d+ s, \d+ s left")
    done = [int(match[1]) for message in caplog.messages if (match := far.fullmatch(message))]
    assert done
    assert done == sorted(done)


def test_a_topic_of_many_partitions_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: Any = logging.getLogger("ebbtide.test")
    with caplog.at_level(logging.INFO, "ebbtide"):
        job_log.log_partitions(log, dict.fromkeys(range(job_log.MOST_LINES + 3), "x"))
    assert caplog.messages[-1] == "and 3 more partitions"
    assert len(caplog.messages) == job_log.MOST_LINES + 1
