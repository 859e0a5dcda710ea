"""Get a catalog's tables from Iceberg directly: Spark would analyse a statement for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.spark.jvm import iceberg_class, java_array, java_class

_MISSING = (
    "org.apache.iceberg.exceptions.NoSuchTableException",
    "org.apache.iceberg.exceptions.NoSuchNamespaceException",
)
_PART = re.compile(r"`((?:[^`]|``)*)`")


def java_table(spark: SparkSession, table: str) -> Any:
    """Load Iceberg's own table object, freshly."""
    return _util(spark).loadIcebergTable(spark._jsparkSession, table)


def table_exists(spark: SparkSession, table: str) -> bool:
    """Return whether there is such a table, given as a quoted SQL identifier; a view is none."""
    return find_table(spark, table) is not None


def find_table(spark: SparkSession, table: str) -> Any | None:
    """Load Iceberg's own table object, freshly; None where there is no such table."""
    catalog, *names = (part.replace("``", "`") for part in _PART.findall(table))
    try:
        return iceberg_catalog(spark, catalog).loadTable(identifier(spark, names))
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() in _MISSING:
            return None
        raise


def iceberg_catalog(spark: SparkSession, name: str) -> Any:
    """Return Iceberg's catalog behind one of Spark's."""
    return _util(spark).loadIcebergCatalog(spark._jsparkSession, name)


def identifier(spark: SparkSession, names: Sequence[str]) -> Any:
    """Return Iceberg's identifier of a table; namespaces and name may hold any character."""
    return iceberg_class(spark, "catalog.TableIdentifier").of(java_array(spark, names))


def _util(spark: SparkSession) -> Any:
    """Return Iceberg's helper for Spark's catalogs, with the active session set to this one.

    The helper uses the thread's active session, whichever session it is given.
    """
    sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
    sessions.setActiveSession(spark._jsparkSession)
    return iceberg_class(spark, "spark.Spark3Util")
