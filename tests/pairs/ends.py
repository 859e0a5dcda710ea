"""How a topic ends: what Kafka's rules and people's requests decide, and no run's id or time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import ForeignChangeError, NotCoveredError
from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.topics import BATCHES, Topic, find, load
from ebbtide.jobs.ingest_segments.append import TOPIC_ID
from ebbtide.jobs.unfinished import in_flight
from ebbtide.ledger.holds import newest_events
from ebbtide.runner.holds import read_holds
from ebbtide.settings.names import TopicName
from ebbtide.specs.job_spec import Work
from ebbtide.state.topic_state import settings_of, told_rows
from tests.pairs.cases import COPIES, AdoptedTopics

RECORD = ("partition", "offset", "key", "value", "is_tombstone", "segment")
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
    "segment",
)
# Work that an adopted topic may have in flight.
OF_ADOPTED = (Work.ROUND, Work.UNDO)
# Iceberg's, and the broker's id of the topic.
_OF_THE_TABLE = ("write.", "commit.", "format-", "history.", "owner", TOPIC_ID)

End = dict[str, Any]


def end_of(spark: SparkSession, name: TopicName) -> End:
    """The end of a topic and of its replica."""
    replica = name._replace(cluster=COPIES)
    ends = {"topic": _end(spark, name)}
    if table_exists(spark, replica.records_table):
        ends["replica"] = _end(spark, replica)
    return ends


def log_of(spark: SparkSession, name: TopicName) -> End:
    """The records, batches and offsets of a topic, as its state tells them, and nothing changed."""
    states = load(spark, name).partitions
    ends = {partition: state.log_end_offset for partition, state in states.items()}
    records, batches = (
        [row for row in _rows(spark, table, columns) if row[1] < ends[row[0]]]
        for table, columns in ((name.records_table, RECORD), (name.batches_table, BATCH))
    )
    starts = {partition: state.log_start_offset for partition, state in states.items()}
    return {
        "records": [row[:5] for row in records],
        "batches": [row[:-1] for row in batches if row[2] >= starts[row[0]]],
        "offsets": {partition: (starts[partition], ends[partition]) for partition in states},
    }


def _end(spark: SparkSession, name: TopicName) -> End:
    is_adopted = name.cluster == AdoptedTopics.kind
    records = _rows(spark, name.records_table, (*RECORD[: 4 if is_adopted else 6],))
    batches = [] if is_adopted else _rows(spark, name.batches_table, BATCH)
    end: End = {
        "records": [row[:5] for row in records],
        "held": _rows(spark, name.held_table, RECORD[: 3 if is_adopted else 4]),
        "quarantine": _rows(spark, name.quarantine_table, RECORD[:5]),
        "holds": len(newest_events(read_holds(spark, name))),
    }
    try:
        topic = find(spark, name)
        if topic is None:
            return end
        if not is_adopted:
            count_own(topic)
        topic = load(spark, name)
    except ForeignChangeError:
        return end | {"blocked": True}
    except NotCoveredError:  # its owner's alone again
        return end
    starts = {p: state.log_start_offset for p, state in topic.partitions.items()}
    end |= {
        # Files go as wholes, so headers of batches below the log start may stay for a while.
        "batches": [row[:-1] for row in batches if row[2] >= starts[row[0]]],
        "offsets": {p: (starts[p], state.log_end_offset) for p, state in topic.partitions.items()},
        "settings": _settings(topic),
        "in flight": sorted(in_flight(topic, OF_ADOPTED if is_adopted else tuple(Work))),
    }
    if not is_adopted:
        end["counted"] = (
            _is_counted(topic, "records", records),
            _is_counted(topic, BATCHES, batches),
        )
    return end


def _is_counted(topic: Topic, what: str, rows: list[tuple[Any, ...]]) -> bool:
    """Whether the state counts the rows that the table has."""
    return told_rows(topic.properties, what) == Counter((row[0], row[-1]) for row in rows)


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
