"""A kept plan: the row of `lake.ebbtide.plans` that a person approves and a job then executes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ebbtide.log.plans.offsets import Removes, from_bytes, to_bytes

JSON_COLUMNS = ("parameters", "bounds", "snapshots", "summary")
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
    digest: str

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Plan:
        """Return the plan of a row of the table, as pyarrow gives it."""
        values = {**row, **{name: json.loads(row[name]) for name in JSON_COLUMNS}}
        values["bounds"] = {int(p): of for p, of in values["bounds"].items()}
        removes = row.get("removes")
        values["removes"] = (
            None if removes is None else {p: from_bytes(of) for p, of in dict(removes).items()}
        )
        return cls(**values)

    def to_row(self) -> dict[str, Any]:
        """Return the plan as a row of the table."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        row |= {name: json.dumps(row[name]) for name in JSON_COLUMNS}
        row["removes"] = [(p, to_bytes(of)) for p, of in sorted((self.removes or {}).items())]
        return row

    @property
    def own_digest(self) -> str:
        """The digest of what the plan says, which is `digest` unless somebody edited its row."""
        assert self.removes is not None
        return digest_of(
            job=self.job,
            topic=self.topic,
            now=self.now,
            parameters=self.parameters,
            bounds=self.bounds,
            removes=self.removes,
        )


def new_plan_id(job: str, made_at: datetime) -> str:
    """Return a new id: the job, the day and eight hexadecimal digits."""
    return f"{job}-{made_at:%Y%m%d}-{uuid.uuid4().hex[:8]}"


def digest_of(
    *,
    job: str,
    topic: str,
    now: datetime,
    parameters: Mapping[str, Any],
    bounds: Bounds,
    removes: Removes,
) -> str:
    """Return the SHA-256, in hex, of all that decides what an execution may remove."""
    of_partitions = {str(p): dict(of) for p, of in bounds.items()}
    text = json.dumps(
        [job, topic, now.astimezone(UTC).isoformat(), parameters, of_partitions], sort_keys=True
    )
    digest = hashlib.sha256(text.encode())
    for partition, offsets in sorted(removes.items()):
        if offsets:
            serialized = to_bytes(offsets)
            digest.update(f"\n{partition} {len(serialized)}\n".encode())
            digest.update(serialized)
    return digest.hexdigest()
