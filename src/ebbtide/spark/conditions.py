"""Join very many conditions as a balanced tree, which is only logarithmically deep.

Spark and Iceberg walk a condition recursively. Conditions joined one after the other make a tree as
deep as their number, and 8,000 of them overflow the stack. Spark itself balances `a OR b OR c` in
SQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from ebbtide.spark.jvm import iceberg_class

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


def any_expression(spark: SparkSession, conditions: Iterable[Any]) -> Any:
    """Join Iceberg's expressions into one that holds where any of them does."""
    expressions = iceberg_class(spark, "expressions.Expressions")
    # `or` is a word of Python, so this Java method is asked for by name.
    expression = balanced(conditions, getattr(expressions, "or"))
    return expressions.alwaysFalse() if expression is None else expression
