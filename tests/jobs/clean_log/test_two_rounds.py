"""Two processes clean one topic: a round rests on the state that it was planned on."""

import pytest

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import ROUND
from tests.jobs.undo_run.bench import AdoptedBench
from tests.lake_sandbox import LakeSandbox
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.logs import Message
from tests.tables.nights import DAY_MS, HOUR_MS
from tests.tables.planned import Jobs

NIGHT_MS = 1_000 * DAY_MS
# A tombstone is due at the `now` that sets its horizon.
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
SEGMENTS = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1")],
    [Message("a", "2"), Message("b", None)],
    [Message("d", "1")],
]
CLEANED = "found that another job has cleaned it or repaired its state meanwhile"


@pytest.fixture
def bench(empty: Bench) -> Bench:
    empty.log(SEGMENTS, COMPACT, NIGHT_MS)
    empty.mark()
    return empty


@pytest.fixture
def adopted(sandbox: LakeSandbox, jobs: Jobs, cluster: str) -> AdoptedBench:
    return AdoptedBench(sandbox.session, jobs, TopicName(cluster, "t"))


def test_a_round_planned_before_another_ended_does_not_begin(
    bench: Bench, meanwhile: Meanwhile
) -> None:
    """Otherwise it would be found in flight, and clean again what was cleaned at this `now`."""
    meanwhile(Step.ROUND_STARTED, lambda: bench.clean(NIGHT_MS))
    with pytest.raises(CommitConflictError, match=CLEANED):
        bench.clean(NIGHT_MS)
    assert ROUND not in bench.load().properties
    assert not bench.clean(NIGHT_MS).partitions[0]["picked"]
    assert bench.left() == [2, 3, 4, 5]


def test_a_killed_round_that_another_finished_does_not_begin_again(
    bench: Bench, kill_at: list[Step]
) -> None:
    kill_at.append(Step.ROUND_BATCHES)
    with pytest.raises(KilledError):
        bench.clean(NIGHT_MS)
    resumed = plan_clean(bench.load(), NIGHT_MS)
    bench.clean(NIGHT_MS)
    bench.clean(NIGHT_MS + HOUR_MS)
    ended = bench.load().properties
    with pytest.raises(CommitConflictError, match=CLEANED):
        execute_clean(resumed)
    assert bench.load().properties == ended
    assert bench.left() == [2, 3, 5]


def test_a_merge_planned_before_another_ended_does_not_begin(
    bench: Bench, meanwhile: Meanwhile
) -> None:
    bench.clean(NIGHT_MS)
    meanwhile(Step.MERGE_STARTED, lambda: merge_segments(bench.load(), at_least=2))
    assert merge_segments(bench.load(), at_least=2) == 0
    assert bench.left() == [2, 3, 4, 5]


def test_a_round_on_an_adopted_table_rests_on_its_state_too(
    sandbox: LakeSandbox, adopted: AdoptedBench, meanwhile: Meanwhile
) -> None:
    def clean_once() -> JobOutcome:
        return execute_clean(plan_clean(load(sandbox.session, adopted.name), adopted.night_ms))

    meanwhile(Step.ROUND_STARTED, clean_once)
    with pytest.raises(CommitConflictError, match=CLEANED):
        clean_once()
    assert ROUND not in load(sandbox.session, adopted.name).properties
    assert not clean_once().partitions[0]["picked"]
