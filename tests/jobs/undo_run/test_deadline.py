"""An undo restores tombstones, and with them the groups that the deadline of erasure follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.settings.config import DEADLINE_MS
from ebbtide.settings.names import TopicName
from ebbtide.state.deletes import UNSEEN, Deletes, Stage
from jobs import clean_log, expire_snapshots, mark_tombstones
from tests.jobs.undo_run.bench import Bench
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, ingest, mark, set_properties
from tests.tables.planned import Jobs

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
LOG = [[Message("a", "1"), Message("b", "1")], [Message("a", None)], []]
COUNTED = Deletes(Stage.COUNTED, UNSEEN, 0, 3)
SET_MS = FIRST_MS + DAY_MS
DUE_MS = SET_MS + DAY_MS
WAITS = Deletes(Stage.HORIZON_SET, FIRST_MS, 2, 3, DUE_MS)


@pytest.fixture
def bench(sandbox: LakeSandbox, jobs: Jobs, cluster: str, tmp_path: Path) -> Bench:
    """A topic of which one round has removed a record, and a second one its tombstone."""
    name = TopicName(cluster, "t")
    write_log(tmp_path / "log", "t", LOG, CONFIG)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    deadline = {DEADLINE_MS: str(30 * DAY_MS), "ebbtide.max.delete.ratio": "1"}
    set_properties(sandbox.session, str(name), deadline)
    mark(sandbox.session, str(name))
    return Bench(sandbox.session, jobs, name)


def test_tombstones_that_an_undo_restores_are_followed_again(bench: Bench) -> None:
    bench.run(clean_log, SET_MS)
    assert bench.states()[0].deletes == (COUNTED, WAITS)
    second = bench.run(clean_log, DUE_MS)
    bench.run(expire_snapshots, DUE_MS)
    (_, removed) = bench.states()[0].deletes
    assert removed.stage == Stage.REWRITTEN  # a third of its rows was deleted
    bench.undo(second, DUE_MS + 1)
    assert 2 in bench.left(0)
    assert bench.states()[0].deletes == (COUNTED, WAITS)
    bench.run(mark_tombstones, DUE_MS + 2)
    bench.run(expire_snapshots, DUE_MS + 2)
    assert bench.states()[0].deletes == (COUNTED, WAITS)


def test_an_undo_of_the_first_round_leaves_the_tombstones_without_a_horizon(bench: Bench) -> None:
    first = bench.run(clean_log, SET_MS)
    bench.run(clean_log, DUE_MS)
    bench.undo(first, DUE_MS + 1)
    assert bench.left(0) == [0, 1, 2]
    assert bench.states()[0].deletes == (COUNTED, Deletes(Stage.MARKED, FIRST_MS, 2, 3))
