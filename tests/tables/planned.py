"""Jobs run in this process on a sandbox's lake, and the plans that they keep and execute."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from ebbtide.lake.reader import open_lake
from ebbtide.ledger.plans import Plan, PlanEvent, PlanStep
from tests.lake_sandbox import LakeSandbox
from tests.tables.nights import at


class Jobs:
    """Runs `main` of jobs; reads what they keep as Airflow's side does."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.run_number = 0

    @property
    def run_id(self) -> str:
        """The last run's."""
        return f"{self.prefix}-{self.run_number}"

    def run(self, job: ModuleType, *arguments: str) -> int:
        """Run a job under a run id of its own; its exit code."""
        self.run_number += 1
        code: int = job.main([*arguments, "--run-id", self.run_id])
        return code

    def plan(self, job: ModuleType, now_ms: int, *arguments: str) -> Plan:
        """Plan, which succeeds; the plan that was kept."""
        code = self.run(job, *arguments, "--now", at(now_ms).isoformat(), "--plan-only")
        assert code == 0
        (made,) = self.plans(run_id=self.run_id)
        return made

    def plans(self, **equals: str) -> list[Plan]:
        """Plans with their offsets."""
        with open_lake() as lake:
            whole = [lake.plan(row.plan_id) for row in lake.plans(**equals)]  # type: ignore[arg-type]
        return [plan for plan in whole if plan is not None]

    def events(self, plan: Plan) -> list[PlanEvent]:
        with open_lake() as lake:
            return lake.plan_events(plan_id=plan.plan_id)

    def kinds(self, plan: Plan) -> list[PlanStep]:
        return [event.event for event in self.events(plan)]

    def last_run(self) -> Any:
        """The row of the last run."""
        with open_lake() as lake:
            (row,) = lake.runs(run_id=self.run_id)
        return row


@pytest.fixture
def jobs(sandbox: LakeSandbox, cluster: str, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Jobs on the lake that the tests of a file share; their run ids are the test's own."""
    sandbox.take_jobs(monkeypatch)
    return Jobs(cluster)
