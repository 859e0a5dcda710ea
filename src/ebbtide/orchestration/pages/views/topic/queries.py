"""Statements that read a topic in other engines, to copy."""

from __future__ import annotations

from typing import NamedTuple

from ebbtide.log.settings.names import TopicName


class Query(NamedTuple):
    """A statement for an engine, and what it reads."""

    engine: str
    reads: str
    sql: str


def queries(name: str, metadata_location: str, *, is_adopted: bool) -> list[Query]:
    """Return a statement for each engine; DuckDB reads the table by its newest metadata file.

    A table that others write has no views beside it.
    """
    topic = TopicName.parse(name)
    raw = "every record of the log, those of aborted transactions too"
    if is_adopted:
        raw = "every row that nobody has deleted"
    return [
        *(_of_rows(topic, raw) if is_adopted else _of_views(topic)),
        Query(
            "DuckDB",
            raw,
            "INSTALL iceberg; LOAD iceberg;\n"
            f"SELECT * FROM {_iceberg_scan(metadata_location)} LIMIT 20",
        ),
        Query(
            "Trino",
            raw,
            f"SELECT * FROM {topic.catalog}.{_quoted(topic.cluster)}.{_quoted(topic.topic)} "
            "LIMIT 20",
        ),
    ]


def _of_rows(topic: TopicName, reads: str) -> list[Query]:
    return [Query("Spark", reads, f"SELECT * FROM {topic.records_table} LIMIT 20")]


def _of_views(topic: TopicName) -> list[Query]:
    return [
        Query(
            "Spark",
            "the latest value of each key",
            f"SELECT * FROM {topic.table_view} LIMIT 20",
        ),
        Query(
            "Spark",
            "what a read_committed consumer gets",
            f"SELECT * FROM {topic.committed_view} LIMIT 20",
        ),
    ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _iceberg_scan(metadata_location: str) -> str:
    path = metadata_location.removeprefix("file:").replace("'", "''")
    options = ", metadata_compression_codec => 'gzip'" if ".gz." in path else ""
    return f"iceberg_scan('{path}'{options})"
