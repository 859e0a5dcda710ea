"""Work out the batches of a slice from its records, a segment a task."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.columns.live_records import to_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.log.live_offsets import Slice
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records import arrays
from ebbtide.records.arrays import Bools
from ebbtide.records.batch import HEADERS_TYPE
from ebbtide.runs.application import to_ms
from ebbtide.spark.tasks import map_segments

_TIME = pa.timestamp("us", tz="UTC")
_READ = pa.schema(
    [
        ("partition", pa.int32()),
        ("segment", pa.int64()),
        ("offset", pa.int64()),
        ("batch", pa.int64()),
        ("timestamp", _TIME),
        ("append_time", _TIME),
        ("size_bytes", pa.int32()),
    ]
)


def batches_of_slice(topic: Topic, piece: Slice) -> pa.Table:
    """Return what the headers of the slice's batches would say, by partition and offset."""
    spark, table = topic.spark, topic.name.records_table
    snapshot = current_snapshot(spark, table)
    firsts = {partition: offsets.start for partition, offsets in piece.ranges.items()}
    units = []
    if snapshot is not None:
        units = plan_segments(spark, table, snapshot, dict.fromkeys(firsts, MAX_OFFSET), firsts)
    # Records of the producer's clock have the run's as append time; one that is equal by chance
    # is told by the topic's setting.
    is_create_time = topic.config.message_timestamp_type == "CreateTime"
    work = partial(_batches_of_segment, firsts, to_ms(piece.now) if is_create_time else None)
    tables = map_segments(spark, work, units, count_rows(units), "works out batches of")
    headers = pa.concat_tables([_headers(_READ.empty_table(), None), *tables])
    return headers.sort_by([("partition", "ascending"), ("base_offset", "ascending")])


def _batches_of_segment(
    firsts: Mapping[int, int], unstamped_ms: int | None, unit: SegmentFiles
) -> pa.Table:
    """Return the batches of a segment from the slice's first offset on, in a task."""
    read, schema = read_segment(unit, _READ.names).table, _READ
    if read["timestamp"].null_count:
        schema = _READ.append(pa.field("headers", HEADERS_TYPE))  # one may keep a timestamp
        read = read_segment(unit, schema.names).table
    records = read.select(schema.names)
    records = records.filter(pc.greater_equal(records["offset"], firsts[unit.partition]))
    return _headers(records.cast(schema).combine_chunks(), unstamped_ms)


def _headers(records: pa.Table, unstamped_ms: int | None) -> pa.Table:
    """Make the headers; an append time of `unstamped_ms` is not the broker's."""
    append_ms = arrays.to_ms(records["append_time"])
    is_stamped: Bools = append_ms == arrays.to_ms(records["timestamp"])
    if unstamped_ms is not None:
        is_stamped &= append_ms != unstamped_ms
    return to_headers(records, is_stamped)
