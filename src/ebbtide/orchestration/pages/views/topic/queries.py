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
    if is_adopted:
        raw = "every row that nobody has deleted"
        raw += "" if topic.in_table is None else ", of each topic in the table"
        of_spark = {topic.records_table: raw}
    else:
        raw = "every record of the log, those of aborted transactions too"
        of_spark = {
            topic.table_view: "the latest value of each key",
            topic.committed_view: "what a read_committed consumer gets",
        }
    in_trino = f"{topic.catalog}.{_quoted(topic.cluster)}.{_quoted(topic.table)}"
    scan = f"INSTALL iceberg; LOAD iceberg;\nSELECT * FROM {_iceberg_scan(metadata_location)}"
    return [
        *(
            Query("Spark", what, f"SELECT * FROM {table} LIMIT 20")
            for table, what in of_spark.items()
        ),
        Query("DuckDB", raw, f"{scan} LIMIT 20"),
        Query("Trino", raw, f"SELECT * FROM {in_trino} LIMIT 20"),
    ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _iceberg_scan(metadata_location: str) -> str:
    path = metadata_location.removeprefix("file:").replace("'", "''")
    options = ", metadata_compression_codec => 'gzip'" if ".gz." in path else ""
    return f"iceberg_scan('{path}'{options})"
