"""Makes one table of a cell: `topic`, ours, or one that somebody else might have made.

`plain` is made by hand, `adopted` as Spark's Kafka source would fill it. Cell and table are the
arguments; the home, with the log, is EBBTIDE_HOME. All tables hold the same records; `topic` and
`plain` in one data file a segment.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.clean_log.data.cells import NOW_MS, SEGMENT_BYTES, Cell
from benchmarks.clean_log.data.log_files import TOPIC
from benchmarks.clean_log.data.prepared import ADOPTED_TABLE, PLAIN_TABLE
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, load
from ebbtide.jobs.adopt_table import execute_adoption, plan_adoption
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.jobs.mark_tombstones import execute_mark, plan_mark
from ebbtide.jobs.quarantine import RunOf
from ebbtide.layouts.layout import Choices
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import to_properties

NAME = TopicName("bench", TOPIC)
PLAIN = "lake.plain.records"
PLAIN_COLUMNS = "`partition`, offset, segment, timestamp, key, value, headers"
SETTINGS = {
    "kafka.cleanup.policy": "compact",
    "kafka.segment.bytes": str(SEGMENT_BYTES),
    # As a log that is cleaned each night, however little came.
    "kafka.min.cleanable.dirty.ratio": "0.001",
}
ADOPTED = TopicName("raw", TOPIC)
ADOPTED_SETTINGS = {
    "kafka.cleanup.policy": "compact",
    "kafka.min.cleanable.dirty.ratio": "0.001",
    "kafka.segment.ms": "1",  # so that a look closes the segment
}
CLEAN_COMMITS, DIRTY_COMMITS = 4, 8
HOUR_MS = 3_600_000


def make_topic(spark: SparkSession, cell: Cell, log: Path) -> None:
    """Ingest and mark the log; its clean part counts as cleaned a day ago."""
    now = datetime.fromtimestamp((NOW_MS - HOUR_MS) / 1000, UTC)
    ingest_segments(spark, NAME, Source.of_uri(str(log), now, settings=SETTINGS))
    execute_mark(plan_mark(load(spark, NAME)), RunOf("benchmark", now))

    def cleaned(topic: Topic) -> PropertyChanges:
        end = cell.clean_records
        state = topic.partitions[0].moved(
            first_dirty_offset=end,
            cleaned_at_ms=NOW_MS - 24 * HOUR_MS,
            cleaned_end_offset=end,
            next_clean_ms=0,
        )
        return to_properties(0, state)

    compare_and_set(load(spark, NAME), Step.ROUND_STATE, cleaned)


def make_plain(spark: SparkSession) -> None:
    """The topic's records as a table that somebody made by hand: no marks, no batches, no state."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.plain")
    spark.sql(
        f"CREATE TABLE {PLAIN} USING iceberg PARTITIONED BY (`partition`, segment) "
        "TBLPROPERTIES ('format-version' = '3') "
        f"AS SELECT {PLAIN_COLUMNS} FROM {NAME.records_table}"
    )


def make_adopted(spark: SparkSession, cell: Cell) -> None:
    """The records as Spark's Kafka source has them, adopted, their clean part cleaned a day ago.

    What is dirty has come since, in several commits.
    """
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.raw")
    spark.sql(
        f"CREATE TABLE {ADOPTED.records_table} (key binary, value binary, topic string, "
        "`partition` int, offset bigint, timestamp timestamp, timestampType int) USING iceberg "
        "TBLPROPERTIES ('format-version' = '2', 'write.distribution-mode' = 'none')"
    )
    ends = [cell.clean_records * commits // CLEAN_COMMITS for commits in range(CLEAN_COMMITS + 1)]
    for first, end in pairwise(ends):
        _append(spark, first, end)
    before = NOW_MS - 24 * HOUR_MS
    adoption = plan_adoption(spark, ADOPTED, Choices(), ADOPTED_SETTINGS, before - 1)
    execute_adoption(adoption)
    execute_clean(plan_clean(load(spark, ADOPTED), before))
    step = cell.dirty_records // DIRTY_COMMITS + 1
    for first in range(cell.clean_records, cell.records, step):
        _append(spark, first, min(first + step, cell.records))


def _append(spark: SparkSession, first: int, end: int) -> None:
    spark.sql(
        f"INSERT INTO {ADOPTED.records_table} SELECT key, value, '{TOPIC}', `partition`, offset, "
        f"timestamp, 0 FROM {NAME.records_table} WHERE offset >= {first} AND offset < {end}"
    )


def main() -> None:
    cell, table = Cell.parse(sys.argv[1]), sys.argv[2]
    spark = SparkSession.builder.appName(f"prepare {cell.name}").getOrCreate()
    if table == PLAIN_TABLE:
        make_plain(spark)
    elif table == ADOPTED_TABLE:
        make_adopted(spark, cell)
    else:
        make_topic(spark, cell, Path(os.environ["EBBTIDE_HOME"], "log"))


if __name__ == "__main__":
    main()
