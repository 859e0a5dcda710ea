from __future__ import annotations

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.stores.databases import check_database

PREFIX = "spark.sql.catalog.lake."
JDBC = "org.apache.iceberg.jdbc.JdbcCatalog"


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "jdbc", "uri": "jdbc:sqlite:/x"},
        {"catalog-impl": JDBC, "uri": "jdbc:postgresql://db/x"},
        {"type": "rest", "uri": "http://catalog"},
        {"type": "hive", "uri": "thrift://hive"},
    ],
)
def test_what_both_sides_read_is_taken(settings: dict[str, str]) -> None:
    check_database(settings, PREFIX)


@pytest.mark.parametrize("kind", [{"type": "jdbc"}, {"catalog-impl": JDBC}, {}])
def test_another_database_is_refused(kind: dict[str, str]) -> None:
    message = (
        r"^expected spark.sql.catalog.lake.uri to start with jdbc:sqlite: or "
        r"jdbc:postgresql:, found 'jdbc:mariadb://h/d'$"
    )
    with pytest.raises(ConfigurationError, match=message):
        check_database({**kind, "uri": "jdbc:mariadb://h/d?password=x"}, PREFIX)
