"""Holds are made, changed and ended by the job, and show on Airflow's side."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import CommitConflictError, ExitCode, HoldError
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.erase_keys.plan import plan_erase
from ebbtide.lake.own_tables import read_holds, review_warnings
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.holds import Hold, HoldEvent
from ebbtide.orchestration.report import find_run, render_run
from ebbtide.runner import holds as holds_table
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure
from ebbtide.specs.hold_request import HOLD_KEYS
from ebbtide.state.topic_state import TIDIED
from jobs import expire_snapshots, hold_records
from tests.jobs.erase_keys.erased import note_erased
from tests.jobs.hold_records.builders import NIGHT_MS, WHY, HeldTopic, hashed
from tests.lake_sandbox import LakeSandbox
from tests.tables.clocks import turn_back
from tests.tables.fixtures import Meanwhile
from tests.tables.logs import Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark
from tests.tables.planned import Jobs

MESSAGES = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2", DAY_MS), Message("b", "2", DAY_MS)],
    [Message("c", "1", 4 * DAY_MS)],
]


@pytest.fixture
def topic(sandbox: LakeSandbox, cluster: str, jobs: Jobs, tmp_path: Path) -> HeldTopic:
    """A topic that a round has cleaned: 0 and 1 are gone, but in a snapshot."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    name = TopicName(cluster[-30:], "t")
    ingest(sandbox.session, str(name), tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    return HeldTopic(sandbox, jobs, name)


def make(topic: HeldTopic, *more: str) -> Hold:
    """Make a hold by the job; the hold."""
    topic.make(*more)
    return holds(topic)[-1].hold


def holds(topic: HeldTopic, *, with_ended: bool = False) -> Any:
    with open_lake() as lake:
        return read_holds(lake, datetime.now(UTC), str(topic.name), with_ended=with_ended)


def test_a_hold_by_key_keeps_no_key_and_takes_from_snapshots_what_is_gone(
    topic: HeldTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOLD_KEYS, "b\nx")
    hold = make(topic, "--review-date", "2026-01-31")
    assert hold.key_hashes == hashed("b", "x")
    assert (hold.event, hold.by, hold.case_id) == (HoldEvent.MADE, "ann", "7")
    assert topic.kept() == {hold.hold_id: [1]}
    row = topic.jobs.last_run()
    assert row.topic_result["copied_for_holds"] == {f"{hold}": 1}
    assert row.partitions[0]["covered"] == 1
    (standing,) = holds(topic)
    assert (standing.kept_records, standing.is_to_be_reviewed) == (1, True)
    warning = f"{topic.name}: the review of {hold} was due by 2026-01-31; ask legal"
    assert review_warnings([standing]) == [warning]
    with open_lake() as lake:
        run_id = topic.jobs.run_id
        report = " ".join(render_run(lake, run_id, find_run(lake, run_id)).split())
    assert warning in report
    assert f"copied 1 records for {hold}." in report


def test_a_hold_tells_of_records_that_it_does_not_keep(topic: HeldTopic) -> None:
    note_erased(topic.spark, topic.name, "a", NIGHT_MS)
    topic.set({"ebbtide.replicas": "kafka:east"})
    row = topic.make()
    assert row.partitions[0]["covered"] == 2
    assert row.topic_result["erased"] == 1
    assert row.topic_result["note"] == (
        "the hold does not protect kafka:east: records that the brokers delete before they are "
        "ingested are lost; the hold does not keep 1 records that are still in the log, because "
        "their keys were erased"
    )
    assert list(topic.kept().values()) == [[1]]


@pytest.mark.long
def test_widening_acts_at_once_and_what_covers_less_needs_an_approval(topic: HeldTopic) -> None:
    hold = make(topic, "--partition", "0", "--first-offset", "1", "--end-offset", "3")
    of_hold = ("--hold", hold.hold_id)
    assert topic.kept() == {hold.hold_id: [1]}
    topic.run(hold_records, "--action", "change", *of_hold, "--first-offset", "0")
    assert topic.kept() == {hold.hold_id: [0, 1]}
    narrower = ("change", *of_hold, "--first-offset", "1", "--review-date", "2027-01-01")
    for asked in (narrower, ("end", *of_hold)):
        assert topic.fail(hold_records, "--action", *asked).error_class == "PlanError"
    (standing,) = holds(topic)
    assert (standing.hold.first_offset, standing.hold.owner) == (0, "legal")
    plan = topic.execute(hold_records, "--action", *narrower)
    assert plan.summary["partitions"]["0"]["rules"] == {"hold_ended": {"records": 1}}
    (standing,) = holds(topic)
    assert (standing.hold.first_offset, standing.hold.approver) == (1, "bob")
    topic.end(hold.hold_id)
    assert holds(topic) == []
    (ended,) = holds(topic, with_ended=True)
    assert (ended.hold.event, ended.hold.approver, ended.stands) == (HoldEvent.ENDED, "bob", False)
    refused = topic.fail(hold_records, "--action", "change", *of_hold, "--end-offset", "9")
    assert "found that it ended at" in refused.error


def test_the_last_event_of_a_hold_counts_also_if_clocks_went_back(
    topic: HeldTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = make(topic, "--first-offset", "1")
    of_hold = ("--hold", hold.hold_id)
    turn_back(monkeypatch, timedelta(days=1))
    topic.run(hold_records, "--action", "change", *of_hold, "--first-offset", "0")
    (standing,) = holds(topic)
    assert (standing.hold.event, standing.hold.first_offset) == (HoldEvent.CHANGED, 0)
    assert topic.kept() == {hold.hold_id: [0, 1]}
    turn_back(monkeypatch, timedelta(days=2))
    topic.end(hold.hold_id)
    assert holds(topic) == []
    events = holds_table.read_holds(topic.spark, topic.name)
    first, second, last = sorted(events, key=lambda event: event.at)
    assert [first.event, second.event, last.event] == list(HoldEvent)
    assert first.at < second.at < last.at


@pytest.mark.long
def test_kept_rows_leave_after_their_hold_with_the_next_expiry_of_a_tidy_topic(
    topic: HeldTopic,
) -> None:
    hold = make(topic)
    assert topic.kept() == {hold.hold_id: [0, 1]}
    topic.set({"history.expire.max-snapshot-age-ms": "1"})
    for _ in range(3):
        topic.run(expire_snapshots)
    assert TIDIED in topic.topic().properties
    assert topic.kept() == {hold.hold_id: [0, 1]}
    topic.end(hold.hold_id)
    topic.set({"history.expire.max-snapshot-age-ms": str(DAY_MS)})
    result = topic.run(expire_snapshots).topic_result
    assert result["held_rows_deleted"] == 2
    assert topic.kept() == {}
    # The snapshot from before has the file of the copies.
    assert result["still_in"] == {"old_copies": 1}
    topic.set({"history.expire.max-snapshot-age-ms": "1"})
    assert topic.run(expire_snapshots).topic_result["still_in"] == {}


@pytest.mark.long
def test_what_others_removed_is_kept_before_its_snapshot_expires(
    topic: HeldTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the job had died between the event and the copy."""
    topic.set({"history.expire.max-snapshot-age-ms": "1"})
    with monkeypatch.context() as patched:
        patched.setattr("ebbtide.jobs.hold_records.keep_removed", lambda _: {})
        hold = make(topic, "--end-offset", "1")
    assert topic.kept() == {}
    topic.run(expire_snapshots)
    assert topic.kept() == {hold.hold_id: [0]}


@pytest.mark.long
def test_held_keys_are_not_erased(topic: HeldTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    def erase(*keys: str) -> None:
        asked = Erasure(
            run_id="r",
            now_ms=NIGHT_MS,
            requested_by="ann",
            reason="17",
            keys=tuple(key.encode() for key in keys),
            appends=True,
        )
        plan_erase(topic.topic(), asked)

    topic.set({"ebbtide.source": None})
    by_offset = make(topic, "--end-offset", "1")  # a record of `a`, kept and gone
    erase("b", "c")
    with pytest.raises(HoldError, match=rf"under {by_offset.hold_id}|hold {by_offset.hold_id}"):
        erase("a", "c")
    monkeypatch.setenv(HOLD_KEYS, "c")
    by_key = make(topic)
    monkeypatch.delenv(HOLD_KEYS)
    with pytest.raises(HoldError, match=rf"{by_key.hold_id} \(case 7\)"):
        erase("b", "c")


def test_keys_of_a_file_and_words_of_the_environment_are_on_no_command_line(
    topic: HeldTopic,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word, value in {"case_id": "7", "reason": "asked by a court", "owner": "legal"}.items():
        monkeypatch.setenv(f"EBBTIDE_GIVEN_{word.upper()}", value)
    keys = tmp_path / "keys.txt"
    keys.write_text("b\nx\n")
    of_file = ("--action", "make", "--keys-file", str(keys))
    topic.run(hold_records, *of_file)
    hold = holds(topic)[-1].hold
    assert hold.key_hashes == hashed("b", "x")
    assert (hold.case_id, hold.reason, hold.owner) == ("7", "asked by a court", "legal")
    assert topic.kept() == {hold.hold_id: [1]}
    keys.write_text("\n")  # a hold without keys would cover all of them
    assert topic.jobs.run(hold_records, *topic.arguments, *topic.now, *of_file) == ExitCode.FAILED
    assert f"expected one key per line in {keys}, found none" in capsys.readouterr().err
    monkeypatch.setenv(HOLD_KEYS, "b")
    with pytest.raises(SystemExit):
        topic.run(hold_records, *of_file)
    assert len(holds(topic)) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--owner", "x"), "expected case_id, reason of a new hold, found none"),
        ((*WHY, "--partition", "7"), "expected a partition of"),
        ((*WHY, "--first-offset", "4", "--end-offset", "4"), "expected first_offset before"),
        ((*WHY, "--event-time-from", "2026-01-01"), "expected event_time_from as ISO 8601 with"),
        ((*WHY, "--review-date", "soon"), "expected review_date as a day"),
    ],
)
def test_what_cannot_be_held_is_refused(
    sandbox: LakeSandbox, jobs: Jobs, shared_name: TopicName, more: tuple[str, ...], told: str
) -> None:
    topic = HeldTopic(sandbox, jobs, shared_name)
    assert told in topic.fail(hold_records, "--action", "make", *more).error
    assert holds_table.read_holds(sandbox.session, shared_name) == []


@pytest.fixture(scope="module")
def shared_name(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> TopicName:
    log = tmp_path_factory.mktemp("shared") / "log"
    write_log(log, "t", MESSAGES, {})
    ingest(sandbox.session, "shared.t", log, NIGHT_MS)
    return TopicName("shared", "t")


def test_a_try_that_lost_a_race_goes_on_with_the_hold_that_it_has_made(
    topic: HeldTopic, meanwhile: Meanwhile
) -> None:
    def lose() -> None:
        raise CommitConflictError("expected nobody else, found another writer; run it again")

    meanwhile(Step.HELD_ROWS, lose)
    topic.make()
    assert len(holds(topic)) == 1
