"""A nightly run fails if a delete is not off the disk by its deadline, and other runs do not."""

from __future__ import annotations

from ebbtide.settings.config import DEADLINE_MS
from ebbtide.state.deletes import UNSEEN, Deletes, Stage
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import note, run_dag
from tests.lake_sandbox import LakeSandbox, state_of

DAY_MS = 86_400_000
WRITTEN_MS = 1_767_225_600_000  # 2026-01-01
SETTINGS = {"kafka.cleanup.policy": "compact", DEADLINE_MS: str(12 * DAY_MS)}
REMOVED = Deletes(Stage.REMOVED, WRITTEN_MS, 5, 9, 7)
DELETES = (Deletes(Stage.COUNTED, UNSEEN, 0, 100), REMOVED)


def test_a_nightly_run_fails_after_the_deadline(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    """Each stage has succeeded: the deletes are those that the last one left in the state."""
    lake.topic("log.a", {0: state_of(deletes=DELETES)}, SETTINGS)
    lake.topic("log.b", {0: state_of()}, {"kafka.cleanup.policy": "compact"})
    lake.topic("log.c", {0: state_of()}, {**SETTINGS, "ebbtide.replicas": "lake.copy"})
    lake.topic("copy.c", {1: state_of(deletes=DELETES)}, SETTINGS)
    assert run_dag("nightly_retention", now="2026-01-13T00:00:00Z").state == "success"
    run = run_dag("nightly_retention", now="2026-01-13T00:01:00Z")
    assert run.state == "failed"
    told = note(run) or ""
    late = "log.a: deletes in partition 0 had to be off the disk by 2026-01-13 00:00 UTC"
    assert late in told
    assert "log.b" not in told
    assert f"log.c: the replica lake.copy: {late.partition(': ')[2].replace('0', '1', 1)}" in told


def test_a_run_on_demand_does_not_fail(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", {0: state_of(deletes=DELETES, first_unmarked_offset=0)}, SETTINGS)
    run = run_dag("mark_tombstones", topic="log.a", now="2026-01-20T00:00:00Z")
    assert run.state == "success"
