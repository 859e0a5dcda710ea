"""Erasures of keys whose records had not all left the table when it was last looked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ebbtide.lake.live_files import of_a_store
from ebbtide.lake.reader import Lake, chosen
from ebbtide.log.erasures import ERASURES

_KEY = ["topic", "key_sha256", "partition"]


@dataclass(slots=True)
class OpenErasures:
    """How many keys of each topic are being erased; read again when the table has changed."""

    snapshot: tuple[str, int | None] | None = None
    by_topic: Mapping[str, int] = field(default_factory=dict)

    def read_on(self, lake: Lake, since: datetime) -> Mapping[str, int]:
        """Return the numbers by topic, of requests made at `since` or later."""
        with of_a_store(".".join(ERASURES.place)):
            table = lake.own_table(ERASURES)
            if table is None:
                return {}
            snapshot = str(table.metadata.table_uuid), table.metadata.current_snapshot_id
            if snapshot != self.snapshot:
                fields = (*_KEY, "status", "requested_at", "out_of_table_at")
                requested = chosen(ERASURES.day, since, {})
                rows = table.scan(row_filter=requested, selected_fields=fields).to_arrow()
                self.by_topic, self.snapshot = _open(rows), snapshot
        return self.by_topic


def _open(rows: Any) -> Mapping[str, int]:
    """Count the keys that some partition had records of; the newest row of a key counts.

    A run logs its tombstone first and reports then, so that `reported` is the later of the two.
    """
    import pyarrow.compute as pc

    rows = rows.filter(pc.is_valid(rows["partition"]))
    rows = rows.sort_by([("requested_at", "ascending"), ("status", "ascending")])
    rows = rows.append_column("is_open", pc.is_null(rows["out_of_table_at"]))
    newest = rows.group_by(_KEY, use_threads=False).aggregate([("is_open", "last")])
    still_open = newest.filter(newest["is_open_last"]).select(["topic", "key_sha256"])
    keys = still_open.group_by(["topic", "key_sha256"]).aggregate([])
    return Counter(keys["topic"].to_pylist())
