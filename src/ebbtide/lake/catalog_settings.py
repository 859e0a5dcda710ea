"""Spark's catalogs, opened through pyiceberg with the settings in spark-defaults.conf.

With separate settings, the two sides could one day use different catalogs. Sources: Iceberg's
CatalogUtil for the names of settings, PostgreSQL's JDBC driver and libpq for parameters of a URI.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ebbtide.errors import (
    AccessDeniedError,
    ConfigurationError,
    EbbtideError,
    UnavailableError,
)
from ebbtide.settings.names import CATALOG
from ebbtide.stores.catalogs import SQLITE, kind_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FILE_IO = {"py-io-impl": "ebbtide.lake.file_io.SparksFileIO"}
_OF_FILES = ("s3.", "client.", "http-client.", "gcs.", "adls.")
# Parameters of a JDBC URI, and their names in libpq.
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
# Parameters that only affect the driver in the JVM, not the database that it connects to.
_OF_THE_DRIVER = frozenset(
    {"loginTimeout", "prepareThreshold", "reWriteBatchedInserts", "socketTimeout", "tcpKeepAlive"}
)
_TARGETS = {"primary": "read-write", "any": "any", "preferSecondary": "prefer-standby"}


@contextmanager
def open_catalog(settings: Mapping[str, Any], name: str) -> Iterator[Catalog | None]:
    """Open one of Spark's catalogs, or yield None for a database without Iceberg's tables.

    Until the block ends, raise AccessDeniedError if the catalog refuses the credentials,
    ConfigurationError if it rejects a request, and UnavailableError if it does not answer.
    """
    where = str(settings.get("uri") or settings["type"])
    with _failing_clearly(where), _opened(settings, name) as opened:
        yield opened


class _Failure(NamedTuple):
    """A kind of failure of a catalog, and the error to raise for it."""

    names: str  # a pattern of the exception's class name
    error: type[EbbtideError]
    expected: str
    remedy: str
    text: str = ""  # a pattern that the exception's text must contain


_PYICEBERG, _REQUESTS = r"pyiceberg\.exceptions\.", r"requests\.exceptions\."
_DATABASE = r"sqlalchemy\.exc\."
_REFUSED = (
    AccessDeniedError,
    "access with these credentials to the catalog",
    "Correct the catalog's settings in spark-defaults.conf, or grant them access",
)
_REJECTED = (
    ConfigurationError,
    "a catalog that accepts Airflow's requests at",
    "Correct the catalog's settings in spark-defaults.conf, or see the server's own log",
)
_DOWN = (UnavailableError, "an answer from the catalog", "Run again once it answers")
# The first match counts.
_FAILURES = (
    _Failure(f"{_PYICEBERG}(Unauthorized|Forbidden|OAuth)Error", *_REFUSED),
    _Failure(f"{_DATABASE}.*", *_REFUSED, "authentication failed|no pg_hba.conf entry"),
    _Failure(f"{_DATABASE}OperationalError", *_REJECTED, 'database "[^"]*" does not exist'),
    _Failure(f"{_PYICEBERG}(BadRequest|REST)Error", *_REJECTED),
    _Failure(f"{_PYICEBERG}(Server|ServiceUnavailable|TooManyRequests)Error", *_DOWN),
    _Failure(f"{_REQUESTS}(ConnectionError|ConnectTimeout|ReadTimeout)", *_DOWN),
    _Failure(f"{_DATABASE}OperationalError", *_DOWN),
)


@contextmanager
def _failing_clearly(uri: str) -> Iterator[None]:
    try:
        yield
    except EbbtideError:
        raise
    except Exception as failure:
        name, text = f"{type(failure).__module__}.{type(failure).__qualname__}", str(failure)
        where = _without_user(uri)
        found = " ".join(text.replace(uri, where).split())
        for known in _FAILURES:
            if re.fullmatch(known.names, name) and re.search(known.text, text):
                raise known.error(
                    f"expected {known.expected} {where}, found: {found}. {known.remedy}"
                ) from failure
        raise


def _without_user(uri: str) -> str:
    """Return a URI without user and password, with PostgreSQL's hosts from its parameters."""
    shown = re.sub(r"//[^/]*@", "//", uri).partition("?")[0]
    hosts = [value for name, value in parse_qsl(urlsplit(uri).query) if name == "host"]
    return shown.replace(":///", f"://{','.join(hosts)}/", 1) if hosts else shown


@contextmanager
def _opened(settings: Mapping[str, Any], name: str) -> Iterator[Catalog | None]:
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
    """Return the settings in a spark-defaults.conf, parsed as Java properties as in Spark.

    Raise ConfigurationError if there is no such file.
    """
    import javaproperties

    if not path.exists():
        raise ConfigurationError(
            f"expected Spark's settings in {path}, found no file. Run `make setup`, or write the "
            "file as docs/deploy.md shows"
        )
    with path.open(encoding="utf-8") as file:
        return {name: value.strip() for name, value in javaproperties.load(file).items()}


def defaults_path() -> Path:
    """Return the path of spark-defaults.conf. Raise ConfigurationError without SPARK_CONF_DIR."""
    directory = os.environ.get("SPARK_CONF_DIR")
    if not directory:
        raise ConfigurationError(
            "expected the directory of spark-defaults.conf in SPARK_CONF_DIR, found none. Load "
            ".ebbtide/conf/airflow.env, which `make setup` writes, or set it as "
            "docs/deploy.md shows"
        )
    return Path(directory) / "spark-defaults.conf"


def catalog_settings(defaults: Mapping[str, str], catalog: str = CATALOG) -> dict[str, Any]:
    """Return pyiceberg's settings for one of Spark's catalogs.

    Raise ConfigurationError if pyiceberg cannot open it.
    """
    from ebbtide.stores import s3

    prefix = f"spark.sql.catalog.{catalog}."
    ours = {
        key.removeprefix(prefix): value for key, value in defaults.items() if key.startswith(prefix)
    }
    kind = kind_of(ours, prefix)
    if kind == "jdbc":
        files = {name: value for name, value in ours.items() if name.startswith(_OF_FILES)}
        settings = {"type": "sql", "uri": _sqlalchemy_uri(ours, prefix), **files}
        settings["warehouse"] = ours.get("warehouse", "")
    else:
        not_for_us = ("type", "catalog-impl", "io-impl", "cache-enabled")
        settings = {name: value for name, value in ours.items() if name not in not_for_us}
        settings["type"] = kind
        if kind == "rest":
            settings |= _authentication(ours, prefix)
    s3.settings_of(ours)  # raises for S3 settings that the jobs refuse
    return settings


def _authentication(ours: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Return pyiceberg's settings for Iceberg's `rest.auth.type`. Both default to OAuth 2."""
    kind = ours.get("rest.auth.type", "oauth2").lower()
    if kind == "oauth2":
        return {}
    if kind == "none":
        return {"auth": {"type": "noop"}}
    if kind == "basic":
        names = ("username", "password")
        missing = [name for name in names if f"rest.auth.basic.{name}" not in ours]
        if missing:
            raise ConfigurationError(
                f"expected {prefix}rest.auth.basic.{missing[0]} with rest.auth.type=basic, found "
                "none"
            )
        login = {name: ours[f"rest.auth.basic.{name}"] for name in names}
        return {"auth": {"type": "basic", "basic": login}}
    if kind == "sigv4":
        return {"rest.sigv4-enabled": "true"}
    raise ConfigurationError(
        f"expected none, basic, oauth2 or sigv4 in {prefix}rest.auth.type, found {kind}: Airflow's "
        "side supports only these"
    )


def _sqlalchemy_uri(ours: Mapping[str, str], prefix: str) -> str:
    """Return SQLAlchemy's URI of a JDBC catalog's database, with all hosts of PostgreSQL."""
    from sqlalchemy.engine import URL

    uri = ours["uri"]
    if uri.startswith(SQLITE):
        return f"sqlite:///{uri.removeprefix(SQLITE).partition('?')[0]}"
    parts = urlsplit(uri.removeprefix("jdbc:"))
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
    """Yield the parameters with libpq's names. Raise ConfigurationError for an unsupported one."""
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
                f"expected parameters in {prefix}uri that both PostgreSQL drivers know, found "
                f"{name}={value}. Leave it out, or set it in the database itself"
            )
