"""Holds are made, changed and ended by the job, and show on Airflow's side."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode, HoldError
from ebbtide.iceberg.topics import load
from ebbtide.lake.holds import read_holds, review_warnings
from ebbtide.lake.reader import open_lake
from ebbtide.log.holds import Event, Hold
from ebbtide.log.requests.erase_request import Erasure
from ebbtide.log.requests.hold_request import KEYS
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import TIDIED
from ebbtide.orchestration.report import find_run, render_run
from ebbtide.runs import holds_table
from ebbtide.stages.erase_keys.plan import plan_erase
from jobs import expire_snapshots, hold_records
from tests.lake_sandbox import LakeSandbox
from tests.stages.hold_records.builders import hashed, kept
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, clean, ingest, mark, set_properties
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 10 * DAY_MS
NOW = ("--now", at(NIGHT_MS).isoformat())
WHY = ("--case-id", "7", "--reason", "asked by a court", "--owner", "legal")
MESSAGES = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2", DAY_MS), Message("b", "2", DAY_MS)],
    [Message("c", "1", 4 * DAY_MS)],
]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A topic that a round has cleaned: 0 and 1 are gone, but in a snapshot."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    name = TopicName(cluster[-30:], "t")
    ingest(sandbox.session, str(name), tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    return name


def ask(jobs: Jobs, name: TopicName, action: str, *more: str) -> int:
    return jobs.run(hold_records, "--topic", str(name), *NOW, "--action", action, *more)


def make(jobs: Jobs, name: TopicName, *more: str) -> Hold:
    """Make a hold by the job; the hold."""
    assert ask(jobs, name, "make", *WHY, "--requested-by", "ann", *more) == ExitCode.DONE
    return holds(name)[-1].hold


def holds(name: TopicName, *, with_ended: bool = False) -> Any:
    with open_lake() as lake:
        return read_holds(lake, datetime.now(UTC), str(name), with_ended=with_ended)


def test_a_hold_by_key_keeps_no_key_and_takes_from_snapshots_what_is_gone(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, "b\nx")
    hold = make(jobs, name, "--review-date", "2026-01-31")
    assert hold.key_hashes == hashed("b", "x")
    assert (hold.event, hold.by, hold.case_id) == (Event.MADE, "ann", "7")
    assert kept(sandbox.session, name) == {hold.hold_id: [1]}
    row = jobs.last_run()
    assert row.topic_result["kept_by_holds"] == {f"{hold}": 1}
    assert row.partitions[0]["covered"] == 1
    (standing,) = holds(name)
    assert (standing.kept_records, standing.is_to_be_reviewed) == (1, True)
    warning = f"{name}: {hold} was to be reviewed by 2026-01-31; ask legal"
    assert review_warnings([standing]) == [warning]
    with open_lake() as lake:
        report = " ".join(render_run(lake, jobs.run_id, find_run(lake, jobs.run_id)).split())
    assert warning in report
    assert f"{hold} keeps 1 records" in report


@pytest.mark.long
def test_widening_acts_at_once_and_what_covers_less_needs_an_approval(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    spark = sandbox.session
    hold = make(jobs, name, "--partition", "0", "--first-offset", "1", "--end-offset", "3")
    of_hold = ("--hold", hold.hold_id)
    assert kept(spark, name) == {hold.hold_id: [1]}
    assert ask(jobs, name, "change", *of_hold, "--first-offset", "0") == ExitCode.DONE
    assert kept(spark, name) == {hold.hold_id: [0, 1]}
    narrower = ("change", *of_hold, "--first-offset", "1", "--review-date", "2027-01-01")
    for asked in (narrower, ("end", *of_hold)):
        assert ask(jobs, name, *asked) == ExitCode.FAILED
        assert jobs.last_run().error_class == "PlanError"
    (standing,) = holds(name)
    assert (standing.hold.first_offset, standing.hold.owner) == (0, "legal")
    asked = ("--topic", str(name), "--action", *narrower)
    plan = jobs.plan(hold_records, NIGHT_MS, *asked)
    assert plan.summary["partitions"]["0"]["rules"] == {"hold_ended": {"records": 1}}
    run = ("--plan", plan.plan_id, "--approved-by", "bob")
    assert jobs.run(hold_records, *run) == ExitCode.DONE
    (standing,) = holds(name)
    assert (standing.hold.first_offset, standing.hold.approver) == (1, "bob")
    plan = jobs.plan(hold_records, NIGHT_MS, "--topic", str(name), "--action", "end", *of_hold)
    assert jobs.run(hold_records, "--plan", plan.plan_id, "--approved-by", "bob") == ExitCode.DONE
    assert holds(name) == []
    (ended,) = holds(name, with_ended=True)
    assert (ended.hold.event, ended.hold.approver, ended.stands) == (Event.ENDED, "bob", False)
    assert ask(jobs, name, "change", *of_hold, "--end-offset", "9") == ExitCode.FAILED
    assert "found that it ended at" in jobs.last_run().error


@pytest.mark.long
def test_kept_rows_leave_after_their_hold_with_the_next_expiry_of_a_tidy_topic(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    spark = sandbox.session
    hold = make(jobs, name)
    assert kept(spark, name) == {hold.hold_id: [0, 1]}
    set_properties(spark, str(name), {"history.expire.max-snapshot-age-ms": "1"})
    of_topic = ("--topic", str(name), *NOW)
    for _ in range(3):
        assert jobs.run(expire_snapshots, *of_topic) == ExitCode.DONE
    assert TIDIED in load(spark, name).properties
    assert kept(spark, name) == {hold.hold_id: [0, 1]}
    end = ("--topic", str(name), "--action", "end", "--hold", hold.hold_id)
    plan = jobs.plan(hold_records, NIGHT_MS, *end)
    assert jobs.run(hold_records, "--plan", plan.plan_id, "--approved-by", "bob") == ExitCode.DONE
    assert jobs.run(expire_snapshots, *of_topic) == ExitCode.DONE
    assert jobs.last_run().topic_result["held_rows_deleted"] == 2
    assert kept(spark, name) == {}


@pytest.mark.long
def test_what_others_removed_is_kept_before_its_snapshot_expires(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the job had died between the event and the copy."""
    spark = sandbox.session
    set_properties(spark, str(name), {"history.expire.max-snapshot-age-ms": "1"})
    with monkeypatch.context() as patched:
        patched.setattr("ebbtide.stages.hold_records.stage.keep_removed", lambda _: {})
        hold = make(jobs, name, "--end-offset", "1")
    assert kept(spark, name) == {}
    assert jobs.run(expire_snapshots, "--topic", str(name), *NOW) == ExitCode.DONE
    assert kept(spark, name) == {hold.hold_id: [0]}


@pytest.mark.long
def test_held_keys_are_not_erased(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    def erase(*keys: str) -> None:
        asked = Erasure(
            run_id="r",
            now_ms=NIGHT_MS,
            requested_by="ann",
            reason="17",
            keys=tuple(key.encode() for key in keys),
            appends=True,
        )
        plan_erase(load(sandbox.session, name), asked)

    set_properties(sandbox.session, str(name), {"ebbtide.source": None})
    by_offset = make(jobs, name, "--end-offset", "1")  # a record of `a`, kept and gone
    erase("b", "c")
    with pytest.raises(HoldError, match=rf"under {by_offset.hold_id}|hold {by_offset.hold_id}"):
        erase("a", "c")
    monkeypatch.setenv(KEYS, "c")
    by_key = make(jobs, name)
    monkeypatch.delenv(KEYS)
    with pytest.raises(HoldError, match=rf"{by_key.hold_id} \(case 7\)"):
        erase("b", "c")


def test_keys_of_a_file_and_words_of_the_environment_are_on_no_command_line(
    sandbox: LakeSandbox,
    jobs: Jobs,
    name: TopicName,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word, value in {"case_id": "7", "reason": "asked by a court", "owner": "legal"}.items():
        monkeypatch.setenv(f"EBBTIDE_GIVEN_{word.upper()}", value)
    keys = tmp_path / "keys.txt"
    keys.write_text("b\nx\n")
    assert ask(jobs, name, "make", "--keys-file", str(keys)) == ExitCode.DONE
    hold = holds(name)[-1].hold
    assert hold.key_hashes == hashed("b", "x")
    assert (hold.case_id, hold.reason, hold.owner) == ("7", "asked by a court", "legal")
    assert kept(sandbox.session, name) == {hold.hold_id: [1]}
    keys.write_text("\n")  # a hold without keys would cover all of them
    assert ask(jobs, name, "make", "--keys-file", str(keys)) == ExitCode.FAILED
    assert f"expected keys in {keys}, one a line, found none" in capsys.readouterr().err
    monkeypatch.setenv(KEYS, "b")
    with pytest.raises(SystemExit):
        ask(jobs, name, "make", "--keys-file", str(keys))
    assert len(holds(name)) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--owner", "x"), "expected a hold to say case_id, reason, found none"),
        ((*WHY, "--partition", "7"), "expected a partition of"),
        ((*WHY, "--first-offset", "4", "--end-offset", "4"), "expected first_offset before"),
        ((*WHY, "--event-time-from", "2026-01-01"), "expected event_time_from as ISO 8601 with"),
        ((*WHY, "--review-date", "soon"), "expected review_date as a day"),
    ],
)
def test_what_cannot_be_held_is_refused(
    sandbox: LakeSandbox, jobs: Jobs, shared_name: TopicName, more: tuple[str, ...], told: str
) -> None:
    assert ask(jobs, shared_name, "make", *more) == ExitCode.FAILED
    assert told in jobs.last_run().error
    assert holds_table.read_holds(sandbox.session, shared_name) == []


@pytest.fixture(scope="module")
def shared_name(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> TopicName:
    log = tmp_path_factory.mktemp("shared") / "log"
    write_log(log, "t", MESSAGES, {})
    ingest(sandbox.session, "shared.t", log, NIGHT_MS)
    return TopicName("shared", "t")
