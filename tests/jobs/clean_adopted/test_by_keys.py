"""A round finds the same rows by its files' columns of keys as through Iceberg's own reader."""

import random

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.adopted import key_files
from ebbtide.iceberg.adopted.key_files import FileScan, Wanted
from ebbtide.iceberg.topics import Topic, load
from ebbtide.jobs.clean_log import judge_rows
from ebbtide.jobs.clean_log.judge_rows import RowsEffect, Victims
from ebbtide.jobs.clean_log.stage import plan_clean
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, live, spark_table
from tests.tables.upserts import delete_equal

REDPANDA = (
    "redpanda struct<`partition`: int, timestamp: timestamp, offset: bigint, key: binary>, "
    "value binary"
)


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


def planned_victims(topic: Topic, now_ms: int) -> Victims:
    effect = plan_clean(topic, now_ms).effect
    assert isinstance(effect, RowsEffect)
    return effect.found


def both_ways(
    spark: SparkSession, name: str, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Victims, bool]:
    """What a round would remove, the same both ways; whether files were read as columns."""
    topic = load(spark, TopicName.parse(name))
    found: list[bool] = []
    with monkeypatch.context() as patch:

        def files(scan: FileScan, wanted: Wanted) -> object:
            read = key_files.find_key_files(scan, wanted)
            found.append(read is not None)
            return read

        patch.setattr(judge_rows, "find_key_files", files)
        by_columns = planned_victims(topic, now_ms)
        patch.setattr(judge_rows.KeyColumns, "of", lambda *_: None)
        by_rows = planned_victims(topic, now_ms)
    for part in ("positions", "offsets", "by_rule", "by_segment"):
        of_columns = {k: rows for k, rows in getattr(by_columns, part).items() if rows}
        assert of_columns == {k: rows for k, rows in getattr(by_rows, part).items() if rows}, part
    return by_columns, bool(found) and all(found)


@pytest.mark.long
@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_others_deleted_and_columns_that_were_renamed(
    spark: SparkSession, cluster: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over files with several partitions, keyless rows, offsets twice, out of order and missing."""
    rng, name = random.Random(version), f"{cluster}.t"
    table = TopicName.parse(name).records_table
    spark_table(spark, name, version)
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read', "
        "'write.delete.granularity'='partition')"
    )
    for night in range(3):
        offsets = [night * 40 + rng.randrange(50) for _ in range(40)]
        keys = [rng.choice([*"abcdefgh", None]) for _ in offsets]
        rows = [
            Record(o, k, rng.choice("vw"), rng.randrange(3))
            for o, k in zip(offsets, keys, strict=True)
        ]
        append(spark, name, [*rows, Record(190, "zz")] if night == 2 else rows)
        if not night:
            adopt(spark, name)
        spark.sql(f"DELETE FROM {table} WHERE offset % 11 = {night}")
        victims, is_by_columns = both_ways(spark, name, 10_000 * (night + 1), monkeypatch)
        assert is_by_columns
        assert victims.rows > 5
        clean(spark, name, 10_000 * (night + 1))
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN key TO id")
    values = "cast('zz' as binary), null, 't', 0, 200, timestamp_millis(1), 0"
    spark.sql(f"INSERT INTO {table} VALUES ({values})")
    victims, is_by_columns = both_ways(spark, name, 90_000, monkeypatch)
    assert is_by_columns
    assert victims.rows == 1


def test_keys_in_structs(
    spark: SparkSession, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, table = f"{cluster}.t", TopicName(cluster, "t").records_table
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{cluster}`")
    spark.sql(f"CREATE TABLE {table} ({REDPANDA}) USING iceberg")
    rows = ", ".join(
        f"(named_struct('partition', 0, 'timestamp', timestamp_millis(1), 'offset', {i}L, "
        f"'key', {key}), null)"
        for i, key in enumerate(["cast('a' as binary)", "null", "cast('a' as binary)"])
    )
    spark.sql(f"INSERT INTO {table} VALUES {rows}, (null, null)")
    adopt(spark, name)
    victims, is_by_columns = both_ways(spark, name, 10_000, monkeypatch)
    assert is_by_columns
    assert {p: list(offsets) for p, offsets in victims.offsets.items()} == {0: [0, 1]}


@pytest.mark.long
def test_what_only_iceberg_can_read_is_left_to_it(
    spark: SparkSession, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equality deletes, other formats, a file without one of the columns, or too large a map."""
    name = f"{cluster}.t"
    table = TopicName.parse(name).records_table
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a"), Record(2, "b")])
    adopt(spark, name)
    assert both_ways(spark, name, 10_000, monkeypatch)[1]
    with monkeypatch.context() as patch:
        patch.setattr(judge_rows, "MAP_BYTES", 0)
        assert both_ways(spark, name, 10_000, monkeypatch)[0].rows == 1
    delete_equal(spark, name, "offset", 2)
    victims, is_by_columns = both_ways(spark, name, 10_000, monkeypatch)
    assert not is_by_columns
    assert victims.rows == 1
    clean(spark, name, 10_000)
    assert live(spark, name) == [1]
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default'='avro')")
    append(spark, name, [Record(3, "a")])
    assert not both_ways(spark, name, 20_000, monkeypatch)[1]


@pytest.mark.long
def test_a_column_that_was_added_later_is_missing_in_older_files(
    spark: SparkSession, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{cluster}.t"
    table = TopicName.parse(name).records_table
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{cluster}`")
    spark.sql(
        f"CREATE TABLE {table} (value binary, `partition` int, offset bigint, "
        "timestamp timestamp) USING iceberg"
    )
    spark.sql(f"INSERT INTO {table} VALUES (cast('v' as binary), 0, 0, timestamp_millis(1))")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN key binary")
    row = "(cast('v' as binary), 0, {}, timestamp_millis(1), cast('a' as binary))"
    spark.sql(f"INSERT INTO {table} VALUES {row.format(1)}, {row.format(2)}")
    adopt(spark, name)
    victims, _ = both_ways(spark, name, 10_000, monkeypatch)
    assert {p: list(offsets) for p, offsets in victims.offsets.items()} == {0: [0, 1]}
