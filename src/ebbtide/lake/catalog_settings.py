"""Spark's catalogs opened through pyiceberg, from the same lines of spark-defaults.conf.

A second place to configure them would one day name another catalog. Source: Iceberg's
CatalogUtil for the names, JDBC's PostgreSQL driver and libpq for what stands in a URI.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from ebbtide.errors import ConfigurationError
from ebbtide.log.settings.names import CATALOG

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_IMPLEMENTATIONS = {
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
}
FILE_IO = {"py-io-impl": "ebbtide.lake.file_io.SparksFileIO"}
_OF_FILES = ("s3.", "client.", "http-client.", "gcs.", "adls.")
# Parameters of a JDBC URI by their names in libpq.
_LIBPQ = {
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "options": "options",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "gssEncMode": "gssencmode",
    "channelBinding": "channel_binding",
}
# They change how the driver behaves in the JVM and nothing about whom it reaches.
_OF_THE_DRIVER = frozenset(
    {"loginTimeout", "prepareThreshold", "reWriteBatchedInserts", "socketTimeout", "tcpKeepAlive"}
)
_TARGETS = {"primary": "read-write", "any": "any", "preferSecondary": "prefer-standby"}


@contextmanager
def open_catalog(settings: Mapping[str, str], name: str) -> Iterator[Catalog | None]:
    """One of Spark's catalogs; None where it is a database that nobody has written to yet."""
    if settings["type"] != "sql":
        from pyiceberg.catalog import load_catalog

        opened = load_catalog(name, **settings, **FILE_IO)
        try:
            yield opened
        finally:
            opened.close()
        return
    file = settings["uri"].removeprefix("sqlite:///")
    if settings["uri"].startswith("sqlite:") and not Path(file).exists():
        yield None
        return
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import inspect

    of_database = SqlCatalog(name, **settings, **FILE_IO, init_catalog_tables="false")
    try:
        yield of_database if inspect(of_database.engine).has_table("iceberg_tables") else None
    finally:
        of_database.engine.dispose()


def read_defaults(path: Path) -> dict[str, str]:
    """The settings of a spark-defaults.conf, which Spark reads as Java properties."""
    import javaproperties

    if not path.exists():
        raise ConfigurationError(
            f"expected Spark's settings in {path}, found no file: `make setup`"
        )
    with path.open(encoding="utf-8") as file:
        return {name: value.strip() for name, value in javaproperties.load(file).items()}


def defaults_path() -> Path:
    """Where Spark's settings are."""
    directory = os.environ.get("SPARK_CONF_DIR")
    if not directory:
        raise ConfigurationError(
            "expected SPARK_CONF_DIR to name the rendered conf, found it unset"
        )
    return Path(directory) / "spark-defaults.conf"


def catalog_settings(defaults: Mapping[str, str], catalog: str = CATALOG) -> dict[str, str]:
    """Settings by which pyiceberg opens one of Spark's catalogs; ConfigurationError if none can."""
    from ebbtide.stores import s3

    prefix = f"spark.sql.catalog.{catalog}."
    ours = {
        key.removeprefix(prefix): value for key, value in defaults.items() if key.startswith(prefix)
    }
    kind = _kind_of(ours, prefix)
    if kind == "jdbc":
        if "uri" not in ours:
            raise ConfigurationError(f"expected {prefix}uri in Spark's settings, found none")
        files = {name: value for name, value in ours.items() if name.startswith(_OF_FILES)}
        settings = {"type": "sql", "uri": _sqlalchemy_uri(ours, prefix), **files}
        settings["warehouse"] = ours.get("warehouse", "")
    else:
        not_for_us = ("type", "catalog-impl", "io-impl", "cache-enabled")
        settings = {name: value for name, value in ours.items() if name not in not_for_us}
        settings["type"] = kind
    s3.settings_of(ours)  # refuses what the jobs refuse
    return settings


def _kind_of(ours: Mapping[str, str], prefix: str) -> str:
    """Which catalog it is: as `type` says, else by its class."""
    if "type" in ours:
        kind, named = ours["type"].lower(), f"{prefix}type"
    else:
        kind = _IMPLEMENTATIONS.get(ours.get("catalog-impl", ""), ours.get("catalog-impl", ""))
        named = f"{prefix}catalog-impl"
        if not kind and "uri" in ours:
            kind = "jdbc"
    if kind not in _IMPLEMENTATIONS.values():
        raise ConfigurationError(
            f"expected {named} to be one of {', '.join(_IMPLEMENTATIONS.values())}, which "
            f"pyiceberg opens too, found {kind or 'none'}"
        )
    return kind


def _sqlalchemy_uri(ours: Mapping[str, str], prefix: str) -> str:
    uri = ours["uri"]
    if uri.startswith("jdbc:sqlite:"):
        return f"sqlite:///{uri.removeprefix('jdbc:sqlite:').partition('?')[0]}"
    if uri.startswith("jdbc:postgresql:"):
        return _postgresql_uri(ours, prefix)
    raise ConfigurationError(
        f"expected {prefix}uri to start with jdbc:sqlite: or jdbc:postgresql:, "
        f"found {uri.partition('?')[0]!r}"
    )


def _postgresql_uri(ours: Mapping[str, str], prefix: str) -> str:
    """What libpq reaches the same database by; several hosts stay several."""
    from sqlalchemy.engine import URL

    parts = urlsplit(ours["uri"].removeprefix("jdbc:"))
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    hosts = [host for host in parts.netloc.split(",") if host]
    query: dict[str, str | tuple[str, ...]] = dict(_libpq(given, prefix))
    if hosts:
        query["host"] = tuple(host if ":" in host else f"{host}:5432" for host in hosts)
    return URL.create(
        "postgresql+psycopg2",
        username=ours.get("jdbc.user") or given.get("user"),
        password=ours.get("jdbc.password") or given.get("password"),
        database=parts.path.lstrip("/") or None,
        query=query,
    ).render_as_string(hide_password=False)


def _libpq(given: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    """The parameters as libpq has them; ConfigurationError for one that it cannot be told."""
    for name, value in given.items():
        if name in _LIBPQ:
            yield _LIBPQ[name], value
        elif name == "currentSchema":
            yield "options", f"-csearch_path={value}"
        elif name == "targetServerType" and value in _TARGETS:
            yield "target_session_attrs", _TARGETS[value]
        elif name == "ssl":
            if value.lower() not in ("", "true"):
                continue
            yield "sslmode", given.get("sslmode", "verify-full")
        elif name not in ("user", "password", *_OF_THE_DRIVER):
            raise ConfigurationError(
                f"expected parameters in {prefix}uri that both of PostgreSQL's drivers know, found "
                f"{name}={value}; leave it out, or set it in the database itself"
            )
