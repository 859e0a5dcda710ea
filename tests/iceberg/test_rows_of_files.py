"""Rows of a data file by their positions: from which row groups, and how much of one at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.iceberg import data_files
from ebbtide.iceberg import data_files as field_ids
from ebbtide.iceberg.data_files import DataFile, SegmentFiles, TableColumn, field_of, read_rows
from ebbtide.stores.store import Store

OFFSET, VALUE = TableColumn("offset", 1), TableColumn("value", 2)
ROWS, IN_GROUP, IN_BATCH = 100, 40, 16  # the last group, and the last batch of each, are short


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SegmentFiles:
    """A file of three row groups, in which a column has an older name."""
    monkeypatch.setattr(field_ids, "_BATCH_ROWS", IN_BATCH)
    old_name = VALUE._replace(name="payload")
    schema = pa.schema([field_of(OFFSET, pa.int64()), field_of(old_name, pa.string())])
    table = pa.table([pa.array(range(ROWS)), [f"v{n}" for n in range(ROWS)]], schema=schema)
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, row_group_size=IN_GROUP)
    file = DataFile(str(path), ROWS, path.stat().st_size, None)
    return SegmentFiles(0, 0, (file,), (OFFSET, VALUE), Store())


@pytest.mark.parametrize(
    ("positions", "groups"),
    [
        ([0], [0]),
        ([15, 16, 17, 39], [0]),
        ([39, 40, 99], [0, 1, 2]),
        ([80, 95, 96, 97], [2]),
        (range(ROWS), [0, 1, 2]),
    ],
)
def test_rows_come_in_order_from_their_row_groups_alone(
    unit: SegmentFiles,
    monkeypatch: pytest.MonkeyPatch,
    positions: list[int],
    groups: list[int],
) -> None:
    read, sizes = [], []
    whole = field_ids.read_in_batches

    def watched(file: object, columns: object, group: int) -> object:
        read.append(group)
        for rows in whole(file, columns, group):  # type: ignore[arg-type]
            sizes.append(rows.num_rows)
            yield rows

    monkeypatch.setattr(data_files, "read_in_batches", watched)
    (file,) = unit.files
    rows = read_rows(unit, file, np.array(positions, np.int64))
    assert rows.column_names == ["offset", "value"]
    assert rows["offset"].to_pylist() == list(positions)
    assert rows["value"].to_pylist() == [f"v{n}" for n in positions]
    assert read == groups
    assert max(sizes) == IN_BATCH
