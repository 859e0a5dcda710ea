"""Find what keeps files with deleted rows of a topic on the disk, from metadata alone."""

from __future__ import annotations

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.files.manifests import snapshots_with_old_files
from ebbtide.iceberg.topics import Topic
from ebbtide.log.state.left_on_disk import LeftOnDisk
from ebbtide.stages.expire_snapshots.needed_for_undo import needed_until_ms
from ebbtide.stages.expire_snapshots.rewriting import find_deletions


def find_left_on_disk(topic: Topic) -> LeftOnDisk:
    """Find what still keeps files with deleted rows of the records table on the disk."""
    deletions, table = find_deletions(topic), open_table(topic.spark, topic.name.records_table)
    metadata, holding = table.metadata, snapshots_with_old_files(table)
    until_ms = needed_until_ms(topic, "records", metadata, holding)
    return LeftOnDisk(
        rows_below_share=deletions.rows_below_share,
        rows_in_active_segments=deletions.rows_in_active_segments,
        rows_due=deletions.rows_due,
        oldest_snapshot_ms=min(metadata.unnamed.values(), default=None),
        old_files_ms=max((metadata.snapshots[of].at_ms for of in holding), default=None),
        old_files_refs={
            name: ref["type"]
            for name, ref in sorted(metadata.refs.items())
            if ref["snapshot-id"] in holding
        },
        undo_until_ms=max(until_ms.values(), default=None),
    )
