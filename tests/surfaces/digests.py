"""The digests of fixed plans, one for each job that stores plans; the rows and ids of plans."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from ebbtide.ledger.plans import PLANS as PLANS_TABLE
from ebbtide.ledger.plans import Plan, new_plan_id, offset_range
from ebbtide.ledger.undo_points import UNDO_POINTS, UndoPoint
from ebbtide.state.topic_state import parse_states
from tests.surfaces.state import partitions

NOW = datetime(2026, 11, 22, 1, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
# Parameters, and bounds of partition 0, as each job stores them.
PLANS = """
clean_log {} {"first_uncleanable_offset": 50, "held_back_from": 9223372036854775807}
configure_topic {"changes": {"kafka.retention.ms": "1000"}}
    {"first_uncleanable_offset": 50, "held_back_from": 9223372036854775807,
    "log_start_offset": 20, "log_end_offset": 90, "max_event_time_ms": 1000}
delete_records {"request": {"timeout_ms": 30000,
    "topics": [{"topic": "log.ä", "partitions": [{"partition": 0, "offset": 20}]}]}}
    {"offset": 20, "log_end_offset": 90}
erase_keys {"requested_by": "ann", "reason": "7", "encoding": "utf-8", "connection": null,
    "append": false, "timeout_ms": 600000, "keys": 1, "keys_sha256": "ca978112"}
    {"log_end_offset": 90}
expire_segments {} {"log_start_offset": 20, "log_end_offset": 90, "max_event_time_ms": 1000}
expire_snapshots {"snapshots": {"records": [1152921504606846976]}, "files": ["file:/f"]} {}
hold_records {"action": "make", "hold_id": "h-20261122-0123abcd", "by": "ann", "partition": 0,
    "first_offset": null, "end_offset": null, "event_time_from": null, "event_time_until": null,
    "case_id": "C-7", "reason": "x", "owner": "legal", "review_date": "2027-01-31",
    "key_hashes": ["ca978112"]} {}
mark_tombstones {"from_offset": ["0:2"]} {"log_end_offset": 90}
repair_state {"keep_changes": false, "log_start_offset": {"0": 7}, "max_event_time_ms": {},
    "sets": {}, "found": ["records: delete by spark"], "way": "take back",
    "back_to": {"records": "7"}} {}
undo_run {"run": "run-1"} {"log_start_offset": 0}
"""
PLAN = """{"plan_id": "clean_log-20261121-0123abcd", "run_id": "run-1", "dag": null,
    "requested_by": "ann", "text": "a plan", "snapshots": {"records": {"table": "t1",
    "snapshot": 1152921504606846976}}, "summary": {"partitions": {"0": {"records": 18}},
    "seconds": 3.5}}"""
POINT = """{"point_id": "p1", "run_id": "run-1", "job": "clean_log", "topic": "log.a",
    "records_snapshot": 1152921504606846976, "batches_snapshot": null}"""


def collect() -> dict[str, Any]:
    """Return each job's digest, and rows that are read back to equal ones."""
    plans = re.findall(r"^(\w+) (.*(?:\n .*)*)", PLANS, re.MULTILINE)
    more = json.loads(PLAN) | {"made_at": NOW, "expires_at": NOW + timedelta(days=1)}
    sealed = {job: Plan(**more, **decisive_of(job, text)).sealed() for job, text in plans}
    plan = sealed["clean_log"]
    point = UndoPoint(
        **json.loads(POINT),
        at=NOW,
        states=parse_states(partitions()),
        truncated=("kafka_a",),
        undone={0: ["p0"]},
    )
    cells, noted = PLANS_TABLE.to_cells(plan), UNDO_POINTS.to_cells(point)
    assert PLANS_TABLE.to_cells(PLANS_TABLE.to_row(cells)) == cells
    assert UNDO_POINTS.to_cells(UNDO_POINTS.to_row(noted)) == noted
    made = new_plan_id("clean_log", NOW.astimezone(UTC))
    return {
        "digests": {job: sealed_plan.digest for job, sealed_plan in sealed.items()},
        "row of plans": {name: shown(value) for name, value in cells.items()},
        "row of undo_points": {name: shown(value) for name, value in noted.items()},
        "plan id": re.sub(r"-[0-9a-f]{8}$", "-<8 hexadecimal digits>", made),
    }


def decisive_of(job: str, text: str) -> dict[str, Any]:
    parameters, end = json.JSONDecoder().raw_decode(text)
    bounds = json.loads(text[end:])
    removes = {0: offset_range(3, 20) | offset_range(2**40, 2**40 + 2), 1: offset_range(0, 0)}
    of_partitions = {"bounds": {0: bounds} if bounds else {}, "removes": removes if bounds else {}}
    return {"job": job, "topic": "log.ä", "now": NOW, "parameters": parameters, **of_partitions}


def shown(value: Any) -> Any:
    if isinstance(value, list):
        return [[p, base64.b64encode(offsets).decode()] for p, offsets in value]
    return value.isoformat() if isinstance(value, datetime) else value
