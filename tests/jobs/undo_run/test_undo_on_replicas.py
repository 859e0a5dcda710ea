"""A run goes back on the topic's table replicas too, in catalogs of their own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ebbtide.errors import CommitConflictError, ExitCode
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.in_flight import open_undo
from ebbtide.iceberg.topics import load
from ebbtide.jobs.undo_run.stage import execute_undo, propose_undo
from ebbtide.runner.holds import standing_holds
from ebbtide.runner.job import PlanRequest, Touched
from ebbtide.runner.undo_points import note_before
from ebbtide.settings.names import TopicName
from jobs import delete_records, hold_records, replicate_log, undo_run
from tests.jobs.replicate_log.replicas import replica_of, replicate, sandbox, set_replicas
from tests.jobs.undo_run.twins import of_request
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.fixtures import Meanwhile
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark
from tests.tables.other_tools import expire_all, tables_of
from tests.tables.planned import Jobs

__all__ = ["sandbox"]

NOW = ("--now", at(FIRST_MS + DAY_MS).isoformat())
COMPACT = {"cleanup.policy": "compact,delete"}
SEGMENTS = [[Message("a", "1"), Message("b", "1")], [Message("a", "2"), Message("b", "2")]]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """Two segments of two records, which the replica has too."""
    name = TopicName(cluster, "t")
    write_log(tmp_path / "log", "t", SEGMENTS, COMPACT)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    set_replicas(sandbox, name, f"other.{cluster}")
    replicate(sandbox, name)
    return name


def left(sandbox: LakeSandbox, name: TopicName) -> list[list[int]]:
    """The offsets of the topic and of its replica."""
    of_both = (name, replica_of(name))
    return [offsets(view_of_table(sandbox.session, topic, 0)) for topic in of_both]


def in_no_time(name: TopicName) -> tuple[str, str]:
    """A request up to offset 3 that waits for nothing."""
    topics = [{"topic": str(name), "partitions": [{"partition": 0, "offset": 3}]}]
    return "--request", json.dumps({"timeout_ms": 1, "topics": topics})


class Undo:
    """An undo of the run at work, of which the steps are taken one by one."""

    def __init__(self, sandbox: LakeSandbox, jobs: Jobs, name: TopicName) -> None:
        self.spark, self.jobs, self.name = sandbox.session, jobs, name

    def plan(self) -> None:
        self.run_id = self.jobs.run_id
        request = PlanRequest(FIRST_MS + DAY_MS, {"run": self.run_id})
        self.planned = propose_undo(self.spark, self.name, request)

    def execute(self) -> None:
        with commits.commits_of("undo_run", "undo"):
            execute_undo(self.planned)


def at_the_replica(
    monkeypatch: pytest.MonkeyPatch, actions: dict[Step, Callable[[], object]]
) -> None:
    """Let something happen just before a commit of a request at the replica, its second one."""
    hits: Counter[Step] = Counter()

    def before_commit(step: Step) -> None:
        hits[step] += 1
        if step in actions and hits[step] == 2:
            actions[step]()

    monkeypatch.setattr(commits, "before_commit", before_commit)


def assert_all_is_back(sandbox: LakeSandbox, name: TopicName) -> None:
    assert left(sandbox, name) == [[0, 1, 2, 3]] * 2
    for topic in (name, replica_of(name)):
        assert load(sandbox.session, topic).partitions[0].log_start_offset == 0
        assert_counted(sandbox.session, topic)


@pytest.fixture
def deleted(sandbox: LakeSandbox, jobs: Jobs, name: TopicName) -> str:
    """The id of a run that has deleted up to offset 3 on both."""
    asked = of_request(name, [{"partition": 0, "offset": 3}])
    assert jobs.run(delete_records, *asked, *NOW) == 0
    assert left(sandbox, name) == [[3], [3]]
    return jobs.run_id


@pytest.mark.long
def test_both_get_back_what_the_run_removed(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, deleted: str
) -> None:
    asked = ("--topic", str(name), "--run", deleted)
    plan = jobs.plan(undo_run, FIRST_MS + DAY_MS, *asked)
    assert jobs.run(undo_run, "--plan", plan.plan_id) == 0
    assert left(sandbox, name) == [[0, 1, 2, 3]] * 2
    run = jobs.last_run()
    replica = replica_of(name)
    assert run.topic_result["replicas"] == {str(replica): {"records_returned": 3}}
    assert run.partitions[0]["low_watermark"] == 0
    for topic in (name, replica):
        assert load(sandbox.session, topic).partitions[0].log_start_offset == 0
        assert len(standing_holds(sandbox.session, topic, at(FIRST_MS))) == 1
        assert_counted(sandbox.session, topic)
    # A night asks for nothing new at replicas, and a pause must not fail it.
    start = of_request(name, [{"partition": 0, "offset": 0}])
    assert jobs.run(delete_records, *start, *NOW) == 0
    assert jobs.run(replicate_log, "--topic", str(name), *NOW) == 0
    assert left(sandbox, name) == [[0, 1, 2, 3]] * 2


@pytest.mark.long(but="undo_told")
@pytest.mark.parametrize("step", [Step.UNDO_STATE, Step.UNDO_TOLD])
def test_an_undo_killed_between_both_is_finished_by_a_retry(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, deleted: str, kill_at: list[Step], step: Step
) -> None:
    """The replica goes first."""
    asked = ("--topic", str(name), "--run", deleted, *NOW)
    kill_at.append(step)
    assert jobs.run(undo_run, *asked) != 0
    assert left(sandbox, name) == [[3], [0, 1, 2, 3]]
    assert jobs.run(undo_run, *asked) == 0
    assert left(sandbox, name) == [[0, 1, 2, 3]] * 2


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.UNDO_POINT, Step.LOG_START_OFFSET])
def test_a_request_removes_nothing_at_a_replica_once_it_was_undone(
    sandbox: LakeSandbox,
    jobs: Jobs,
    name: TopicName,
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
) -> None:
    """The undo comes when the request has moved the topic and is about to move the replica."""

    def undo() -> None:
        run = ("--run", jobs.run_id)
        assert jobs.run(undo_run, "--topic", str(name), *run, *NOW) == 0

    at_the_replica(monkeypatch, {step: undo})
    assert jobs.run(delete_records, *in_no_time(name), *NOW) == ExitCode.TRANSIENT
    assert_all_is_back(sandbox, name)


@pytest.mark.long
def test_an_undo_that_knows_of_nothing_at_the_replica_keeps_a_request_from_it(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was planned before the request noted the replica, and begins after the last look."""
    undo = Undo(sandbox, jobs, name)
    at_the_replica(monkeypatch, {Step.UNDO_POINT: undo.plan, Step.LOG_START_OFFSET: undo.execute})
    assert jobs.run(delete_records, *in_no_time(name), *NOW) == ExitCode.TRANSIENT
    assert_all_is_back(sandbox, name)


@pytest.mark.long
def test_an_undo_that_a_request_outran_at_the_replica_takes_that_back_too(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = Undo(sandbox, jobs, name)
    at_the_replica(monkeypatch, {Step.UNDO_POINT: undo.plan})
    assert jobs.run(delete_records, *in_no_time(name), *NOW) == 0
    assert left(sandbox, name) == [[3], [3]]
    with pytest.raises(CommitConflictError, match="found 3: a request has advanced it since"):
        undo.execute()
    assert jobs.run(undo_run, "--topic", str(name), "--run", undo.run_id, *NOW) == 0
    assert_all_is_back(sandbox, name)


@pytest.fixture
def deleted_before(sandbox: LakeSandbox, jobs: Jobs, name: TopicName) -> str:
    """The id of a run that has deleted up to offset 3, when the topic had no replica."""
    set_replicas(sandbox, name, None)
    asked = of_request(name, [{"partition": 0, "offset": 3}])
    assert jobs.run(delete_records, *asked, *NOW) == 0
    deleted = jobs.run_id
    set_replicas(sandbox, name, f"other.{name.cluster}")
    return deleted


@pytest.mark.long
@pytest.mark.parametrize("job", [delete_records, replicate_log], ids=["a request", "a copy"])
def test_a_replica_goes_back_by_what_a_later_run_has_removed_from_it(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, deleted_before: str, job: ModuleType
) -> None:
    """The next night brings it up to where the topic begins."""
    asked = in_no_time(name) if job is delete_records else ("--topic", str(name))
    assert jobs.run(job, *asked, *NOW) == 0
    assert left(sandbox, name) == [[3], [3]]
    assert jobs.run(undo_run, "--topic", str(name), "--run", deleted_before, *NOW) == 0
    assert_all_is_back(sandbox, name)


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.UNDO_POINT, Step.REPLICATE_STARTED])
def test_a_copy_brings_no_log_start_to_a_replica_once_it_was_undone(
    sandbox: LakeSandbox,
    jobs: Jobs,
    name: TopicName,
    deleted_before: str,
    meanwhile: Meanwhile,
    step: Step,
) -> None:
    asked = ("--topic", str(name), "--run", deleted_before, *NOW)
    meanwhile(step, lambda: jobs.run(undo_run, *asked))
    assert jobs.run(replicate_log, "--topic", str(name), *NOW) == 0  # it plans again
    assert_all_is_back(sandbox, name)


@pytest.mark.long
def test_a_replica_stays_where_its_topic_cannot_go_back(
    sandbox: LakeSandbox, jobs: Jobs, cluster: str, tmp_path: Path
) -> None:
    """Keys of one of its partitions were erased since."""
    name = TopicName(cluster, "t")
    for partition in (0, 1):
        write_log(
            tmp_path / "log", "t", SEGMENTS, {"cleanup.policy": "delete"}, partition=partition
        )
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    set_replicas(sandbox, name, f"other.{cluster}")
    replicate(sandbox, name)
    asked = of_request(name, [{"partition": p, "offset": 3} for p in (0, 1)])
    assert jobs.run(delete_records, *asked, *NOW) == 0
    deleted, erased = jobs.run_id, load(sandbox.session, name)
    with commits.commits_of("erase_keys", "erasure"):
        note_before(erased, Touched([1]))
    assert jobs.run(undo_run, "--topic", str(name), "--run", deleted, *NOW) == 0
    assert "keys were erased by run erasure" in jobs.last_run().partitions[1]["reason"]
    for topic in (name, replica_of(name)):
        starts = [
            state.log_start_offset for state in load(sandbox.session, topic).partitions.values()
        ]
        assert starts == [0, 3]


@pytest.mark.long
def test_the_topic_stays_where_its_replica_cannot_go_back(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, deleted: str
) -> None:
    replica = replica_of(name)
    sandbox.session.sql(
        f"CALL other.system.expire_snapshots(table => '{replica.cluster}.t', older_than => "
        "TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    assert jobs.run(undo_run, "--topic", str(name), "--run", deleted, *NOW) == ExitCode.FAILED
    why = f"partition 0: on replica {replica}: another tool has expired snapshot"
    assert why in str(jobs.last_run().error)
    assert left(sandbox, name) == [[3], [3]]


@pytest.mark.long
def test_a_copy_gives_up_an_undo_at_its_replica_that_lost_its_snapshots(
    sandbox: LakeSandbox,
    jobs: Jobs,
    name: TopicName,
    deleted: str,
    kill_at: list[Step],
    tmp_path: Path,
) -> None:
    """Another tool expired them before they were tagged, and nobody runs the undo again."""
    kill_at.append(Step.UNDO_TAGGED)
    assert jobs.run(undo_run, "--topic", str(name), "--run", deleted, *NOW) != 0
    replica = replica_of(name)
    assert open_undo(load(sandbox.session, replica).properties) is not None
    expire_all(sandbox.session, tables_of(replica))
    write_log(tmp_path / "more", "t", [*SEGMENTS, [Message("a", "3")]], COMPACT)
    ingest(sandbox.session, str(name), tmp_path / "more", FIRST_MS + DAY_MS)
    assert jobs.run(replicate_log, "--topic", str(name), *NOW) == 0
    assert left(sandbox, name) == [[3, 4], [3, 4]]
    assert open_undo(load(sandbox.session, replica).properties) is None
    assert_counted(sandbox.session, replica)


def test_who_ends_the_pause_of_an_undo_ends_that_of_the_replica(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, tmp_path: Path
) -> None:
    """The replica gets back less than the topic: a request has deleted there in one partition."""
    write_log(tmp_path / "log", "t", SEGMENTS, COMPACT, partition=1)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    replicate(sandbox, name)
    set_replicas(sandbox, name, None)
    asked = of_request(name, [{"partition": p, "offset": 3} for p in (0, 1)])
    assert jobs.run(delete_records, *asked, *NOW) == 0
    deleted = jobs.run_id
    set_replicas(sandbox, name, f"other.{name.cluster}")
    assert jobs.run(delete_records, *in_no_time(name), *NOW) == 0
    assert jobs.run(undo_run, "--topic", str(name), "--run", deleted, *NOW) == 0

    def pauses(topic: TopicName) -> list[str]:
        holds = standing_holds(sandbox.session, topic, at(FIRST_MS))
        return [hold.hold_id for hold in holds]

    (pause,) = pauses(name)
    assert pauses(replica_of(name)) == [pause]
    end = ("--topic", str(name), "--action", "end", "--hold", pause)
    plan = jobs.plan(hold_records, FIRST_MS + DAY_MS, *end)
    assert jobs.run(hold_records, "--plan", plan.plan_id, "--approved-by", "bob") == 0
    assert pauses(name) == pauses(replica_of(name)) == []
