from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.engine import make_url

from ebbtide.errors import AccessDeniedError, ConfigurationError, UnavailableError
from ebbtide.lake.catalog_settings import catalog_settings, open_catalog, read_defaults

LAKE = "spark.sql.catalog.lake."


def of(**settings: str) -> dict[str, Any]:
    """What pyiceberg is told of a catalog; `_` stands for a dot in names."""
    return catalog_settings({LAKE + name.replace("_", "."): to for name, to in settings.items()})


def libpq(uri: str, **more: str) -> dict[str, str]:
    """What a connection is opened with in the end."""
    dsn = of(uri=uri, **more)["uri"]
    _, arguments = PGDialect_psycopg2().create_connect_args(make_url(dsn))
    return arguments


def test_defaults_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# said\n\nspark.a   b c\nspark.empty\n")
    assert read_defaults(file) == {"spark.a": "b c", "spark.empty": ""}


def test_parameters_of_a_jdbc_uri_are_libpqs() -> None:
    uri = libpq("jdbc:postgresql://db:5433/iceberg", jdbc_user="ebb", jdbc_password="t:d/e@ü?&%")
    place = {"host": "db", "port": "5433", "dbname": "iceberg"}
    assert uri == {**place, "user": "ebb", "password": "t:d/e@ü?&%"}
    uri = libpq(
        "jdbc:postgresql://a:5432,b/iceberg?currentSchema=lake&ApplicationName=night"
        "&targetServerType=primary&ssl=true&user=ebb&password=x&reWriteBatchedInserts=true"
    )
    assert uri == {
        "host": "a,b",
        "port": "5432,5432",
        "dbname": "iceberg",
        "user": "ebb",
        "password": "x",
        "options": "-csearch_path=lake",
        "application_name": "night",
        "target_session_attrs": "read-write",
        "sslmode": "verify-full",
    }


LOGIN = {"rest.auth.basic.username": "ebb", "rest.auth.basic.password": "tide"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"uri": "jdbc:postgresql://db/iceberg?kerberosServerName=x"}, "found kerberosServ"),
        ({"uri": "jdbc:mysql://h/d?password=x"}, "jdbc:postgresql:, found jdbc:mysql://h/d: "),
        ({"type": "nessie"}, r"one of jdbc, rest, glue, hive.* found nessie\."),
        ({"type": "hadoop"}, r"one of jdbc, rest, glue, hive.* found hadoop\."),
        ({"catalog-impl": "com.example.Catalog"}, r"one of jdbc, .* found com.example.Catalog\."),
        (
            {"type": "rest", "s3.sse.type": "kms"},
            r"^expected .* that ebbtide can follow, found s3\.sse\.type = kms\. Remove",
        ),
        (
            {"type": "rest", "rest.auth.type": "google"},
            r"^expected none, basic, .* in .*\.type, found google: Airflow's side supports only ",
        ),
        ({"type": "rest", "rest.auth.type": "basic"}, r"^expected .*basic\.username with"),
    ],
)
def test_what_cannot_be_followed_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        catalog_settings({LAKE + name: value for name, value in given.items()})


def test_a_catalog_behind_rest_takes_all_that_spark_knows_of_it() -> None:
    settings = catalog_settings(
        {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            f"{LAKE}catalog-impl": "org.apache.iceberg.rest.RESTCatalog",
            f"{LAKE}uri": "http://catalog",
            f"{LAKE}oauth2-server-uri": "http://login",
            f"{LAKE}credential": "a:b",
            f"{LAKE}io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "spark.sql.catalog.other.uri": "jdbc:sqlite:/x",
        }
    )
    assert settings == {
        "type": "rest",
        "uri": "http://catalog",
        "oauth2-server-uri": "http://login",
        "credential": "a:b",
    }


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        (None, {}, {}),
        ("oauth2", {}, {}),
        ("none", {}, {"auth": {"type": "noop"}}),
        ("sigv4", {}, {"rest.sigv4-enabled": "true"}),
        (
            "basic",
            LOGIN,
            {"auth": {"type": "basic", "basic": {"username": "ebb", "password": "tide"}}},
        ),
    ],
)
def test_a_login_at_a_catalog_behind_rest_is_followed(
    kind: str | None, more: dict[str, str], told: dict[str, Any]
) -> None:
    given = {"type": "rest", **({"rest.auth.type": kind} if kind else {}), **more}
    settings = catalog_settings({LAKE + name: to for name, to in given.items()})
    assert settings == {**given, **told}


class Catalog(BaseHTTPRequestHandler):
    """A catalog behind REST that wants one login, or fails."""

    status = 200
    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        self.send_response(self.status)
        self.end_headers()
        kind = {"error": {"message": "no", "type": "T", "code": self.status}}
        self.wfile.write(json.dumps(kind if self.status != 200 else CONFIG).encode())

    def log_message(self, *_: object) -> None:
        """Nothing: the test looks at what it gets."""


CONFIG = {"defaults": {}, "overrides": {}, "namespaces": []}


@pytest.fixture
def rest_catalog() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
    thread = Thread(target=server.serve_forever)
    thread.start()
    Catalog.seen.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def opened(settings: dict[str, Any]) -> list[tuple[str, ...]]:
    with open_catalog(settings, "lake") as catalog:
        assert catalog is not None
        return list(catalog.list_namespaces())


def namespaces(uri: str, **more: str) -> list[tuple[str, ...]]:
    given = {"type": "rest", "uri": uri, **more}
    return opened(catalog_settings({LAKE + name: value for name, value in given.items()}))


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ConfigurationError),
        (401, AccessDeniedError),
        (403, AccessDeniedError),
        (418, ConfigurationError),
        (500, UnavailableError),
    ],
)
def test_what_a_catalog_behind_rest_refuses_is_said(
    rest_catalog: str, status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "status", status)
    with pytest.raises(error, match=rf"^expected .* {rest_catalog}, found: .*\. (Correct|Run) "):
        namespaces(rest_catalog)


def test_basic_authentication_reaches_the_catalog(rest_catalog: str) -> None:
    assert namespaces(rest_catalog, **{"rest.auth.type": "basic"}, **LOGIN) == []
    assert set(Catalog.seen) == {"Basic " + b64encode(b"ebb:tide").decode()}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "rest", "uri": "http://127.0.0.1:1"},
        {"type": "jdbc", "uri": "jdbc:postgresql://127.0.0.1:1/x?user=ebb&password=secret"},
    ],
)
def test_a_catalog_that_is_down_is_said(given: dict[str, str]) -> None:
    settings = catalog_settings({LAKE + name: value for name, value in given.items()})
    message = r"^expected an answer from the catalog \S+//127\.0\.0\.1:1\S*, found: .*efused"
    with pytest.raises(UnavailableError, match=message) as failure:
        opened(settings)
    assert "secret" not in str(failure.value)


def test_settings_of_a_store_go_on_as_spark_has_them() -> None:
    of_a_store = {
        "s3.endpoint": "http://s3",
        "client.region": "r",
        "http-client.apache.socket-timeout-ms": "2500",
    }
    settings = of(type="jdbc", uri="jdbc:sqlite:/x", **of_a_store)
    assert settings == {"type": "sql", "uri": "sqlite:////x", "warehouse": "", **of_a_store}
