"""Free records of an adopted topic that holds keep no more; its snapshots are others' to expire."""

from __future__ import annotations

from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.topics import Topic
from ebbtide.runs.held.keeping import drop_unheld
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.expire_snapshots.stage import expire_own_snapshots

NOTE = "the snapshots of a table that others write are theirs to expire"


def free_held(topic: Topic) -> JobOutcome:
    """Delete kept records that their hold covers no more, and old snapshots of their table."""
    outcome = JobOutcome({p: topic.offsets_of(p) for p in topic.partitions}, topic={"note": NOTE})
    if deleted := drop_unheld(topic):
        outcome.topic["held_rows_deleted"] = deleted
    if table_exists(topic.spark, topic.name.held_table):
        expire_own_snapshots(topic.spark, topic.name.held_table)
    return outcome
