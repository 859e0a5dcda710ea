"""Sum up a topic at the end of a job, for its row in `runs`."""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError
from ebbtide.iceberg.catalog import java_table
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
        tables = (
            [name.records_table] if topic.is_adopted else [name.records_table, name.batches_table]
        )
        rows = _rows_of_sums(topic) if topic.is_adopted else told_rows(topic.properties, "records")
        return summarize(
            topic.config,
            topic.partitions,
            rows,
            sum(_file_bytes(spark, table) for table in tables),
            outcome.partitions,
            outcome.topic,
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


def _file_bytes(spark: SparkSession, table: str) -> int:
    """Return the bytes of the files that the table's current snapshot needs."""
    current = java_table(spark, table).currentSnapshot()
    return 0 if current is None else int(current.summary().get(_FILE_BYTES) or 0)
