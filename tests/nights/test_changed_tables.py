"""Topics whose tables somebody has given more columns, partition fields or wider numbers."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.schema import BATCH_NAMES, RECORD_NAMES
from ebbtide.iceberg.topics import load
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, set_properties
from tests.tables.other_tools import rewrite_files, tables_of

pytestmark = pytest.mark.long

COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
NIGHT_MS = FIRST_MS + 10 * DAY_MS
OLD = [[Message("a", str(n)), Message(f"k{n}", "1")] for n in range(9)]
NEW = [
    *OLD,
    [Message("k0", None), Message("a", "last")],
    [Message("k1", None)],
    [Message("z", "1")],
]
ADDED_COLUMN = "ALTER TABLE {} ADD COLUMN note STRING"
WIDER = "ALTER TABLE {} ALTER COLUMN size_bytes TYPE BIGINT"
CHANGES = {
    "a column": [ADDED_COLUMN],
    "a column with values": [ADDED_COLUMN, "UPDATE {} SET note = 'theirs'"],
    "a wider number": [WIDER],
    "a partition field": ["ALTER TABLE {} ADD PARTITION FIELD bucket(2, segment)"],
    "all of it": [
        ADDED_COLUMN,
        WIDER,
        "ALTER TABLE {} ADD PARTITION FIELD bucket(2, segment)",
        "UPDATE {} SET note = 'theirs'",
    ],
}


def begin(sandbox: LakeSandbox, cluster: str, folder: Path) -> TopicName:
    name = TopicName(cluster, "t")
    write_log(folder / "old", "t", OLD, COMPACT)
    ingest(sandbox.session, str(name), folder / "old", FIRST_MS)
    return name


def go_on(sandbox: LakeSandbox, name: TopicName, folder: Path) -> None:
    """Every stage, on what was there and on what comes."""
    bench = Bench(sandbox, name, folder)
    bench.log(NEW, COMPACT, FIRST_MS, "new")
    bench.mark()
    bench.clean(NIGHT_MS)
    execute_expire_snapshots(bench.load())
    bench.delete({0: 5})
    bench.clean(NIGHT_MS + 2 * DAY_MS)
    bench.expire(NIGHT_MS + 2 * DAY_MS)


def held(spark: SparkSession, name: TopicName) -> list[list[dict[str, Any]]]:
    records = spark.table(name.records_table).select(RECORD_NAMES).orderBy("offset")
    batches = spark.table(name.batches_table).select(BATCH_NAMES).orderBy("base_offset")
    return [rows.toArrow().to_pylist() for rows in (records, batches)]


@pytest.fixture(scope="module")
def untouched(
    sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory
) -> list[list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("untouched")
    name = begin(sandbox, "untouched", folder)
    go_on(sandbox, name, folder)
    return held(sandbox.session, name)


@pytest.mark.parametrize("change", CHANGES)
def test_every_stage_goes_on(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, untouched: Any, change: str
) -> None:
    spark = sandbox.session
    name = begin(sandbox, cluster, tmp_path)
    for statement in CHANGES[change]:
        for table in tables_of(name):
            spark.sql(statement.format(table))
    go_on(sandbox, name, tmp_path)
    assert held(spark, name) == untouched
    if "note" in spark.table(name.records_table).columns and "UPDATE" in str(CHANGES[change]):
        notes = spark.table(name.records_table).where("offset < 18").select("note").collect()
        assert {row["note"] for row in notes} == {"theirs"}


def test_files_of_another_format_are_refused_with_the_way_out(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = begin(sandbox, cluster, tmp_path)
    for table in tables_of(name):
        sandbox.session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default'='orc')")
    rewrite_files(sandbox.session, tables_of(name))
    mark(sandbox.session, str(name))
    with pytest.raises(ConfigurationError, match=r"to be Parquet, found orc\. Set write\.format"):
        clean(sandbox.session, str(name), NIGHT_MS)


def test_snapshots_expire_although_files_cannot_be_merged(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = begin(sandbox, cluster, tmp_path)
    set_properties(sandbox.session, str(name), {"history.expire.max-snapshot-age-ms": "0"})
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)  # merges eight logical segments
    for table in tables_of(name):
        sandbox.session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default'='orc')")
    rewrite_files(sandbox.session, tables_of(name))
    outcome = execute_expire_snapshots(load(sandbox.session, name))
    assert isinstance(outcome.error, ConfigurationError)
    assert outcome.topic["snapshots_expired"] > 0
    for table in tables_of(name):
        assert sandbox.session.sql(f"SELECT * FROM {table}.snapshots").count() == 1
