from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.engine import make_url

from ebbtide.errors import ConfigurationError
from ebbtide.lake.catalog_settings import catalog_settings, read_defaults

LAKE = "spark.sql.catalog.lake."


def of(**settings: str) -> dict[str, str]:
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


def test_a_database_keeps_its_user_and_its_password() -> None:
    uri = libpq("jdbc:postgresql://db:5433/iceberg", jdbc_user="ebb", jdbc_password="t:d/e@ü?&%")
    assert uri == {
        "host": "db",
        "port": "5433",
        "dbname": "iceberg",
        "user": "ebb",
        "password": "t:d/e@ü?&%",
    }


def test_parameters_of_a_jdbc_uri_are_libpqs() -> None:
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


def test_a_parameter_that_only_java_knows_is_refused() -> None:
    message = r"expected parameters in spark.sql.catalog.lake.uri that both .* found kerberosServ"
    with pytest.raises(ConfigurationError, match=message):
        of(uri="jdbc:postgresql://db/iceberg?kerberosServerName=x")


def test_another_database_is_refused() -> None:
    message = (
        r"^expected spark.sql.catalog.lake.uri to start with jdbc:sqlite: or "
        r"jdbc:postgresql:, found 'jdbc:mysql://h/d'$"
    )
    with pytest.raises(ConfigurationError, match=message):
        of(uri="jdbc:mysql://h/d?password=x")


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


@pytest.mark.parametrize("kind", ["nessie", "hadoop", "com.example.Catalog"])
def test_a_catalog_that_only_spark_knows_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"one of jdbc, rest, glue, hive.* found {kind}$"):
        of(type=kind) if "." not in kind else catalog_settings({f"{LAKE}catalog-impl": kind})


def test_settings_of_a_store_go_on_as_spark_has_them() -> None:
    of_a_store = {
        "s3.endpoint": "http://s3",
        "client.region": "r",
        "http-client.apache.socket-timeout-ms": "2500",
    }
    settings = of(type="jdbc", uri="jdbc:sqlite:/x", **of_a_store)
    assert settings == {"type": "sql", "uri": "sqlite:////x", "warehouse": "", **of_a_store}


def test_a_setting_of_a_store_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^expected no s3\.sse\.type = kms among"):
        catalog_settings({f"{LAKE}type": "rest", f"{LAKE}s3.sse.type": "kms"})
