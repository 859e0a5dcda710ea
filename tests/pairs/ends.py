"""How a topic ends: what Kafka's rules and people's requests decide, and no run's id or time."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import ForeignChangeError
from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.topics import Topic, find, load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.row_counts import told_rows
from ebbtide.log.state.topic_state import settings_of
from ebbtide.runs.holds_table import read_holds
from ebbtide.stages.unfinished import in_flight
from tests.pairs.cases import COPIES

RECORD = ("partition", "offset", "key", "value", "is_tombstone")
BATCH = (
    "partition",
    "base_offset",
    "last_offset",
    "attributes",
    "base_timestamp_ms",
    "max_timestamp_ms",
    "record_count",
    "size_bytes",
    "control_type",
)
# Iceberg's, and what differs from one topic to the next by its name.
_OF_THE_TABLE = ("write.", "commit.", "format-", "history.", "owner", "current-", "default-")

End = dict[str, Any]


def end_of(spark: SparkSession, name: TopicName) -> End:
    """The end of a topic and of its replica."""
    replica = name._replace(cluster=COPIES)
    ends = {"topic": _end(spark, name)}
    if table_exists(spark, replica.records_table):
        ends["replica"] = _end(spark, replica)
    return ends


def _end(spark: SparkSession, name: TopicName) -> End:
    records = _rows(spark, name.records_table, (*RECORD, "segment"))
    batches = _rows(spark, name.batches_table, (*BATCH, "segment"))
    end: End = {
        "records": [row[:-1] for row in records],
        "batches": [row[:-1] for row in batches],
        "held": _rows(spark, name.held_table, RECORD[:-1]),
        "quarantine": _rows(spark, name.quarantine_table, RECORD),
        "holds": len(read_holds(spark, name)) if _has_holds(spark) else 0,
    }
    try:
        topic = find(spark, name)
        if topic is None:
            return end
        count_own(topic)
        topic = load(spark, name)
    except ForeignChangeError:
        return end | {"blocked": True}
    end |= {
        "offsets": {
            p: (state.log_start_offset, state.log_end_offset)
            for p, state in topic.partitions.items()
        },
        "settings": _settings(topic),
        "in flight": sorted(in_flight(topic)),
    }
    for what, rows in (("records", records), ("batches", batches)):
        _check_counted(topic, what, rows)
    return end


def _has_holds(spark: SparkSession) -> bool:
    from ebbtide.iceberg.schema import holds_table
    from ebbtide.log.settings.names import CATALOG

    return table_exists(spark, holds_table(CATALOG))


def _check_counted(topic: Topic, what: str, rows: list[tuple[Any, ...]]) -> None:
    """Raise AssertionError if the state counts other rows than the table has."""
    counts: dict[tuple[int, int], int] = {}
    for row in rows:
        counts[row[0], row[-1]] = counts.get((row[0], row[-1]), 0) + 1
    assert told_rows(topic.properties, what) == counts, (topic.name, what)


def _settings(topic: Topic) -> dict[str, str]:
    return {
        name: value.replace(topic.name.topic, "TOPIC")
        for name, value in settings_of(topic.properties).items()
        if not name.startswith(_OF_THE_TABLE)
    }


def _rows(spark: SparkSession, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    if not table_exists(spark, table):
        return []
    rows = spark.table(table).select(*columns).toArrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)
