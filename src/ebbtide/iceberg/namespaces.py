"""Namespaces of a catalog."""

from __future__ import annotations

from threading import Lock

from pyspark.sql import SparkSession

# Topics are created in threads, and the JDBC catalog checks and inserts in two steps.
_ONE_AT_A_TIME = Lock()


def create_namespace(spark: SparkSession, namespace: str) -> None:
    """Create the namespace, given as an SQL identifier, where it does not exist."""
    with _ONE_AT_A_TIME:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
