"""Join very many conditions as a balanced tree, which is only logarithmically deep.

Spark and Iceberg walk a condition recursively. Conditions joined one after the other make a tree as
deep as their number, and 8,000 of them overflow the stack. Spark itself balances `a OR b OR c` in
SQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from ebbtide.spark.jvm import iceberg_class, java_class, java_list

T = TypeVar("T")


def balanced(parts: Iterable[T], join: Callable[[T, T], T]) -> T | None:
    """Return all parts joined two by two, in their order; None for none."""
    level = list(parts)
    while len(level) > 1:
        last = level[-1:] if len(level) % 2 else []
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [join(left, right) for left, right in pairs] + last
    return level[0] if level else None


def any_of(conditions: Iterable[str]) -> str:
    """Return a condition in SQL that holds where one of them does."""
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def any_column(conditions: Iterable[Column]) -> Column:
    """Join conditions into one that holds where any of them does."""
    condition = balanced(conditions, Column.__or__)
    return F.lit(False) if condition is None else condition


class IcebergExpressions(NamedTuple):
    """Iceberg's class of expressions; methods whose names are words of Python are asked for so."""

    spark: SparkSession
    java: Any

    @classmethod
    def of(cls, spark: SparkSession) -> IcebergExpressions:
        """Return those of the session's JVM."""
        return cls(spark, iceberg_class(spark, "expressions.Expressions"))

    def both(self, one: Any, other: Any) -> Any:
        """Return an expression that holds where both do."""
        return getattr(self.java, "and")(one, other)

    def either(self, one: Any, other: Any) -> Any:
        """Return an expression that holds where one of them does."""
        return getattr(self.java, "or")(one, other)

    def one_of(self, column: str, numbers: Sequence[int]) -> Any:
        """Return an expression that holds where a column has one of the numbers."""
        return getattr(self.java, "in")(column, java_list(self.spark, numbers))

    def rows_from(self, column: str, starts: Mapping[int, int]) -> Any:
        """Return an expression for the rows of partitions from a number of each on."""
        to_long = java_class(self.spark, "java.lang.Long")
        parts = (
            self.both(
                self.java.equal("partition", partition),
                self.java.greaterThanOrEqual(column, to_long(start)),
            )
            for partition, start in starts.items()
        )
        rows = balanced(parts, self.either)
        return self.java.alwaysFalse() if rows is None else rows
