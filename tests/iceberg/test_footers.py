"""Footers of Parquet files: a job looks at many, and none of them stays in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.iceberg.data_files import DataFile, SegmentFiles, TableColumn, column_bytes, field_of
from ebbtide.iceberg.file_changes import Target, write_new_file
from ebbtide.iceberg.file_commits import Place, read_description
from ebbtide.stores.store import Store

KEY = TableColumn("key", 7)


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Nothing leaves memory but what nobody refers to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_no_footer_outlives_the_look_at_it(tmp_path: Path) -> None:
    path, before = str(tmp_path / "a.parquet"), _footers()
    place = Place(0, 0, 0, path)
    schema = pa.schema([field_of(KEY, pa.binary())])
    rows = pa.table({"key": [b"a", b"b"]}, schema)
    written = write_new_file(Target(Store(), schema, "zstd", None, place), [rows])
    assert read_description(Store(), place) == written
    file = DataFile(path, 2, Path(path).stat().st_size, None)
    assert column_bytes(SegmentFiles(0, 0, (file,), (KEY,), Store()), "key") > 0
    assert _footers() == before


def _footers() -> int:
    # By type: isinstance asks an object for its class, and Airflow's lazy imports load at that.
    return sum(type(thing) is pq.FileMetaData for thing in gc.get_objects())
