"""Get classes of the driver's JVM by their full names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

ICEBERG = "org.apache.iceberg."
_PRIMITIVES = {"long": "java.lang.Long"}


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a Java class; `spark._jvm.org.apache...` searches all jars at each dot, for 2 ms."""
    return JavaClass(name, spark.sparkContext._gateway._gateway_client)  # type: ignore[union-attr]


def iceberg_class(spark: SparkSession, name: str) -> Any:
    """Return a class of Iceberg by its name below `org.apache.iceberg`."""
    return java_class(spark, ICEBERG + name)


def find_once_for_errors(spark: SparkSession) -> None:
    """Let PySpark find at once the class that it asks a dozen questions for each Java exception.

    Otherwise it goes by `_jvm.py4j.reflection.TypeUtil` each time: 18 ms for an exception, not 6.
    """
    jvm: Any = spark.sparkContext._jvm
    asked = java_class(spark, "py4j.reflection.TypeUtil")
    jvm.py4j = SimpleNamespace(reflection=SimpleNamespace(TypeUtil=asked))


def items(java_list: Any) -> list[Any]:
    """Return the items of a Java list; `for` would end by a Java exception, which takes 6 ms."""
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


def java_list(spark: SparkSession, values: Sequence[str] | Sequence[int]) -> Any:
    """Build a Java list of strings, or of numbers as Integer or else Long, in one call."""
    kind = java_class(spark, "java.lang.Class").forName("java.util.ArrayList")
    return _mapper(spark).readValue(json.dumps(list(values)), kind)


class JavaMethod(NamedTuple):
    """A public method that the JVM calls once for each item of a list, by one call from here.

    An own call for each item takes half a millisecond, and holds back Python's other threads.
    """

    spark: SparkSession
    handle: Any  # java.lang.invoke.MethodHandle

    @classmethod
    def of(cls, spark: SparkSession, owner: str, name: str, *parameters: str) -> JavaMethod:
        """Find the method of a class by the classes of its parameters, all by their full names."""
        kinds = spark.sparkContext._gateway.new_array(  # type: ignore[union-attr]
            java_class(spark, "java.lang.Class"), len(parameters)
        )
        for number, parameter in enumerate(parameters):
            kinds[number] = _class_object(spark, parameter)
        method = _class_object(spark, owner).getMethod(name, kinds)
        lookup = java_class(spark, "java.lang.invoke.MethodHandles").publicLookup()
        return cls(spark, lookup.unreflect(method))

    def on(self, receiver: Any) -> JavaMethod:
        """Return the method of this object, so that an item is its first parameter."""
        return self._replace(handle=self.handle.bindTo(receiver))

    def with_last(self, position: int, value: Any) -> JavaMethod:
        """Return the method with this value for its last parameter, whose position is given."""
        values = self.spark.sparkContext._gateway.new_array(  # type: ignore[union-attr]
            java_class(self.spark, "java.lang.Object"), 1
        )
        values[0] = value
        handles = java_class(self.spark, "java.lang.invoke.MethodHandles")
        return self._replace(handle=handles.insertArguments(self.handle, position, values))

    def then(self, other: JavaMethod) -> JavaMethod:
        """Return the method that gives its result to another one."""
        handles = java_class(self.spark, "java.lang.invoke.MethodHandles")
        return self._replace(handle=handles.filterReturnValue(self.handle, other.handle))

    def for_each(self, java_list: Any) -> None:
        """Call it with each item."""
        java_list.forEach(self.as_a("java.util.function.Consumer"))

    def map(self, java_list: Any) -> Any:
        """Return a Java list of its result for each item."""
        collected = java_class(self.spark, "java.util.stream.Collectors").toList()
        mapped = java_list.stream().map(self.as_a("java.util.function.Function"))
        return mapped.collect(collected)

    def call(self) -> Any:
        """Call it without arguments; py4j finds no static method beside another of its name."""
        return self.handle.invokeWithArguments(java_class(self.spark, "java.util.ArrayList")())

    def as_a(self, interface: str) -> Any:
        """Return an object of a Java interface with one method, which calls it."""
        proxies = java_class(self.spark, "java.lang.invoke.MethodHandleProxies")
        kind = _class_object(self.spark, interface)
        return proxies.asInterfaceInstance(kind, self.handle)


def texts(spark: SparkSession, of: Any) -> list[str]:
    """Read a Java list of strings in one call."""
    read: list[str] = json.loads(_mapper(spark).writeValueAsString(of))
    return read


def _class_object(spark: SparkSession, name: str) -> Any:
    """Return Java's object for a class or a primitive type, also of jars that Spark has added."""
    if name in _PRIMITIVES:
        return java_class(spark, _PRIMITIVES[name]).TYPE
    loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
    return java_class(spark, "java.lang.Class").forName(name, True, loader)


def _mapper(spark: SparkSession) -> Any:
    return java_class(spark, "com.fasterxml.jackson.databind.ObjectMapper")()
