from __future__ import annotations

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.stores.catalogs import kind_of, shown

PREFIX = "spark.sql.catalog.lake."
JDBC = "org.apache.iceberg.jdbc.JdbcCatalog"


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"type": "jdbc", "uri": "jdbc:sqlite:/x"}, "jdbc"),
        ({"catalog-impl": JDBC, "uri": "jdbc:postgresql://db/x"}, "jdbc"),
        ({"uri": "jdbc:postgresql://db/x"}, "jdbc"),
        ({"type": "REST", "uri": "http://catalog"}, "rest"),
        ({"catalog-impl": "org.apache.iceberg.rest.RESTCatalog"}, "rest"),
        ({"type": "hive", "uri": "thrift://hive"}, "hive"),
        ({"type": "glue"}, "glue"),
    ],
)
def test_what_both_sides_open_is_taken(settings: dict[str, str], kind: str) -> None:
    assert kind_of(settings, PREFIX) == kind


@pytest.mark.parametrize("kind", [{"type": "jdbc"}, {"catalog-impl": JDBC}, {}])
def test_another_database_is_refused(kind: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        kind_of({**kind, "uri": "jdbc:mariadb://me:x@h/d?password=x"}, PREFIX)
    assert str(refused.value) == (
        "expected spark.sql.catalog.lake.uri in spark-defaults.conf to start with jdbc:sqlite: or "
        "jdbc:postgresql:, found jdbc:mariadb://h/d: Airflow's side cannot read other databases. "
        "Nothing was written. Use a catalog in PostgreSQL, or a REST catalog (docs/stores.md)"
    )


def test_a_database_without_a_uri_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="found none: Airflow's side"):
        kind_of({"type": "jdbc"}, PREFIX)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"type": "nessie", "uri": "http://nessie/api/v2"}, "lake.type .* found nessie"),
        ({"type": "hadoop"}, "lake.type .* found hadoop"),
        ({"catalog-impl": "com.example.Catalog"}, "lake.catalog-impl .* found com.example.Catalog"),
        ({}, "lake.catalog-impl .* found none"),
    ],
)
def test_a_catalog_that_airflows_side_does_not_open_is_refused(
    settings: dict[str, str], said: str
) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{said}\. Nothing was written\. Use another catalog"
    ):
        kind_of(settings, PREFIX)


@pytest.mark.parametrize(
    ("uri", "without"),
    [
        ("jdbc:postgresql://me:se@cret@h:1,i/d?password=x", "jdbc:postgresql://h:1,i/d"),
        ("jdbc:sqlite:/lake/catalog.db?busy_timeout=9", "jdbc:sqlite:/lake/catalog.db"),
    ],
)
def test_a_uri_is_shown_without_its_login(uri: str, without: str) -> None:
    assert shown(uri) == without
