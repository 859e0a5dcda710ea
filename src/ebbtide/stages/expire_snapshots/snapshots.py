"""A table's snapshots, tags and branches, from its metadata alone."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.spark.jvm import iceberg_class


class SnapshotsAndRefs(NamedTuple):
    """The time in ms of each of a table's snapshots, by id, and its tags and branches.

    `parents` has the snapshot that each was made on, None for a first one.
    """

    made_ms: dict[int, int]
    refs: dict[str, dict[str, Any]]
    parents: dict[int, int | None]

    @property
    def unnamed(self) -> dict[int, int]:
        """The snapshots that neither a branch nor a tag names."""
        named = {ref["snapshot-id"] for ref in self.refs.values()}
        return {
            snapshot: at_ms for snapshot, at_ms in self.made_ms.items() if snapshot not in named
        }

    def current_since(self, since_ms: int) -> set[int]:
        """Return the snapshots that were current at that time or later."""
        return {
            parent
            for snapshot, parent in self.parents.items()
            if parent is not None and self.made_ms[snapshot] >= since_ms
        }


def snapshots_and_refs(spark: SparkSession, table: Any) -> SnapshotsAndRefs:
    """Read the snapshots and refs of Iceberg's table object, in one call."""
    parser = iceberg_class(spark, "TableMetadataParser")
    metadata = json.loads(parser.toJson(table.operations().current()))
    made_ms = {each["snapshot-id"]: each["timestamp-ms"] for each in metadata["snapshots"]}
    parents = {
        each["snapshot-id"]: each.get("parent-snapshot-id") for each in metadata["snapshots"]
    }
    return SnapshotsAndRefs(made_ms, metadata.get("refs", {}), parents)
