"""The catalogs that both the jobs and Airflow's side can open. Any other is refused."""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide.errors import ConfigurationError

SQLITE, POSTGRESQL = "jdbc:sqlite:", "jdbc:postgresql:"
_BY_CLASS = {
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
}
_KINDS = tuple(_BY_CLASS.values())


def kind_of(settings: Mapping[str, str], prefix: str) -> str:
    """Return `jdbc`, `rest`, `glue` or `hive`, from the catalog's `type` or else its class.

    `settings` are the catalog's own. `prefix` precedes their names in Spark's settings. Raise
    ConfigurationError for any other catalog, and for a database that is not SQLite or PostgreSQL.
    """
    named = "type" if "type" in settings else "catalog-impl"
    found = settings.get(named, "")
    kind = found.lower() if named == "type" else _BY_CLASS.get(found, found)
    uri = settings.get("uri", "")
    if not kind and uri:
        kind = "jdbc"
    if kind not in _KINDS:
        raise ConfigurationError(
            f"expected {prefix}{named} in spark-defaults.conf to be one of {', '.join(_KINDS)}, "
            f"which Airflow's side can open too, found {kind or 'none'}. Nothing was written. Use "
            "another catalog (docs/stores.md)"
        )
    is_database = kind == "jdbc" or uri.startswith("jdbc:")
    if is_database and not uri.startswith((SQLITE, POSTGRESQL)):
        raise ConfigurationError(
            f"expected {prefix}uri in spark-defaults.conf to start with {SQLITE} or {POSTGRESQL}, "
            f"found {shown(uri) or 'none'}: Airflow's side cannot read other databases. Nothing "
            "was written. Use a catalog in PostgreSQL, or a REST catalog (docs/stores.md)"
        )
    return kind


def shown(uri: str) -> str:
    """Return a database URI without its user and parameters, which may have a password."""
    scheme, slashes, rest = uri.partition("?")[0].partition("//")
    return scheme + slashes + rest.rpartition("@")[2]
