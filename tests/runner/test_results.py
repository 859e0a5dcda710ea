"""What each job says of a run, by real runs of all of them, as its types say and as it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.lake.reader import open_lake
from ebbtide.ledger.own_tables import RUNS
from ebbtide.orchestration.report import partition_table, topic_table
from ebbtide.runner.application import problems
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from jobs import (
    certify_erasure,
    clean_log,
    configure_topic,
    delete_records,
    expire_segments,
    expire_snapshots,
    export_segments,
    hold_records,
    ingest_segments,
    mark_tombstones,
    repair_state,
    replicate_log,
    undo_run,
)
from jobs import erase_keys as erase
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at

CONFIG = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1",
    "retention.ms": str(3 * DAY_MS),
}
SEGMENTS = [
    [Message("a", "1"), Message("b", None)],
    [Message("a", "2", DAY_MS), Message(None, "x", DAY_MS)],
    [Message("c", "1", 4 * DAY_MS)],
    [Message("d", "1", 4 * DAY_MS)],
]
TOPIC = TopicName("log", "t")
OF_TOPIC = ("--topic", str(TOPIC))


@pytest.fixture
def run(lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a job's main on the test's lake."""
    lake.take_jobs(monkeypatch)

    def main(job: Any, night: int, *arguments: str) -> None:
        now = at(FIRST_MS + night * DAY_MS).isoformat()
        assert job.main([*arguments, "--now", now, "--run-id", f"night-{night}"]) == 0

    return main


@pytest.mark.long
def test_every_job_says_what_its_types_say(
    lake: LakeSandbox, run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.add_catalog("far")
    write_log(tmp_path / "log", "t", SEGMENTS, CONFIG)
    source = ("--source", str(tmp_path / "log"), "--cluster", "log")
    settings = ("ebbtide.max.delete.ratio=1", "history.expire.max-snapshot-age-ms=1")
    run(ingest_segments, 4, *source, *(word for setting in settings for word in ("--set", setting)))
    for night in (4, 5):
        run(mark_tombstones, night, *OF_TOPIC)
        run(clean_log, night, *OF_TOPIC)
    run(expire_segments, 4, *OF_TOPIC)
    request = {"topics": [{"topic": str(TOPIC), "partitions": [{"partition": 0, "offset": 5}]}]}
    run(delete_records, 4, "--request", json.dumps(request))
    run(expire_snapshots, 4, *OF_TOPIC)
    run(undo_run, 4, *OF_TOPIC, "--run", "night-4")
    unset = ("--unset", "ebbtide.source")
    run(configure_topic, 5, *OF_TOPIC, "--set", "kafka.retention.ms=-1", *unset)
    run(export_segments, 5, *OF_TOPIC, "--target", str(tmp_path / "out"))
    why = ("--case-id", "7", "--reason", "asked by a court", "--owner", "legal")
    run(hold_records, 5, *OF_TOPIC, "--action", "make", *why, "--end-offset", "1")
    monkeypatch.setenv("EBBTIDE_ERASE_KEYS", "d")
    asked = ("--requested-by", "privacy office", "--reason", "17", "--append")
    run(erase, 5, *OF_TOPIC, *asked)
    run(certify_erasure, 5, *OF_TOPIC)
    run(configure_topic, 5, *OF_TOPIC, "--set", "ebbtide.replicas=far.copies")
    run(replicate_log, 5, *OF_TOPIC)
    lake.session.sql(f"DELETE FROM {TOPIC.records_table} WHERE offset = 5")
    run(repair_state, 5, *OF_TOPIC)

    rows = lake.session.table(RUNS.in_catalog()).collect()
    elsewhere = {
        "ingest_topic",
        "ingest_table",
        "adopt_table",
        "abandon_table",
    }  # in tests of their own
    assert {row["job"] for row in rows} == set(SPECS) - elsewhere
    for row in rows:
        assert list(problems(row["job"], json.loads(row["result"]))) == [], row["job"]
    assert_report_is_full()


def assert_report_is_full() -> None:
    """Each column of a night's report has a number of the partition or topic."""
    with open_lake() as lake:
        runs = lake.runs(None, run_id="night-4")
    for table in (partition_table(runs, {}), topic_table(runs)):
        *_, titles, _, line = table.splitlines()
        assert len(line.split()) >= len(titles.split()) > 3
        assert "-" not in line.split()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"picked": 1}, "partition 0 has picked = 1, which is no <class 'bool'>"),
        ({"supersede": 1}, "partition 0 has an unknown supersede"),
        ({"superseded": None}, "partition 0 has superseded = None, which is no <class 'int'>"),
        ({"next_horizon_ms": None}, None),
        ({"waiting_for_replicas": {"tombstones": 1}}, None),
        (
            {"waiting_for_replicas": []},
            "partition 0 has waiting_for_replicas = [], which is no dict[str, int]",
        ),
    ],
)
def test_what_is_not_of_its_type_is_named(changes: dict[str, Any], problem: str | None) -> None:
    offsets = {"log_start_offset": 0, "low_watermark": 0, "log_end_offset": 9}
    numbers = {**offsets, "picked": False, "reason": "", **changes}
    problems_named = list(
        problems("clean_log", {"version": 1, "partitions": {"0": numbers}, "topic": {}})
    )
    assert problems_named == ([] if problem is None else [problem])


def test_what_is_missing_is_named() -> None:
    numbers = {"low_watermark": 0, "log_end_offset": 9, "picked": True}
    problems_named = list(
        problems("clean_log", {"version": 1, "partitions": {"3": numbers}, "topic": {}})
    )
    assert problems_named == ["partition 3 has no log_start_offset", "partition 3 has no reason"]
    assert list(problems("a_job", {"version": 1, "partitions": {}, "topic": {}})) == [
        "no spec declares a_job"
    ]
