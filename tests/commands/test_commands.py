"""Commands that read the lake: their text, and documents that hold what the reference says."""

import logging
import os
import re
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.commands.environment import load_environment
from ebbtide.errors import ConfigurationError, ExitCode
from tests.commands.conftest import Ebbtide
from tests.lake_sandbox import ROOT, LakeSandbox, partition_result, state_of

REFERENCE = (ROOT / "docs" / "command_line.md").read_text()
HORIZON_MS = 1_790_000_000_000
YESTERDAY = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)


def fields(command: str) -> set[str]:
    """The fields of the command's rows, as the reference lists them."""
    section = REFERENCE.partition(f"\n`{command}`:")[2].partition("\n\n`")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def check(document: dict[str, Any], command: str, rows: str) -> list[dict[str, Any]]:
    """Compare a document with the reference; its rows."""
    assert document["command"] == command
    assert document["version"] == 1
    of_document: list[dict[str, Any]] = document[rows]
    assert of_document
    for row in of_document:
        assert set(row) == fields(command)
    return of_document


@pytest.fixture
def two_runs(lake: LakeSandbox) -> LakeSandbox:
    """Two topics; a run in which one failed, and a later one."""
    lake.topic("log.a", {0: state_of(next_clean_ms=HORIZON_MS), 1: state_of()})
    lake.topic("log.b", {0: state_of()}, {"ebbtide.enabled": "false"})
    lake.records("log.a", [(0, 1), (0, 2), (1, 1)])
    cleaned = {0: partition_result(superseded=3)}
    earlier = {"started": YESTERDAY, "ended": YESTERDAY + timedelta(minutes=1)}
    later = {key: when + timedelta(hours=1) for key, when in earlier.items()}
    lake.run("log.a", "clean_log", partitions=cleaned, rows_removed=3, bytes_removed=90, **earlier)
    lake.run("log.b", "clean_log", error=ConfigurationError("expected x, found y"), **earlier)
    lake.run("log.a", "clean_log", run_id="run-2", snapshot_ids=[2**60], **later)
    return lake


def test_topics(two_runs: LakeSandbox, ebbtide: Ebbtide) -> None:
    two_runs.hold("log.a", review_date=date(2026, 1, 1))
    two_runs.hold("log.a", hold_id="h-2", review_date=date(2999, 1, 1))
    a, b = check(ebbtide("topics", "--json").document, "topics", "topics")
    assert (a["records"], a["partitions"], a["cleanup_policy"]) == (3, 2, ["compact"])
    assert a["next_horizon"] == "2026-09-21T14:13:20.000+00:00"
    assert a["bytes_on_disk"] > 0
    assert (a["holds"], b["holds"], b["holds_to_review"]) == (2, 0, [])
    (due,) = a["holds_to_review"]
    assert due == "the review of hold h-1 (case C-7) was due by 2026-01-01; ask legal"
    assert (b["is_enabled"], b["next_horizon"], b["cleanup_policy"]) == (False, None, [])
    text = ebbtide("topics").out
    assert re.search(r"^log\.a +compact +2 +3 .* 2026-09-21 14:13 +2 +-$", text, re.MULTILINE)
    assert re.search(r"^log\.b +not set +1 +0 .* no$", text, re.MULTILINE)
    assert text.splitlines()[-1] == f"log.a: {due}"
    assert "log.b" not in ebbtide("topics", "*.a").out


def test_a_topic_that_cannot_be_read_says_why(two_runs: LakeSandbox, ebbtide: Ebbtide) -> None:
    two_runs.session.sql(
        "ALTER TABLE lake.log_state.b SET TBLPROPERTIES ('ebbtide.state.0' = 'no state')"
    )
    a, b = ebbtide("topics", "--json").document["topics"]
    assert a["problem"] is None
    assert set(b) == {"topic", "problem"}
    assert f"log.b: {b['problem']}" in ebbtide("topics").out


def test_an_empty_lake_has_no_topic(lake: LakeSandbox, ebbtide: Ebbtide) -> None:
    assert ebbtide("topics").out == "no topic was ingested yet, or none matches\n"
    assert ebbtide("runs").out == "no such run in the last 30 days\n"
    assert ebbtide("report", "--json").document["attempts"] == []


def test_report(two_runs: LakeSandbox, ebbtide: Ebbtide) -> None:
    (newest,) = check(ebbtide("report", "--json").document, "report", "attempts")
    assert newest["snapshot_ids"] == [str(2**60)]
    document = ebbtide("report", "--json", "run-1").document
    assert document["run_id"] == "run-1"
    a, b = sorted(document["attempts"], key=lambda attempt: str(attempt["topic"]))
    assert (a["rows_removed"], a["result"]["partitions"]["0"]["superseded"]) == (3, 3)
    assert b["cause"] == "ConfigurationError: expected x, found y"
    assert ebbtide("report").out.startswith("run run-2 ")
    assert ebbtide("report", "run-1").out.startswith("run run-1 ")


def test_runs(two_runs: LakeSandbox, ebbtide: Ebbtide) -> None:
    newest, first = check(ebbtide("runs", "--json").document, "runs", "runs")
    assert (newest["run_id"], newest["failed"]) == ("run-2", [])
    assert (first["run_id"], first["topics"], first["failed"]) == (
        "run-1",
        ["log.a", "log.b"],
        ["log.b"],
    )
    assert (first["rows_removed"], first["bytes_removed"]) == (3, 90)
    assert first["started"] == YESTERDAY.isoformat(timespec="milliseconds")
    assert ebbtide("runs", "--failed").out.splitlines()[-1].startswith("run-1 ")
    assert "run-1" not in ebbtide("runs", "--limit", "1").out
    only_b = ebbtide("runs", "--json", "--topic", "log.b").document["runs"]
    assert [run["run_id"] for run in only_b] == ["run-1"]


def test_an_error_is_a_line_and_a_document(lake: LakeSandbox, ebbtide: Ebbtide) -> None:
    answer = ebbtide("key", "--json", "log.nope", "a")
    assert answer.code == ExitCode.FAILED
    assert answer.err.startswith("ebbtide: UnknownTopicError: expected a table for topic log.nope")
    assert answer.document["error"]["class"] == "UnknownTopicError"
    assert "\n" not in answer.document["error"]["message"]


def test_the_environment_is_loaded_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / ".ebbtide" / "conf"
    conf.mkdir(parents=True)
    (conf / "airflow.env").write_text(
        '# a comment\nEBBTIDE_HOME="/a b"\nEBBTIDE_ROOT="/r"\nSPARK_CONF_DIR="/c"\n'
        'AIRFLOW_CONN_SPARK_DEFAULT=\'{"host":"$PATH"}\'\nPATH="/bin2:$PATH"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    for name in ("EBBTIDE_HOME", "SPARK_CONF_DIR", "AIRFLOW_CONN_SPARK_DEFAULT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EBBTIDE_ROOT", "/mine")
    monkeypatch.setenv("PATH", "/bin1")
    load_environment()
    assert os.environ["EBBTIDE_HOME"] == "/a b"
    assert os.environ["EBBTIDE_ROOT"] == "/mine"
    assert os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] == '{"host":"$PATH"}'
    assert os.environ["PATH"] == "/bin2:/bin1"


def test_a_document_stands_alone_whatever_libraries_log(
    lake: LakeSandbox, ebbtide: Ebbtide
) -> None:
    """As Airflow's logging does once it is set up."""
    lake.topic("log.a", {0: state_of()})
    handler, root = logging.StreamHandler(sys.stdout), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        assert [topic["topic"] for topic in ebbtide("topics", "--json").document["topics"]] == [
            "log.a"
        ]
        assert "Loaded FileIO" not in ebbtide("topics").out
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
