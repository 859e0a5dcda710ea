"""Undo points: a topic as it is before a removal, stored so that the removal can be undone."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime

from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step, current_commits
from ebbtide.iceberg.own_tables import append_own, read_own
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.ledger.undo_points import UNDO_POINTS, UndoPoint
from ebbtide.moments import following, machine_clock
from ebbtide.runner.job import Touched
from ebbtide.settings.names import TopicName


def new_point_id() -> str:
    """Return an id that no other point has."""
    return uuid.uuid4().hex


def note_before(topic: Topic, touched: Touched) -> None:
    """Keep the topic as it is before the job at work removes from it; nothing if it will not.

    An attempt that goes on where a killed one stopped adds a point; the first of a run counts.
    """
    commits, spark, name = current_commits(), topic.spark, topic.name
    if not touched.partitions or commits is None or topic.config.undo_retention_ms == 0:
        return
    records = touched.records_snapshot or current_snapshot(spark, name.records_table)
    batches = touched.batches_snapshot
    if batches is None and not topic.is_adopted:
        batches = current_snapshot(spark, name.batches_table)
    append_point(
        spark,
        UndoPoint(
            point_id=new_point_id(),
            run_id=commits.run_id,
            job=commits.job,
            topic=str(name),
            at=machine_clock(),
            records_snapshot=records,
            batches_snapshot=batches,
            states={p: topic.partitions[p] for p in touched.partitions},
            truncated=touched.truncated,
        ),
        Step.UNDO_POINT,
    )


def append_point(spark: SparkSession, point: UndoPoint, step: Step) -> None:
    """Store a point. Their times are in their order, also if a machine's clock goes back."""
    later = read_points(spark, TopicName.parse(point.topic), point.at)
    point = replace(point, at=following((known.at for known in later), point.at))
    append_own(spark, UNDO_POINTS, [point], step)


def read_points(
    spark: SparkSession, name: TopicName, since: datetime | None = None
) -> list[UndoPoint]:
    """Return a topic's points, those noted at `since` or later, in no order."""
    return read_own(spark, UNDO_POINTS, "topic", [str(name)], since)
