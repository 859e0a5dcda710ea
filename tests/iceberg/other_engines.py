"""Readers without Spark: DuckDB's own of Iceberg, and pyiceberg's with DuckDB's SQL on top."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ebbtide.lake.reader import Lake
from ebbtide.settings.names import CATALOG, TopicName

EXTENSIONS = ("json", "parquet", "avro", "iceberg")  # each needs those before it
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reading.md"


def statements(name: TopicName) -> Mapping[str, str]:
    """The statements of docs/reading.md for a topic, each by the suffix of its view."""
    text = DOCS.read_text().replace("lake.log_batches.", f"lake.{name.cluster}_batches.")
    text = text.replace("lake.log.", f"lake.{name.cluster}.").replace("flights", name.topic)
    pattern = rf"`{re.escape(name.topic)}(__\w+)`:\n\n```sql\n(.*?)```"
    return dict(re.findall(pattern, text, re.DOTALL))


class DuckDB:
    """DuckDB with a topic's tables under the names that the lake has for them."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        for extension in EXTENSIONS:
            folder = files(f"duckdb_extension_{extension}") / "extensions"
            (path,) = Path(str(folder)).rglob(f"{extension}.duckdb_extension")
            self.connection.load_extension(str(path))
        self.connection.execute(f"ATTACH ':memory:' AS {CATALOG}")

    def add(self, lake: Lake, name: TopicName) -> None:
        """Make the topic's tables known, then the views as the statements say."""
        for schema in (name.cluster, f"{name.cluster}_batches"):
            self.connection.execute(f'CREATE SCHEMA {CATALOG}."{schema}"')
        self.add_table(sql_name(name.cluster, name.topic), lake.records(str(name)))
        self.add_table(sql_name(f"{name.cluster}_batches", name.topic), lake.batches(str(name)))

    def add_table(self, known_as: str, table: Any) -> None:
        """DuckDB opens the table by its metadata file."""
        location = table.metadata_location.removeprefix("file:")
        options = ", metadata_compression_codec => 'gzip'" if ".gz." in location else ""
        scan = f"iceberg_scan('{location}'{options})"
        self.connection.execute(f"CREATE VIEW {known_as} AS SELECT * FROM {scan}")

    def add_view(self, known_as: str, sql: str) -> None:
        """A view for what builds on it."""
        self.connection.execute(f"CREATE VIEW {known_as} AS {sql}")

    def rows(self, sql: str) -> pa.Table:
        """The rows of a query."""
        return self.connection.sql(sql).to_arrow_table()


class PyIceberg(DuckDB):
    """The same, on what pyiceberg has read."""

    def add_table(self, known_as: str, table: Any) -> None:
        scanned = table.scan().to_arrow()
        self.connection.register("scanned", scanned)
        self.connection.execute(f"CREATE TABLE {known_as} AS SELECT * FROM scanned")


def sql_name(schema: str, table: str) -> str:
    """A quoted name in the lake."""
    return f'{CATALOG}."{schema}"."{table}"'
