"""Find what keeps files with deleted rows of a topic on the disk, from metadata alone."""

from __future__ import annotations

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.files.manifests import snapshots_with_old_files
from ebbtide.iceberg.topics import Topic
from ebbtide.log.state.left_on_disk import LeftOnDisk
from ebbtide.stages.expire_snapshots.needed_for_undo import needed_until_ms
from ebbtide.stages.expire_snapshots.rewriting import find_deletions
from ebbtide.stages.expire_snapshots.snapshots import snapshots_and_refs


def find_left_on_disk(topic: Topic) -> LeftOnDisk:
    """Find what still keeps files with deleted rows of the records table on the disk."""
    spark, deletions = topic.spark, find_deletions(topic)
    table = java_table(spark, topic.name.records_table)
    snapshots, holding = snapshots_and_refs(spark, table), snapshots_with_old_files(spark, table)
    until_ms = needed_until_ms(topic, "records", table, holding)
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
        undo_until_ms=max(until_ms.values(), default=None),
    )
