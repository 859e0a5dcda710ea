"""Replications that are killed, run twice at a time, or lose what they read."""

from argparse import Namespace
from pathlib import Path

import pytest

from ebbtide.errors import (
    CommitConflictError,
)
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.settings.names import TopicName
from tests.jobs.replicate_log.replicas import (
    NIGHT_MS,
    NIGHTS,
    assert_equal,
    assert_sound,
    clean_both,
    grow,
    latest_values,
    replica_of,
    replicate,
    set_replicas,
)
from tests.lake_sandbox import LakeSandbox
from tests.runner.on_topics import run_topics
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.fixtures import kill as kill_job
from tests.tables.kafka_view import view_of_table
from tests.tables.nights import DAY_MS, at, clean
from tests.tables.other_tools import expire_all, rewrite_files, tables_of

STEPS = tuple(step for step in Step if step.name.startswith("REPLICATE"))


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.CREATE_TOPIC, *STEPS, Step.TRUNCATE_RECORD_SEGMENTS])
def test_a_killed_replication_is_finished_by_the_next(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kill_at: list[Step], step: Step
) -> None:
    if step is not Step.CREATE_TOPIC:
        replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:6])
    set_replicas(sandbox, name, None)
    execute_delete(plan_delete(load(sandbox.session, name), {0: 4, 1: 16}, NIGHT_MS))
    set_replicas(sandbox, name, f"other.{name.cluster}")
    if step is Step.REPLICATE_LEFTOVERS:
        kill(sandbox, name, kill_at, Step.REPLICATE_STATE)
    kill(sandbox, name, kill_at, step)
    # The primary goes on meanwhile, so that what a killed try has left is not what belongs there.
    clean(sandbox.session, str(name), NIGHT_MS)
    replicate(sandbox, name)
    assert_sound(sandbox, replica_of(name))
    for partition in range(2):
        expected = view_of_table(sandbox.session, name, partition)
        view = view_of_table(sandbox.session, replica_of(name), partition)
        new = 12 if partition == 0 and step is not Step.CREATE_TOPIC else 0
        assert view[:2] == expected[:2]
        assert [r for r in view.records if r[0] >= new] == [
            r for r in expected.records if r[0] >= new
        ]
        assert [b for b in view.batches if b["last_offset"] >= max(new, view[0])] == [
            b for b in expected.batches if b["last_offset"] >= max(new, view[0])
        ]
    clean_both(sandbox, name, NIGHT_MS + DAY_MS)
    assert latest_values(sandbox, replica_of(name)) == latest_values(sandbox, name)


def test_a_replication_that_is_killed_at_one_commit_after_the_other_is_finished(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kill_at: list[Step]
) -> None:
    kill(sandbox, name, kill_at, Step.CREATE_TOPIC)
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:5])
    for step in (s for s in STEPS if s is not Step.REPLICATE_LEFTOVERS):
        kill(sandbox, name, kill_at, step)
    kill(sandbox, name, kill_at, Step.REPLICATE_LEFTOVERS)
    replicate(sandbox, name)
    assert_equal(sandbox, name)


def kill(sandbox: LakeSandbox, name: TopicName, kill_at: list[Step], step: Step) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        replicate(sandbox, name)


@pytest.mark.long
@pytest.mark.parametrize("step", [s for s in STEPS if s is not Step.REPLICATE_LEFTOVERS])
def test_of_two_runs_at_a_time_one_goes_on(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, meanwhile: Meanwhile, step: Step
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:5])
    meanwhile(step, lambda: replicate(sandbox, name))
    if step is not Step.REPLICATE_STARTED:
        with pytest.raises(CommitConflictError):
            replicate(sandbox, name)
    replicate(sandbox, name)
    assert_equal(sandbox, name)


@pytest.mark.long
def test_a_primary_whose_snapshot_goes_while_it_is_read_is_read_again(
    sandbox: LakeSandbox,
    name: TopicName,
    meanwhile: Meanwhile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tools() -> None:
        rewrite_files(sandbox.session, tables_of(name))
        expire_all(sandbox.session, tables_of(name))

    monkeypatch.setattr(sandbox.session, "newSession", lambda: sandbox.session)
    meanwhile(Step.REPLICATE_RECORDS, tools)
    args = Namespace(plan_only=False, job="replicate_log", run_id="r", dag=None, task=None)
    args.now = at(NIGHT_MS)
    assert run_topics(sandbox.session, args, [name], lambda *_: replicate(sandbox, name)) == 0
    assert "planning again on the current snapshot (attempt 1)" in capsys.readouterr().err
    assert_equal(sandbox, name)


@pytest.mark.long
def test_what_another_run_left_just_before_is_taken_over(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, NIGHTS[:5])
    plan = plan_replicate(load(sandbox.session, name))

    def die(step: Step) -> None:
        if step is Step.REPLICATE_BATCHES:
            kill_job(step)

    with monkeypatch.context() as patched:
        patched.setattr(commits, "before_commit", die)
        with pytest.raises(KilledError):
            replicate(sandbox, name)
    # This one found its replica before the other began.
    execute_replicate(plan, NIGHT_MS)
    assert_equal(sandbox, name)
