"""Where a table asks for copy-on-write, rows leave it by rewritten files."""

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load, set_properties
from ebbtide.settings.names import TopicName
from ebbtide.state.covered_offsets import HorizonRange
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, delete_places, live, spark_table
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.upserts import delete_equal, upsert

pytestmark = pytest.mark.long

POSITIONS = 1  # the content of a delete file with positions


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def name(spark: SparkSession, cluster: str) -> str:
    return f"{cluster}.t"


def create(spark: SparkSession, name: str, version: int, more: str = "") -> str:
    table = TopicName.parse(name).records_table
    spark_table(spark, name, version, more)
    set_properties(spark, table, {"write.delete.mode": "copy-on-write"})
    return table


def test_files_are_written_anew_and_others_stay(
    spark: SparkSession, name: str, kill_at: list[Step]
) -> None:
    """Rows keep their ids; one file leaves whole; what others have deleted does not come back."""
    table = create(spark, name, 3, "PARTITIONED BY (hours(timestamp))")
    rows = [Record(0, "a"), Record(1, "b", None), Record(2, "a"), Record(3, "e")]
    append(spark, name, [*rows, Record(4, "f", timestamp_ms=4_000_000)])
    append(spark, name, [Record(5, "c")])
    append(spark, name, [Record(6, "g"), Record(7, "c")])
    spark.sql(f"ALTER TABLE {table} ADD COLUMN `a.b` int")
    adopt(spark, name)
    delete_places(spark, name, [3])
    ids = dict(spark.table(table).select("offset", "_row_id").collect())
    files = {row["file_path"] for row in spark.table(f"{table}.files").collect()}
    kill_at.append(Step.ROUND_STATE)
    with pytest.raises(KilledError):
        clean(spark, name, 10_000)
    assert clean(spark, name, 10_000).rows_removed == 0  # it only ends the round
    assert live(spark, name) == [1, 2, 4, 6, 7]
    after = dict(spark.table(table).select("offset", "_row_id").collect())
    assert after == {offset: ids[offset] for offset in after}
    left = {row["file_path"] for row in spark.table(f"{table}.data_files").collect()}
    assert (len(left), len(left & files)) == (3, 2)
    assert not [
        row for row in spark.table(f"{table}.delete_files").collect() if row["content"] == 1
    ]
    append(spark, name, [Record(8, "g")])
    clean(spark, name, 10_500)  # nothing that the round has moved counts as late
    assert live(spark, name) == [1, 2, 4, 7, 8]
    state = load(spark, TopicName.parse(name)).partitions[0]
    assert state.horizons == (HorizonRange(8, 11_000), HorizonRange(9, 11_500))
    assert sum(sums.record_count for sums in state.sums) == 5


def test_a_rewrite_brings_nothing_back_that_others_delete_meanwhile(
    spark: SparkSession, name: str, meanwhile: Meanwhile
) -> None:
    create(spark, name, 2)
    append(spark, name, [Record(0, "a"), Record(1, "b"), Record(2, "a"), Record(3, "c")])
    adopt(spark, name)
    meanwhile(Step.ROUND_RECORDS, lambda: delete_equal(spark, name, "offset", 1))
    with pytest.raises(CommitConflictError):
        clean(spark, name, 10_000)
    assert live(spark, name) == [0, 2, 3]
    meanwhile(Step.ROUND_RECORDS, lambda: append(spark, name, [Record(4, "c")]))
    clean(spark, name, 10_000)
    assert live(spark, name) == [2, 3, 4]
    upsert(spark, name, [Record(5, "a")])
    clean(spark, name, 20_000)
    assert live(spark, name) == [4, 5]
