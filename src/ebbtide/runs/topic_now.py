"""Sum up a topic at the end of a job, for its row in `runs`."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.files.manifests import current_files
from ebbtide.iceberg.topics import Topic, exists, load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.row_counts import RowsBySegment, told_rows
from ebbtide.log.state.topic_summary import TopicSummary, summarize
from ebbtide.runs.runs_table import JobOutcome

log = logging.getLogger(__name__)

_FILE_BYTES = "total-files-size"  # of a snapshot's summary, by Iceberg's table spec


def summary_of(spark: SparkSession, name: TopicName, outcome: JobOutcome) -> TopicSummary | None:
    """Return the topic's summary; None where it has no tables or they cannot be read."""
    try:
        if not exists(spark, name):
            return None
        topic = load(spark, name)
        if topic.is_adopted:
            rows, file_bytes, oldest_ms = _rows_of_sums(topic), _adopted_bytes(topic), None
        else:
            rows = told_rows(topic.properties, "records")
            tables = (name.records_table, name.batches_table)
            file_bytes = sum(_file_bytes(spark, table) for table in tables)
            oldest_ms = _oldest_event_ms(spark, name, outcome.snapshot_ids)
        return summarize(
            topic.config,
            topic.partitions,
            rows,
            file_bytes,
            outcome.partitions,
            outcome.topic,
            oldest_ms,
        )
    except EbbtideError:  # why the topic cannot be read is what the job has failed with
        return None
    except Exception as error:  # the row is worth more than its summary
        log.warning("no summary of the topic: %s", error)
        return None


def _rows_of_sums(topic: Topic) -> RowsBySegment:
    """Return the rows of each segment of an adopted topic, as its state has them."""
    return {
        (partition, segment.base_offset): of.record_count
        for partition, state in topic.partitions.items()
        for segment, of in zip(state.segments, state.sums, strict=True)
    }


def _adopted_bytes(topic: Topic) -> int:
    """Return the bytes of an adopted topic's files; of its share where the table holds several."""
    if topic.name.in_table is None:
        return _file_bytes(topic.spark, topic.name.records_table)
    return sum(of.size_bytes for state in topic.partitions.values() for of in state.sums)


def _file_bytes(spark: SparkSession, table: str) -> int:
    """Return the bytes of the files that the table's current snapshot needs."""
    current = open_table(spark, table).current
    return 0 if current is None else int(current.summary.get(_FILE_BYTES) or 0)


def _oldest_event_ms(spark: SparkSession, name: TopicName, committed: Iterable[int]) -> int | None:
    """Return the time that no record of the table is older than, by its files' statistics.

    None where the job has not committed to the records table: an earlier one has said it.
    """
    table = open_table(spark, name.records_table)
    if table.metadata.snapshots.keys().isdisjoint(committed):
        return None
    files = current_files(table, has_bounds=True)
    deleted = {file.referenced: file.rows for file in files if not file.is_data}
    (event_time,) = (of.field_id for of in table.metadata.columns if of.name == "event_time")
    times = [
        file.bounds.lower[event_time] // 1000
        for file in files
        if file.is_data
        and file.rows > deleted.get(file.path, 0)
        and file.bounds is not None
        and event_time in file.bounds.lower
    ]
    return min(times, default=None)
