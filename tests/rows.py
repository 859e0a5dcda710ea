"""Rows of `runs` without a table: of a night that succeeded, unless told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ebbtide.ledger.own_tables import Attempt, Run


def fields_of(job: str, ended: datetime, **given: Any) -> dict[str, Any]:
    """All fields of an attempt."""
    fields: dict[str, Any] = dict.fromkeys(("rows_removed", "files_removed", "bytes_removed"), 0)
    fields |= {"error": None, "error_class": None, "is_transient": False, "status": "succeeded"}
    fields |= {"run_id": "night-1", "dag": "nightly_retention", "topic": "log.a", "job": job}
    fields |= {"task": job, **dict.fromkeys(("started", "ended", "now"), ended)}
    return {**fields, **given}


def attempt(job: str, ended: datetime, **given: Any) -> Attempt:
    return Attempt(**fields_of(job, ended, **given))


def run(job: str, ended: datetime, error: str | None = None, **given: Any) -> Run:
    """A row with a result; one with an error has failed."""
    failed = {"status": "failed", "error": error, "error_class": "SomeError"} if error else {}
    fields = {**failed, "result": {}, "snapshot_ids": (), **given}
    return Run(**fields_of(job, ended, **fields))
