"""Get classes of the driver's JVM by full name, and call them with few messages.

A call takes 0.1 to 0.2 ms of CPU time, and so does each Java object that Python releases. Classes,
methods and parsers never change, so each is requested once per process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from py4j.java_gateway import JavaClass, JavaMember
from pyspark.sql import SparkSession

ICEBERG = "org.apache.iceberg."
_PRIMITIVES = {"long": "java.lang.Long"}


class _KnownClass(JavaClass):  # type: ignore[misc]
    """A Java class that requests each of its static methods only once."""

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):
            setattr(self, name, member)
        return member


@cache
def _known_class(client: Any, name: str) -> Any:
    return _KnownClass(name, client)


def _client(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a Java class.

    `spark._jvm.org.apache...` would search all jars at each dot, in 2 ms.
    """
    return _known_class(_client(spark), name)


def iceberg_class(spark: SparkSession, name: str) -> Any:
    """Return a class of Iceberg by its name after `org.apache.iceberg.`."""
    return java_class(spark, ICEBERG + name)


def find_once_for_errors(spark: SparkSession) -> None:
    """Cache the class that PySpark calls a dozen times for each Java exception.

    Without this, PySpark looks up `_jvm.py4j.reflection.TypeUtil` each time: 18 ms per exception,
    not 6.
    """
    jvm: Any = spark.sparkContext._jvm
    asked = java_class(spark, "py4j.reflection.TypeUtil")
    jvm.py4j = SimpleNamespace(reflection=SimpleNamespace(TypeUtil=asked))


def items(java_list: Any) -> list[Any]:
    """Return the items of a Java list. `for` would end with a Java exception, which takes 6 ms."""
    return [java_list.get(number) for number in range(java_list.size())]


def as_dict(spark: SparkSession, java_map: Any) -> dict[str, str]:
    """Read a Java map in one call, instead of two calls per entry."""
    entries: dict[str, str] = json.loads(_mapper(spark).writeValueAsString(java_map))
    return entries


def java_map(spark: SparkSession, values: Mapping[str, str]) -> Any:
    """Build a Java map of strings in one call."""
    kind = _class_object(_client(spark), "java.util.HashMap")
    return _mapper(spark).readValue(json.dumps(dict(values)), kind)


def java_array(spark: SparkSession, texts: Sequence[str]) -> Any:
    """Return a Java array of strings, for a varargs method."""
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(java_class(spark, "java.lang.String"), len(texts))
    for number, text in enumerate(texts):
        array[number] = text
    return array


def java_list(spark: SparkSession, values: Sequence[str] | Sequence[int]) -> Any:
    """Build a Java list of strings, or of Integers (Longs for large numbers), in one call."""
    kind = _class_object(_client(spark), "java.util.ArrayList")
    return _mapper(spark).readValue(json.dumps(list(values)), kind)


class JavaMethod(NamedTuple):
    """A public method that the JVM calls for each item of a list, with one call from Python.

    One call per item from Python would take half a millisecond each, and block Python's other
    threads.
    """

    spark: SparkSession
    handle: Any  # java.lang.invoke.MethodHandle

    @classmethod
    def of(cls, spark: SparkSession, owner: str, name: str, *parameters: str) -> JavaMethod:
        """Find the method of a class by the classes of its parameters, all by full name."""
        gateway = spark.sparkContext._gateway
        return cls(spark, _method_handle(gateway, owner, name, parameters))

    def on(self, receiver: Any) -> JavaMethod:
        """Bind the method to this object, so that an item is its first parameter."""
        return self._replace(handle=self.handle.bindTo(receiver))

    def with_last(self, position: int, value: Any) -> JavaMethod:
        """Bind the method's last parameter, whose position is given, to this value."""
        values = self.spark.sparkContext._gateway.new_array(  # type: ignore[union-attr]
            java_class(self.spark, "java.lang.Object"), 1
        )
        values[0] = value
        handles = java_class(self.spark, "java.lang.invoke.MethodHandles")
        return self._replace(handle=handles.insertArguments(self.handle, position, values))

    def then(self, other: JavaMethod) -> JavaMethod:
        """Return the composition: the result of this method is the argument of `other`."""
        handles = java_class(self.spark, "java.lang.invoke.MethodHandles")
        return self._replace(handle=handles.filterReturnValue(self.handle, other.handle))

    def for_each(self, java_list: Any) -> None:
        """Call the method with each item."""
        java_list.forEach(self.as_a("java.util.function.Consumer"))

    def map(self, java_list: Any) -> Any:
        """Return a Java list of the method's result for each item."""
        collected = java_class(self.spark, "java.util.stream.Collectors").toList()
        mapped = java_list.stream().map(self.as_a("java.util.function.Function"))
        return mapped.collect(collected)

    def call(self) -> Any:
        """Call the method without arguments; py4j does not find a static overload."""
        return self.handle.invokeWithArguments(_no_arguments(_client(self.spark)))

    def as_a(self, interface: str) -> Any:
        """Return an object of a Java functional interface that calls the method."""
        proxies = java_class(self.spark, "java.lang.invoke.MethodHandleProxies")
        kind = _class_object(_client(self.spark), interface)
        return proxies.asInterfaceInstance(kind, self.handle)


def texts(spark: SparkSession, java_list: Any) -> list[str]:
    """Read a Java list of strings in one call."""
    read: list[str] = json.loads(_mapper(spark).writeValueAsString(java_list))
    return read


@cache
def _method_handle(gateway: Any, owner: str, name: str, parameters: tuple[str, ...]) -> Any:
    client = gateway._gateway_client
    kinds = gateway.new_array(_known_class(client, "java.lang.Class"), len(parameters))
    for number, parameter in enumerate(parameters):
        kinds[number] = _class_object(client, parameter)
    method = _class_object(client, owner).getMethod(name, kinds)
    lookup = _known_class(client, "java.lang.invoke.MethodHandles").publicLookup()
    return lookup.unreflect(method)


@cache
def _class_object(client: Any, name: str) -> Any:
    """Return Java's Class of a class or primitive type, also from jars that Spark has added."""
    if name in _PRIMITIVES:
        return _known_class(client, _PRIMITIVES[name]).TYPE
    loader = _known_class(client, "java.lang.Thread").currentThread().getContextClassLoader()
    return _known_class(client, "java.lang.Class").forName(name, True, loader)


def _mapper(spark: SparkSession) -> Any:
    return _known_mapper(_client(spark))


@cache
def _no_arguments(client: Any) -> Any:
    return _known_class(client, "java.util.Collections").emptyList()


@cache
def _known_mapper(client: Any) -> Any:
    return _known_class(client, "com.fasterxml.jackson.databind.ObjectMapper")()
