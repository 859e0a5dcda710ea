"""Open a table's files outside Iceberg, with the settings of the table's own FileIO."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

from ebbtide.log.settings.names import CATALOG
from ebbtide.spark.jvm import ICEBERG, as_dict, items
from ebbtide.stores.catalogs import kind_of
from ebbtide.stores.store import Store

_VENDING = ICEBERG + "io.SupportsStorageCredentials"


def store_of(spark: SparkSession, table: Any) -> Store:
    """Return a store with the settings of a table's FileIO and the credentials vended for it."""
    file_io = table.io()
    properties = as_dict(spark, file_io.properties())
    gateway = spark.sparkContext._gateway
    if is_instance_of(gateway, file_io, _VENDING):
        location = str(table.location())
        fitting = [c for c in items(file_io.credentials()) if location.startswith(str(c.prefix()))]
        for credential in sorted(fitting, key=lambda c: len(str(c.prefix()))):
            properties |= as_dict(spark, credential.config())
    return Store.of(properties)


def catalog_store(spark: SparkSession, catalog: str = CATALOG) -> Store:
    """Return a store with the settings of one of Spark's catalogs, for files outside its tables."""
    return Store.of(_settings_of(spark, catalog))


def check_catalog(spark: SparkSession, catalog: str = CATALOG) -> None:
    """Raise ConfigurationError if Airflow's side or the tasks cannot follow a catalog's settings.

    The catalog is not opened: a JDBC catalog creates its own tables then.
    """
    kind_of(_settings_of(spark, catalog), f"spark.sql.catalog.{catalog}.")
    catalog_store(spark, catalog)


def _settings_of(spark: SparkSession, catalog: str) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{catalog}."
    settings = as_dict(spark, spark.conf._jconf.getAllAsJava())
    return {n.removeprefix(prefix): settings[n] for n in settings if n.startswith(prefix)}
