"""Files that Python writes for an append, as Iceberg and Spark see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg import file_changes
from ebbtide.records.segment_reader import read_records
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ingest, set_properties

LOG = [[Message("a", "1"), Message("b", "1")], [Message("c", None)]]
COMPACT = {"cleanup.policy": "compact"}


def ingested(sandbox: LakeSandbox, cluster: str, directory: Path) -> TopicName:
    write_log(directory, "t", LOG, COMPACT)
    ingest(sandbox.session, f"{cluster}.t", directory, FIRST_MS)
    return TopicName(cluster, "t")


def files_of(sandbox: LakeSandbox, table: str) -> list[dict[str, object]]:
    return [
        row.asDict(recursive=True)
        for row in sandbox.session.sql(
            f"SELECT file_path, record_count, partition, readable_metrics.offset.lower_bound AS "
            "first, readable_metrics.offset.upper_bound AS last, "
            "readable_metrics.value.null_value_count AS nulls "
            f"FROM {table}.data_files ORDER BY first"
        ).collect()
    ]


def test_each_segment_is_a_file_with_counts_and_bounds(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = ingested(sandbox, cluster, tmp_path / "log")
    first, second = files_of(sandbox, name.records_table)
    assert first["partition"] == {"partition": 0, "segment": 0}
    assert (first["record_count"], first["first"], first["last"], first["nulls"]) == (2, 0, 1, 0)
    assert (second["record_count"], second["first"], second["last"], second["nulls"]) == (
        1,
        2,
        2,
        1,
    )
    rows = sandbox.session.table(name.records_table).orderBy("offset").collect()
    assert [(row.offset, bytes(row.key), row.headers) for row in rows] == [
        (0, b"a", []),
        (1, b"b", []),
        (2, b"c", []),
    ]


def test_a_file_is_compressed_as_its_table_says(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    name = ingested(sandbox, cluster, tmp_path / "log")
    set_properties(sandbox.session, str(name), {"write.parquet.compression-codec": "gzip"})
    write_log(tmp_path / "more", "t", [*LOG, [Message("d", "1")]], COMPACT)
    ingest(sandbox.session, str(name), tmp_path / "more", FIRST_MS)
    codecs = [
        pq.ParquetFile(str(file["file_path"]).removeprefix("file:")).metadata.row_group(0).column(0)
        for file in files_of(sandbox, name.records_table)
    ]
    assert [codec.compression for codec in codecs] == ["ZSTD", "ZSTD", "GZIP"]


def test_a_large_file_has_several_row_groups(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(file_changes, "GROUP_BYTES", 1)
    monkeypatch.setitem(read_records.__kwdefaults__, "rows_per_chunk", 1)
    name = ingested(sandbox, cluster, tmp_path / "log")
    first, _ = files_of(sandbox, name.records_table)
    footer = pq.ParquetFile(str(first["file_path"]).removeprefix("file:")).metadata
    assert (footer.num_rows, footer.num_row_groups) == (2, 2)
    assert (first["first"], first["last"]) == (0, 1)
    assert sandbox.session.table(name.records_table).count() == 3


def test_a_table_that_lacks_a_column_is_refused_by_name(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = ingested(sandbox, cluster, tmp_path / "log")
    spark = sandbox.session
    spark.sql(f"ALTER TABLE {name.records_table} RENAME COLUMN attributes TO flags")
    write_log(tmp_path / "more", "t", [*LOG, [Message("d", "1")]], COMPACT)
    with pytest.raises(ConfigurationError, match=r"found none named attributes\. Rename or add"):
        ingest(spark, str(name), tmp_path / "more", FIRST_MS)
