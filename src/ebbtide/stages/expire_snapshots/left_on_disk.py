"""Find what keeps files with deleted rows of a topic on the disk, from metadata alone."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.files.manifests import snapshots_with_old_files
from ebbtide.iceberg.topics import Topic
from ebbtide.log.state.left_on_disk import LeftOnDisk
from ebbtide.spark.jvm import iceberg_class
from ebbtide.stages.expire_snapshots.rewriting import find_deletions


class SnapshotsAndRefs(NamedTuple):
    """The time in ms of each of a table's snapshots, by id, and its tags and branches."""

    made_ms: dict[int, int]
    refs: dict[str, dict[str, Any]]

    @property
    def unnamed(self) -> dict[int, int]:
        """The snapshots that neither a branch nor a tag names."""
        named = {ref["snapshot-id"] for ref in self.refs.values()}
        return {
            snapshot: at_ms for snapshot, at_ms in self.made_ms.items() if snapshot not in named
        }


def snapshots_and_refs(spark: SparkSession, table: Any) -> SnapshotsAndRefs:
    """Read the snapshots and refs of Iceberg's table object, in one call."""
    parser = iceberg_class(spark, "TableMetadataParser")
    metadata = json.loads(parser.toJson(table.operations().current()))
    made_ms = {each["snapshot-id"]: each["timestamp-ms"] for each in metadata["snapshots"]}
    return SnapshotsAndRefs(made_ms, metadata.get("refs", {}))


def find_left_on_disk(topic: Topic) -> LeftOnDisk:
    """Find what still keeps files with deleted rows of the records table on the disk."""
    spark, deletions = topic.spark, find_deletions(topic)
    table = java_table(spark, topic.name.records_table)
    snapshots, holding = snapshots_and_refs(spark, table), snapshots_with_old_files(spark, table)
    return LeftOnDisk(
        rows_below_share=deletions.rows_below_share,
        rows_in_active_segments=deletions.rows_in_active_segments,
        rows_due=deletions.rows_due,
        oldest_snapshot_ms=min(snapshots.unnamed.values(), default=None),
        old_files_ms=max((snapshots.made_ms[snapshot] for snapshot in holding), default=None),
        old_files_refs={
            name: ref["type"]
            for name, ref in sorted(snapshots.refs.items())
            if ref["snapshot-id"] in holding
        },
    )
