"""The state of a topic's partitions once an undo has given back their rows."""

from __future__ import annotations

from collections.abc import Collection

from pyroaring import BitMap64
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.planned.planned_undo import Undo, open_undo
from ebbtide.iceberg.topics import PropertyChanges, Topic
from ebbtide.log.state.topic_state import NEVER, UNDO, UNDONE, to_properties
from ebbtide.log.undo.points import PointsOfPartitions
from ebbtide.log.undo.undone_state import undone_state
from ebbtide.spark.number_sets import number_sets
from ebbtide.stages.mark_tombstones.quarantine import UNMARKED_NULL_VALUE
from ebbtide.stages.undo_run.returning_rows import Places


def quarantined(topic: Topic, partitions: Collection[int]) -> dict[int, BitMap64]:
    """Return the offsets of each partition's records that went to the quarantine."""
    spark, name = topic.spark, topic.name
    if not table_exists(spark, name.quarantine_table):
        return {}
    table_id = open_table(spark, name.records_table).metadata.uuid
    was_here = (F.col("table_id") == table_id) & (F.col("reason") == UNMARKED_NULL_VALUE)
    rows = spark.table(name.quarantine_table).where(was_here)
    sets = number_sets(
        rows.where(F.col("partition").isin(list(partitions))), ["partition"], "offset"
    )
    return {partition: offsets for (partition,), offsets in sets.items()}


def finished(undo: Undo, points: PointsOfPartitions, current: Topic) -> PropertyChanges | None:
    """Return the changes that end the undo; None where it is no longer in flight."""
    in_flight = open_undo(current.properties)
    if in_flight is None or in_flight.id != undo.id:
        return None
    places, held = Places.of(current, points), quarantined(current, points)
    changes: dict[str, str | None] = {UNDO: None, UNDONE: undo.id}
    for partition, of_partition in points.items():
        offsets = held.get(partition)
        after = undone_state(
            [point.states[partition] for point in of_partition],
            current.partitions[partition],
            filled_segments=places.filled(partition),
            quarantined_end=offsets.max() + 1 if offsets else NEVER,
        )
        changes |= to_properties(partition, after)
    return changes
