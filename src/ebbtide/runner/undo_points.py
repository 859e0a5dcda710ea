"""Undo points: the snapshots and state of a topic before a removal, stored to undo it."""

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
    """Return a new, unique id."""
    return uuid.uuid4().hex


def note_before(topic: Topic, touched: Touched) -> None:
    """Store an undo point of the topic before the job changes it, unless the plan changes nothing.

    An attempt that resumes a killed one adds a second point; a run's first point counts.
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
    """Store a point, later than the topic's other points even if the machine clock went back."""
    later = read_points(spark, TopicName.parse(point.topic), point.at)
    point = replace(point, at=following((known.at for known in later), point.at))
    append_own(spark, UNDO_POINTS, [point], step)


def read_points(
    spark: SparkSession, name: TopicName, since: datetime | None = None
) -> list[UndoPoint]:
    """Return a topic's points in no order; with `since`, only those stored at it or later."""
    return read_own(spark, UNDO_POINTS, "topic", [str(name)], since)
