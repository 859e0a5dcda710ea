"""The batches of a live slice, worked out where its records lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.iceberg.topics import load
from ebbtide.jobs.ingest_topic import batches_of_slice
from ebbtide.kafka.live_offsets import Range, Slice
from ebbtide.settings.names import TopicName
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING
from tests.lake_sandbox import LakeSandbox
from tests.tables.contents import contents
from tests.tables.nights import HOUR_MS, at, ingest
from tests.tables.partition_log import T0, batch, write_segments

NOW_MS = T0 + HOUR_MS
TOLD = ("partition", "segment", "base_offset", "last_offset", "attributes", "record_count")
SIZES = ("size_bytes", "base_timestamp_ms", "max_timestamp_ms")


@pytest.mark.parametrize("driver_rows_setting", [None, "0"], ids=["in threads", "in tasks"])
def test_no_record_comes_to_the_driver(
    sandbox: LakeSandbox,
    cluster: str,
    tmp_path: Path,
    driver_rows: list[int],
    driver_rows_setting: str | None,
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    for partition in (0, 1):
        segments = {0: [batch(0, 20), batch(20, 20)], 40: [batch(40, 5), batch(45, 35)]}
        write_segments(tmp_path, segments, partition=partition)
    ingest(spark, str(name), tmp_path, NOW_MS)
    held = [
        {column: row[column] for column in TOLD + SIZES} for row in contents(spark, name).batches
    ]
    topic = load(spark, name)
    driver_rows.clear()
    if driver_rows_setting is not None:
        spark.conf.set(DRIVER_ROWS_SETTING, driver_rows_setting)
    try:
        piece = Slice({0: Range(20, 80), 1: Range(0, 80)}, at(NOW_MS))
        batches = batches_of_slice(topic, piece)
        nothing = batches_of_slice(topic, Slice({0: Range(80, 80)}, at(NOW_MS)))
    finally:
        spark.conf.unset(DRIVER_ROWS_SETTING)
    assert driver_rows == []
    assert batches.select(TOLD + SIZES).to_pylist() == held[1:]
    assert nothing.schema == batches.schema
    assert nothing.num_rows == 0
