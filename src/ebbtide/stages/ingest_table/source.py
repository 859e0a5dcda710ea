"""Open the table that a topic is copied from, and recognise its layout or take the one kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import SparkSession

from ebbtide.errors import ForeignLogError, NotCoveredError, RequestError, UnknownTopicError
from ebbtide.iceberg.adopted.copied_rows import SourceRows
from ebbtide.iceberg.catalog import find_table, table_exists
from ebbtide.iceberg.topics import Topic
from ebbtide.log.adopted.copied import CopiedTable
from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.recognition import Profile, profile_named, recognise
from ebbtide.log.live_offsets import MAX_OFFSETS
from ebbtide.log.settings.names import TopicName, quoted_list
from ebbtide.log.settings.upstream import SOURCE, TABLE, Upstream

# Of a table's topics, how many a message names.
SHOWN = 20
NOTHING_CHOSEN = Choices()


@dataclass(frozen=True, slots=True)
class TableSource:
    """A run's source and its clock; without a name, the one that each topic is copied from.

    `topic` is the one to copy of a table that holds several.
    """

    now: datetime
    name: TopicName | None = None
    choices: Choices = NOTHING_CHOSEN
    profile: str = ""
    topic: str = ""
    max_rows: int = MAX_OFFSETS  # of a slice


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """The source as it is now, and how far it has been copied."""

    name: TopicName
    profile: Profile
    rows: SourceRows
    copied: CopiedTable

    @property
    def upstream(self) -> str:
        """The source as the topic's property names it."""
        return str(Upstream(TABLE, str(self.name)))


def open_source(
    spark: SparkSession, name: TopicName, topic: Topic | None, source: TableSource
) -> OpenedTable:
    """Return the source of a topic, which is None where it does not exist yet.

    Raise RequestError where the topic has another source or none, and ForeignLogError where the
    table is another than before.
    """
    table_name = _name_of(name, topic, source)
    table = find_table(spark, table_name.records_table)
    if table is None:
        raise UnknownTopicError(f"expected the table {table_name.records_table}, found none")
    if table_exists(spark, table_name.batches_table):
        raise NotCoveredError(
            f"expected a table that others write, found {table_name}, a topic of ebbtide's own; "
            "replicate_log copies such"
        )
    columns = Columns.readable(table.metadata.schema, table_name.records_table)
    table_id = table.metadata.uuid
    kept = None if topic is None else CopiedTable.of(topic.properties)
    if kept is not None and kept.table_id != table_id:
        raise ForeignLogError(
            f"expected the table {kept.table_id} at {table_name}, which {name} is copied from, "
            f"found {table_id}: it was dropped and created anew; copy it to another topic, or drop "
            "the topic's tables to begin anew"
        )
    profile, layout = _layout(columns, source, kept)
    if layout.topic is not None and layout.topic_name is None:
        layout = replace(layout, topic_name=_topic_name(spark, table_name, layout, source))
    rows = SourceRows.of(spark, table_name.records_table, layout)
    copied = CopiedTable(table_id=table_id, layout=layout)
    if kept is not None:
        copied = replace(kept, layout=layout)
    return OpenedTable(table_name, profile, rows, copied)


def _name_of(name: TopicName, topic: Topic | None, source: TableSource) -> TopicName:
    """Return the name of the source: the one asked for, which must be the topic's if it has one."""
    upstream = None if topic is None else topic.config.upstream
    known = str(upstream) if upstream is not None else None
    if source.name is None:
        if upstream is None or upstream.kind != TABLE:
            raise RequestError(
                f"expected a topic that is copied from a table, found {SOURCE} of {name} to be "
                f"{known or 'not set'}; name the table with --source"
            )
        return TopicName.parse(upstream.where)
    if source.name == name:
        raise RequestError(f"expected a table to copy {name} from, found the topic's own")
    asked = str(Upstream(TABLE, str(source.name)))
    if known not in (None, asked):
        raise RequestError(
            f"expected {name} to have no source or {asked}, found {known}: offsets belong to one "
            f"writer; copy to another topic, or unset {SOURCE} with configure_topic first"
        )
    return source.name


def _layout(
    columns: Columns, source: TableSource, kept: CopiedTable | None
) -> tuple[Profile, Layout]:
    """Return the kept layout with value columns that came since, unless others are asked for."""
    if kept is not None and source.choices == NOTHING_CHOSEN and not source.profile:
        profile, layout = profile_named(kept.layout.profile), kept.layout
        now = profile.recognise(columns, NOTHING_CHOSEN)
        has_more = now is not None and set(layout.values) <= set(now.values)
        return profile, replace(layout, values=now.values) if now and has_more else layout
    found = recognise(columns, source.choices, source.profile)
    layout = replace(found.layout, topic_name=source.topic or None)
    if kept is not None:
        _check_same_places(kept.layout, layout)
        layout = replace(layout, topic_name=layout.topic_name or kept.layout.topic_name)
    return found.profile, layout


def _check_same_places(before: Layout, after: Layout) -> None:
    if (before.partition, before.offset) != (after.partition, after.offset):
        raise RequestError(
            "expected the columns of partition and offset from which rows have been copied, found "
            "others; copy the table to another topic"
        )


def _topic_name(
    spark: SparkSession, table: TopicName, layout: Layout, source: TableSource
) -> str | None:
    """Return the table's topic to copy: the one asked for, or its only one."""
    if source.topic:
        return source.topic
    names = SourceRows.of(spark, table.records_table, layout).topics()
    if len(names) > 1:
        raise RequestError(
            f"expected --source-topic for {table}, which holds records of "
            f"{quoted_list(names[:SHOWN])}, found none; name the one to copy"
        )
    return next(iter(names), None)
