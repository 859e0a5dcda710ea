"""Get classes of the driver's JVM by their full names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

ICEBERG = "org.apache.iceberg."


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a Java class; `spark._jvm.org.apache...` searches all jars at each dot, for 2 ms."""
    return JavaClass(name, spark.sparkContext._gateway._gateway_client)  # type: ignore[union-attr]


def iceberg_class(spark: SparkSession, name: str) -> Any:
    """Return a class of Iceberg by its name below `org.apache.iceberg`."""
    return java_class(spark, ICEBERG + name)


def items(java_list: Any) -> list[Any]:
    """Return the items of a Java list; `for` would end by a Java exception, which takes 60 ms."""
    return [java_list.get(number) for number in range(java_list.size())]


def as_dict(spark: SparkSession, of: Any) -> dict[str, str]:
    """Read a Java map in one call; reading it entry by entry takes two calls for each."""
    entries: dict[str, str] = json.loads(_mapper(spark).writeValueAsString(of))
    return entries


def java_map(spark: SparkSession, values: Mapping[str, str]) -> Any:
    """Build a Java map of strings in one call."""
    kind = java_class(spark, "java.lang.Class").forName("java.util.HashMap")
    return _mapper(spark).readValue(json.dumps(dict(values)), kind)


def java_array(spark: SparkSession, texts: Sequence[str]) -> Any:
    """Return a Java array of strings, for a method that takes any number of them."""
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(java_class(spark, "java.lang.String"), len(texts))
    for number, text in enumerate(texts):
        array[number] = text
    return array


def _mapper(spark: SparkSession) -> Any:
    return java_class(spark, "com.fasterxml.jackson.databind.ObjectMapper")()
