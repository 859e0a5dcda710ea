"""Tables that others write are copied to topics: what comes, when, and what is told of it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ForeignLogError, NotCoveredError, RequestError, UnknownTopicError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, current_snapshot, load
from ebbtide.jobs.ingest_segments.stage import ingest_segments
from ebbtide.jobs.ingest_table import LATE_ROW
from ebbtide.layouts.layout import Choices
from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.erased import note_erased, refused_records
from tests.jobs.ingest_table.copying import (
    NOW_MS,
    Held,
    as_held,
    copied,
    copy,
    ends,
    expire,
    held,
    rewrite,
)
from tests.lake_sandbox import LakeSandbox
from tests.tables import nights
from tests.tables.adopted import Record, adopt, append, spark_table
from tests.tables.contents import contents
from tests.tables.logs import Message, write_log
from tests.tables.upserts import delete_equal


def test_what_is_new_is_copied_run_after_run(
    spark: SparkSession, name: TopicName, source: str
) -> None:
    """Files that others have rewritten meanwhile bring nothing twice, and deletions nothing."""
    first = [Record(7, "a"), Record(9, "b", None), Record(3, "b", partition=1, timestamp_ms=5)]
    append(spark, source, first)
    plan = copy(spark, name, plan_only=True)
    assert {p: numbers["rows"] for p, numbers in plan.partitions.items()} == {0: 2, 1: 1}
    assert plan.topic["layout"].startswith("Spark's Kafka source")
    assert "partition: partition" in plan.topic["columns"]
    assert copy(spark, name).partitions[0]["records"] == 2
    assert held(spark, name) == as_held(first)
    assert ends(spark, name) == {0: (7, 10), 1: (3, 4)}
    more = [Record(11, "a", "w"), Record(4, "b", partition=1), Record(0, None, "w", partition=2)]
    append(spark, source, more[:1])
    append(spark, source, more[1:])
    rewrite(spark, source)
    table = TopicName.parse(source).records_table
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"DELETE FROM {table} WHERE offset = 7")
    delete_equal(spark, source, "offset", 9)
    outcome = copy(spark, name, None)
    assert "note" not in outcome.topic  # the commits tell what is new
    assert {p: numbers["records"] for p, numbers in outcome.partitions.items()} == {
        0: 1,
        1: 1,
        2: 1,
    }
    assert held(spark, name) == as_held([*first, *more])
    assert [b["record_count"] for b in contents(spark, name).batches] == [2, 1, 1, 1, 1]
    assert copied(spark, name).seen == current_snapshot(spark, table)
    again = copy(spark, name, None)
    assert [numbers["skipped"] for numbers in again.partitions.values()] == [["nothing new"]] * 3
    assert again.snapshot_ids == []


@pytest.mark.long
def test_a_copy_has_every_rule_of_a_topic(
    spark: SparkSession, name: TopicName, source: str
) -> None:
    append(spark, source, [Record(0, "a"), Record(1, "a", None), Record(2, "b"), Record(3, "c")])
    copy(spark, name, max_rows=3)
    rules = {
        "kafka.cleanup.policy": "compact",
        "kafka.min.cleanable.dirty.ratio": "0",
        "kafka.segment.ms": "1",
        "kafka.delete.retention.ms": "1",
    }
    nights.set_properties(spark, str(name), rules)
    append(spark, source, [Record(4, "b", "w", timestamp_ms=9_000), Record(5, "c", "w")])
    copy(spark, name, None)
    for night in (1, 2):
        nights.mark(spark, str(name))
        nights.clean(spark, str(name), NOW_MS + night * nights.DAY_MS)
    # The active segment is never cleaned, so its records supersede none yet.
    assert [record.offset for record in held(spark, name)] == [2, 3, 4, 5]


@pytest.mark.long
def test_rows_with_an_offset_that_was_copied_are_counted(
    spark: SparkSession, name: TopicName, source: str
) -> None:
    append(spark, source, [Record(0, "a"), Record(1, "b"), Record(1, "b")])
    assert copy(spark, name).partitions[0]["repeated"] == 1
    append(spark, source, [Record(1, "b"), Record(0, "a"), Record(2, "c"), Record(2, "c")])
    numbers = copy(spark, name).partitions[0]
    assert {what: numbers[what] for what in ("records", "repeated", "late")} == {
        "records": 1,
        "repeated": 3,
        "late": 0,
    }
    assert [record.offset for record in held(spark, name)] == [0, 1, 2]


def test_an_older_record_of_an_erased_key_is_copied_without_it(
    spark: SparkSession, name: TopicName, source: str
) -> None:
    note_erased(spark, name, "a", 5_000)
    old, new = Record(0, "a", timestamp_ms=4_999), Record(2, "a", timestamp_ms=5_000)
    append(spark, source, [old, new, Record(3, "b")])
    copy(spark, name)
    rest = as_held([new, Record(3, "b")])
    assert held(spark, name) == [Held(0, 0, None, None, 4_999), *rest]
    append(spark, source, [old._replace(offset=1)])  # late
    copy(spark, name)
    nights.mark(spark, str(name))
    assert held(spark, name) == rest
    assert ends(spark, name) == {0: (0, 4)}
    assert refused_records(spark, name) == [
        (0, "erased_key", None, None),
        (1, LATE_ROW, None, None),
    ]


@pytest.mark.long
def test_late_rows_go_to_the_quarantine_and_are_named(
    spark: SparkSession, name: TopicName, source: str
) -> None:
    append(spark, source, [Record(0, "a"), Record(5, "b")])
    copy(spark, name)
    late = [Record(2, "late", "v2"), Record(3, "late", None, timestamp_ms=77)]
    append(spark, source, [*late, late[0], Record(5, "b"), Record(6, "c")])
    outcome = copy(spark, name)
    assert outcome.partitions[0]["late"] == 2
    assert outcome.partitions[0]["repeated"] == 2  # of an offset that is late, and of one copied
    assert outcome.topic["quarantine"] == name.quarantine_table
    assert "2 of partition 0 with offsets 2 to 3" in outcome.topic["note"]
    assert held(spark, name, name.quarantine_table) == as_held(late)
    (reasons,) = spark.table(name.quarantine_table).select("reason", "run_id").distinct().collect()
    assert tuple(reasons) == (LATE_ROW, "run")
    assert [record.offset for record in held(spark, name)] == [0, 5, 6]
    append(spark, source, [late[0], Record(7, "d")])
    assert copy(spark, name).partitions[0]["late"] == 0
    assert len(held(spark, name, name.quarantine_table)) == 2


@pytest.mark.long
def test_expired_snapshots_let_offsets_tell_what_is_new(
    spark: SparkSession, name: TopicName, source: str
) -> None:
    append(spark, source, [Record(0, "a"), Record(5, "b")])
    copy(spark, name)
    append(spark, source, [Record(3, "late"), Record(6, "c"), Record(1, "new", partition=1)])
    append(spark, source, [Record(7, "d")])
    expire(spark, source)
    outcome = copy(spark, name)
    assert {p: numbers["records"] for p, numbers in outcome.partitions.items()} == {0: 2, 1: 1}
    assert "late rows below them cannot be detected" in outcome.topic["note"]
    assert [record.offset for record in held(spark, name)] == [0, 5, 6, 7, 1]
    append(spark, source, [Record(4, "late"), Record(8, "e")])
    assert copy(spark, name).partitions[0]["late"] == 1


def test_another_source_or_table_is_refused(
    sandbox: LakeSandbox,
    spark: SparkSession,
    name: TopicName,
    source: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(
        RequestError, match=r"copied from a table, found .* with ebbtide\.source not set"
    ):
        copy(spark, name, None)
    with pytest.raises(UnknownTopicError, match="found none"):
        copy(spark, name, f"{name.cluster}_source.none")
    sandbox.topic(f"{name.cluster}_source.own")
    with pytest.raises(NotCoveredError, match=r"an own topic\. Use replicate_log"):
        copy(spark, name, f"{name.cluster}_source.own")
    with pytest.raises(RequestError, match="found the topic itself"):
        copy(spark, name, str(name))
    append(spark, source, [Record(0, "a")], topic="one")
    append(spark, source, [Record(0, "b")], topic="other")
    with pytest.raises(RequestError, match="but records of several topics: 'one', 'other'"):
        copy(spark, name)
    copy(spark, name, topic="other")
    append(spark, source, [Record(1, "b")], topic="one")
    append(spark, source, [Record(2, "b")], topic="other")
    copy(spark, name)
    assert [(record.offset, record.key) for record in held(spark, name)] == [(0, b"b"), (2, b"b")]
    spark_table(spark, f"{name.cluster}_source.more")
    with pytest.raises(RequestError, match="a topic has one source of offsets"):
        copy(spark, name, f"{name.cluster}_source.more")
    with pytest.raises(RequestError, match=r"different ones\. Copy the table to another topic"):
        copy(spark, name, choices=Choices(offset="timestampType"))
    write_log(tmp_path / "log", "t", [[Message("a", "1")]], {})
    log = nights.source_of(tmp_path / "log", NOW_MS)
    with pytest.raises(RequestError, match="that is not copied from a table"):
        ingest_segments(spark, name, log)
    spark.sql(f"DROP TABLE {TopicName.parse(source).records_table}")
    spark_table(spark, source)
    with pytest.raises(ForeignLogError, match="dropped and created again"):
        copy(spark, name)


@pytest.mark.long
def test_offsets_that_records_were_given_to_directly_are_never_mixed(
    spark: SparkSession, name: TopicName, source: str
) -> None:
    append(spark, source, [Record(0, "a")])
    copy(spark, name)
    closed = {"ebbtide.source": "", "ebbtide.state.0.first-appended-offset": "1"}
    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: closed)
    append(spark, source, [Record(1, "b")])
    with pytest.raises(ForeignLogError, match="to end at or before offset 1"):
        copy(spark, name, source)
    assert [record.offset for record in held(spark, name)] == [0]


def test_a_table_that_nobody_else_may_write_is_not_adopted(
    spark: SparkSession, cluster: str
) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{cluster}`")
    spark.sql(
        f"CREATE TABLE lake.`{cluster}`.t (id bigint, `$$partition` int, `$$offset` bigint, "
        "`$$timestamp` timestamp) USING iceberg"
    )
    with pytest.raises(NotCoveredError, match="To copy its rows to a topic, run ingest_table"):
        adopt(spark, f"{cluster}.t")
