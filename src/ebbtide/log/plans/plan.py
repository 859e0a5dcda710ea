"""A kept plan: the row of `lake.ebbtide.plans` that a person approves and a job then executes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ebbtide.log.own_tables import JSON, Cell, OwnTable
from ebbtide.log.plans.offsets import Removes, from_bytes, to_bytes

# What a job asked for, by partition; each job has bounds of its own.
Bounds = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job would remove from a topic at `now`, and who asked; times are UTC.

    `parameters` are enough to make the plan anew. `bounds` hold for each partition what is fixed,
    such as the log end offset. `snapshots` has the tables that it was made on, each by its id and
    snapshot. `removes` is None where a reader leaves it out.
    """

    plan_id: str
    job: str
    topic: str
    run_id: str
    dag: str | None
    requested_by: str | None
    made_at: datetime
    expires_at: datetime
    now: datetime
    parameters: Mapping[str, Any]
    bounds: Bounds
    snapshots: Mapping[str, Mapping[str, Any]]
    removes: Removes | None
    summary: Mapping[str, Any]
    text: str
    digest: str = ""

    @property
    def own_digest(self) -> str:
        """The SHA-256, in hex, of all that decides what an execution may remove.

        It is `digest` unless somebody edited the plan's row.
        """
        assert self.removes is not None
        bounds = {str(partition): dict(of) for partition, of in self.bounds.items()}
        now = self.now.astimezone(UTC).isoformat()
        text = json.dumps([self.job, self.topic, now, self.parameters, bounds], sort_keys=True)
        digest = hashlib.sha256(text.encode())
        for partition, offsets in sorted(self.removes.items()):
            if offsets:
                serialized = to_bytes(offsets)
                digest.update(f"\n{partition} {len(serialized)}\n".encode())
                digest.update(serialized)
        return digest.hexdigest()

    def sealed(self) -> Plan:
        """Return the plan with the digest of what it says."""
        return replace(self, digest=self.own_digest)


def _bounds(text: str) -> Bounds:
    return {int(partition): bounds for partition, bounds in json.loads(text).items()}


def _cells_of_offsets(removes: Removes) -> list[tuple[int, bytes]]:
    return [(partition, to_bytes(offsets)) for partition, offsets in sorted(removes.items())]


def _offsets(cells: Iterable[tuple[int, bytes]]) -> Removes:
    return {partition: from_bytes(offsets) for partition, offsets in cells}


PLANS = OwnTable(
    name="plans",
    columns="""
    plan_id STRING, job STRING, topic STRING, run_id STRING, dag STRING,
    requested_by STRING, made_at TIMESTAMP, expires_at TIMESTAMP, `now` TIMESTAMP,
    parameters STRING COMMENT 'JSON: what the job was asked',
    bounds STRING COMMENT 'JSON: per partition what the plan fixes, such as the log end offset',
    snapshots STRING COMMENT 'JSON: the tables it was made on, each by its id and snapshot',
    removes MAP<INT, BINARY>
        COMMENT 'per partition the offsets that would leave, a 64-bit Roaring bitmap',
    summary STRING COMMENT 'JSON: per partition and rule what goes, what stays and why',
    text STRING COMMENT 'the plan as the job prints it',
    digest STRING COMMENT 'SHA-256 of all that decides what an execution may remove'
    """,
    day="made_at",
    build=Plan,
    cells={
        **dict.fromkeys(("parameters", "snapshots", "summary"), JSON),
        "bounds": Cell(json.dumps, _bounds),
        "removes": Cell(_cells_of_offsets, _offsets),
    },
)


def new_plan_id(job: str, made_at: datetime) -> str:
    """Return a new id: the job, the day and eight hexadecimal digits."""
    return f"{job}-{made_at:%Y%m%d}-{uuid.uuid4().hex[:8]}"
