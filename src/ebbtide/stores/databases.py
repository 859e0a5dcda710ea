"""Databases that can be an Iceberg JDBC catalog of ebbtide: jobs and Airflow's side read both."""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide.errors import ConfigurationError

SQLITE, POSTGRESQL = "jdbc:sqlite:", "jdbc:postgresql:"
_JDBC_CATALOG = "org.apache.iceberg.jdbc.JdbcCatalog"


def check_database(settings: Mapping[str, str], prefix: str) -> None:
    """Raise ConfigurationError if a JDBC catalog's URI names a database of another kind.

    `settings` are the catalog's own, `prefix` stands before their names in Spark's settings.
    """
    kind = settings.get("type", "").lower()
    is_jdbc = kind == "jdbc" or settings.get("catalog-impl") == _JDBC_CATALOG
    uri = settings.get("uri", "")
    if (is_jdbc or uri.startswith("jdbc:")) and not uri.startswith((SQLITE, POSTGRESQL)):
        raise ConfigurationError(
            f"expected {prefix}uri to start with {SQLITE} or {POSTGRESQL}, "
            f"found {uri.partition('?')[0]!r}"
        )
