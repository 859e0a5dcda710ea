"""Classes of the driver's JVM, asked for by their full names."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

ICEBERG = "org.apache.iceberg."


def java_class(spark: SparkSession, name: str) -> Any:
    """A Java class; `spark._jvm.org.apache...` looks into every jar at each dot, 2 ms a time."""
    return JavaClass(name, spark.sparkContext._gateway._gateway_client)  # type: ignore[union-attr]


def iceberg_class(spark: SparkSession, name: str) -> Any:
    """A class of Iceberg by its name below `org.apache.iceberg`."""
    return java_class(spark, ICEBERG + name)


def items(java_list: Any) -> list[Any]:
    """The items of a Java list; `for` would end by an exception of Java's, 60 ms of work here."""
    return [java_list.get(number) for number in range(java_list.size())]
