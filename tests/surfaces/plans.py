"""What jobs store in `plans` for a little log, without what differs from run to run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ebbtide.ledger.plans import Plan
from tests.surfaces.stored import shape
from tests.tables.nights import at
from tests.tables.planned import Jobs

NOW_MS = 1_795_309_200_000
# Besides --topic.
ARGUMENTS = {
    "clean_log": "",
    "configure_topic": "--set kafka.retention.ms=1000",
    "expire_segments": "",
    "expire_snapshots": "",
    "hold_records": "--action make --case-id C-7 --reason x --owner legal --review-date 2027-01-31",
    "mark_tombstones": "--from-offset 0:2",
    "repair_state": "--keep-changes",
}
DIFFERING = re.compile(
    r"file:.*/lake/warehouse|ebbtide-[a-z_]+-[0-9a-f]{16}-[0-9a-f]{8}-[0-9a-f]{32}"
    r"|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])|\d{8}-[0-9a-f]{8}"
)


def collect(jobs: Jobs, topic: str) -> dict[str, Any]:
    """Return the plan of each job; that of an undo follows a deletion."""
    asked = {"topic": topic, "partitions": [{"partition": 0, "offset": 2}]}
    request = ("--request", json.dumps({"topics": [asked]}))
    on_topic = ("--topic", topic)
    plans = [
        jobs.plan(import_module(f"jobs.{job}"), NOW_MS, *on_topic, *arguments.split())
        for job, arguments in ARGUMENTS.items()
    ]
    delete_records = import_module("jobs.delete_records")
    plans.append(jobs.plan(delete_records, NOW_MS, *request))
    assert jobs.run(delete_records, *request, "--now", at(NOW_MS).isoformat()) == 0
    undo = ("--run", jobs.run_id)
    plans.append(jobs.plan(import_module("jobs.undo_run"), NOW_MS, *on_topic, *undo))
    return {plan.job: described(plan) for plan in plans}


def described(plan: Plan) -> dict[str, Any]:
    assert plan.removes is not None
    return {
        "parameters": masked(plan.parameters),
        "bounds": {str(p): dict(bounds) for p, bounds in plan.bounds.items()},
        "removes": {str(p): list(offsets) for p, offsets in plan.removes.items()},
        "snapshots": shape(plan.snapshots),
        "summary": shape(plan.summary),
        "its text has its id": f"plan: {plan.plan_id}" in plan.text.splitlines(),
    }


def masked(value: Any) -> Any:
    """Return a value without paths and ids; lists are sorted."""
    if isinstance(value, Mapping):
        return {name: masked(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return sorted(map(masked, value), key=str)
    return DIFFERING.sub("<differs>", value) if isinstance(value, str) else value
