"""Which files a table's segments have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ebbtide.iceberg.files.data_files import MAX_OFFSET
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.log.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ingest

SEGMENTS = [[Message("a", "1"), Message("b", "1")] for _ in range(3)]
ALL = [(p, s) for p in range(3) for s in (0, 2, 4)]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        pytest.param(dict.fromkeys(range(3), MAX_OFFSET), ALL, id="all"),
        pytest.param({0: 3, 2: 5}, [(0, 0), (0, 2), (2, 0), (2, 2), (2, 4)], id="unequal ends"),
        pytest.param({1: 1}, [(1, 0)], id="one segment"),
        pytest.param({1: 0}, [], id="none of a partition"),
        pytest.param({}, [], id="no partition"),
    ],
)
def test_the_segments_below_each_partitions_end(
    sandbox: LakeSandbox,
    cluster: str,
    tmp_path: Path,
    ends: Mapping[int, int],
    expected: list[tuple[int, int]],
) -> None:
    name = TopicName(cluster, "t")
    for partition in range(3):
        write_log(tmp_path, "t", SEGMENTS, {}, partition=partition)
    ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    snapshot = current_snapshot(sandbox.session, name.records_table)
    assert snapshot is not None
    units = plan_segments(sandbox.session, name.records_table, snapshot, ends)
    assert [(unit.partition, unit.segment) for unit in units] == expected


def test_only_files_that_may_hold_an_offset_from_a_start_on(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    write_log(tmp_path, "t", SEGMENTS, {})
    ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    snapshot = current_snapshot(sandbox.session, name.records_table)
    assert snapshot is not None
    units = plan_segments(
        sandbox.session, name.records_table, snapshot, {0: MAX_OFFSET}, starts={0: 3}
    )
    assert [unit.segment for unit in units] == [2, 4]


def test_the_largest_value_of_a_column_is_told_of_each_file(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    write_log(tmp_path, "t", SEGMENTS, {})
    ingest(spark, str(name), tmp_path, FIRST_MS)
    snapshot = current_snapshot(spark, name.records_table)
    assert snapshot is not None
    ends = {0: MAX_OFFSET}
    told = plan_segments(spark, name.records_table, snapshot, ends, bound="offset")
    assert [file.last for unit in told for file in unit.files] == [1, 3, 5]
    untold = plan_segments(spark, name.records_table, snapshot, ends)
    assert {file.last for unit in untold for file in unit.files} == {None}
