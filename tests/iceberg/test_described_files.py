"""Files that are handed to Iceberg as JSON, as Iceberg has them then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.file_commits import DescribedFiles, describe_listed
from ebbtide.iceberg.manifests import current_files
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import ICEBERG, items, java_class
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ingest

SEGMENTS = [[Message("a", "1"), Message("b", "1")], [Message("c", None)]]


def test_files_of_all_specs_are_as_described_and_share_the_schema_of_their_partitions(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    write_log(tmp_path, "t", SEGMENTS, {"cleanup.policy": "compact"})
    ingest(spark, str(name), tmp_path, FIRST_MS)
    spark.sql(f"ALTER TABLE {name.records_table} ADD PARTITION FIELD days(timestamp)")
    table = open_table(spark, name.records_table)
    described = DescribedFiles.of(table)
    first, second = (describe_listed(file) for file in current_files(table))
    new_spec = {**first, "spec-id": 1, "partition": [*first["partition"], "2026-01-01"]}
    wanted = [first, new_spec, second]

    files = items(described.data(wanted))
    for file, description in zip(files, wanted, strict=True):
        told = _told(described, file)
        assert {key: told[key] for key in description} == description
    schemas = [_identity(described, file.partition().getSchema()) for file in files]
    assert schemas[0] != schemas[1]

    (one, other) = items(described.data([first, second]))
    assert _identity(described, one.partition().getSchema()) == _identity(
        described, other.partition().getSchema()
    )


def _told(described: DescribedFiles, file: object) -> Mapping[str, object]:
    """Return a file as Iceberg writes it in JSON."""
    spec = described.specs.get(file.specId())  # type: ignore[attr-defined]
    parser = java_class(described.spark, ICEBERG + "ContentFileParser")
    told: Mapping[str, object] = json.loads(parser.toJson(file, spec))
    return told


def _identity(described: DescribedFiles, schema: object) -> int:
    return int(java_class(described.spark, "java.lang.System").identityHashCode(schema))
