"""Records as holds judge and keep them: of a topic's own table, or of one that others write."""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.errors import HoldError, RequestError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import Table, find_table, java_table, open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.schema import RECORD_NAMES, create_held, create_held_of_others
from ebbtide.iceberg.topics import Topic, compare_and_set, current_snapshot, read_again
from ebbtide.log.state.topic_state import HELD
from ebbtide.spark.jvm import java_class

ROW = "row"  # all columns of a row of an adopted table
# Types of a key column whose values have bytes of their own, or a text.
_TEXTS = frozenset({"string", "int", "long", "uuid"})


def live_records(topic: Topic, snapshot: int | None = None) -> DataFrame:
    """Return the live records with `partition`, offset, event_time, key and all that is kept.

    Of an adopted topic, `snapshot` is the one that they are read from.
    """
    if not topic.is_adopted:
        return topic.spark.table(topic.name.records_table).select(RECORD_NAMES)
    rows = AdoptedRows.of(topic)
    current = snapshot or current_snapshot(topic.spark, topic.name.records_table)
    assert current is not None, f"{topic.name} has no snapshot"
    return _judged(rows, rows.at(current))


def records_as_of(topic: Topic, snapshot: int) -> DataFrame:
    """Return the live records of an older snapshot."""
    if topic.is_adopted:
        adopted = AdoptedRows.of(topic)
        return _judged(adopted, adopted.as_of(snapshot))
    rows = topic.spark.sql(f"SELECT * FROM {topic.name.records_table} VERSION AS OF {snapshot}")
    return rows.select(RECORD_NAMES)


def check_has_key_bytes(topic: Topic) -> None:
    """Raise RequestError for an adopted topic whose keys are no bytes, text or numbers."""
    if topic.is_adopted and key_bytes(AdoptedRows.of(topic)) is None:
        raise RequestError(
            f"expected keys of bytes, text or whole numbers in {topic.name}, found "
            f"{_kind_of_key(AdoptedRows.of(topic))}; name offsets or event times instead"
        )


def key_bytes(rows: AdoptedRows) -> Column | None:
    """Return a key's bytes: its own, or its text as UTF-8; None for other types."""
    kind = _kind_of_key(rows)
    if kind in _TEXTS:
        return F.col("key").cast("string").cast("binary")
    return F.col("key") if kind == "binary" or kind.startswith("fixed") else None


def _kind_of_key(rows: AdoptedRows) -> str:
    return "no key column" if rows.layout.key is None else rows.layout.key.type


def _judged(rows: AdoptedRows, records: DataFrame) -> DataFrame:
    event_time = F.when(F.col("timestamp_ms") >= 0, F.timestamp_millis("timestamp_ms"))
    of_key = key_bytes(rows)
    key = F.lit(None).cast("binary") if of_key is None else of_key
    is_placed = F.col("partition").isNotNull() & F.col("offset").isNotNull()
    return records.where(is_placed).select(
        "partition", "offset", event_time.alias("event_time"), key.alias("key"), ROW
    )


def create_held_table(topic: Topic) -> None:
    """Create the table of the topic's held records if there was none; the state keeps its id.

    Raise HoldError if somebody dropped it.
    """
    table = find_held_table(topic)
    if table is None:
        create = create_held_of_others if topic.is_adopted else create_held
        commit(Step.HELD_TABLE, partial(create, topic.spark, topic.name))
        table = open_table(topic.spark, topic.name.held_table)
    if HELD not in read_again(topic).properties:
        held = {HELD: table.metadata.uuid}
        compare_and_set(topic, Step.HELD_TABLE, lambda _: held)


def find_held_table(topic: Topic) -> Table | None:
    """Return the table of the topic's held records, or None if none was ever made.

    Raise HoldError if the state tells of another one than there is: somebody dropped it.
    """
    spark, name = topic.spark, topic.name
    table, known = find_table(spark, name.held_table), read_again(topic).properties.get(HELD)
    if known is None or (table is not None and table.metadata.uuid == known):
        return table
    raise HoldError(
        f"expected the records that holds keep of {name} in {name.held_table}, the table {known}, "
        f"found {'none' if table is None else table.metadata.uuid}: somebody dropped it, and what "
        "it kept is gone from there. Register its last metadata file again; or end each hold on "
        "the topic and make it again, which copies what snapshots still have"
    )


def widen_held_table(topic: Topic, rows: DataFrame) -> None:
    """Add the columns of an adopted table that the table of its held records lacks.

    What was read from that table before cannot be written to it any more.
    """
    if not topic.is_adopted:
        return
    table = java_table(topic.spark, topic.name.held_table)
    schemas = java_class(topic.spark, "org.apache.iceberg.spark.SparkSchemaUtil")
    schema = schemas.convert(rows.select(ROW)._jdf.schema())
    update = table.updateSchema().unionByNameWith(schema)
    if not update.apply().sameSchema(table.schema()):
        commit(Step.HELD_TABLE, update.commit)


def as_held(topic: Topic, rows: DataFrame) -> DataFrame:
    """Return the rows in the columns of the table of held records, null where they have none."""
    held = topic.spark.table(topic.name.held_table)
    if not topic.is_adopted:
        return rows.select(held.columns)
    return held.limit(0).unionByName(rows.select(held.columns), allowMissingColumns=True)
