"""SQL expressions in a topic's settings: functions of one record, checked before a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from py4j.protocol import Py4JJavaError
from pyroaring import BitMap64
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from ebbtide.errors import ConfigurationError
from ebbtide.spark.jvm import iceberg_class, items, java_class, java_list

# Many conditions are joined as a balanced tree, whose depth is logarithmic.
#
# Spark and Iceberg walk a condition recursively. Conditions joined one after the other make a tree
# as deep as their number, and 8,000 of them overflow the stack. Spark itself balances `a OR b OR c`
# in SQL text.


T = TypeVar("T")


def balanced(parts: Iterable[T], join: Callable[[T, T], T]) -> T | None:
    """Join all parts pairwise, in their order; return None for none."""
    level = list(parts)
    while len(level) > 1:
        last = level[-1:] if len(level) % 2 else []
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [join(left, right) for left, right in pairs] + last
    return level[0] if level else None


def any_of(conditions: Iterable[str]) -> str:
    """Return an SQL condition that is true if any of the conditions is."""
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def any_column(conditions: Iterable[Column]) -> Column:
    """Join conditions into one that is true if any of them is."""
    condition = balanced(conditions, Column.__or__)
    return F.lit(False) if condition is None else condition


class IcebergExpressions(NamedTuple):
    """Iceberg's class Expressions, whose methods `and`, `or` and `in` are Python keywords."""

    spark: SparkSession
    java: Any

    @classmethod
    def of(cls, spark: SparkSession) -> IcebergExpressions:
        """Return the class of the session's JVM."""
        return cls(spark, iceberg_class(spark, "expressions.Expressions"))

    def both(self, one: Any, other: Any) -> Any:
        """Return an expression that is true if both are."""
        return getattr(self.java, "and")(one, other)

    def either(self, one: Any, other: Any) -> Any:
        """Return an expression that is true if one of them is."""
        return getattr(self.java, "or")(one, other)

    def one_of(self, column: str, numbers: Sequence[int]) -> Any:
        """Return an expression that is true if the column has one of the numbers."""
        return getattr(self.java, "in")(column, java_list(self.spark, numbers))

    def rows_from(self, column: str, starts: Mapping[int, int]) -> Any:
        """Return an expression for the rows at or above each partition's start in `column`."""
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


# Spark's function builds bitmaps of 2^15 bits.
_BITS = 15


def number_sets(
    rows: DataFrame, keys: Sequence[str], number: str
) -> dict[tuple[Any, ...], BitMap64]:
    """Return the set of numbers, all non-negative, of the rows with the same keys."""
    of_row = F.col(number).cast("long")
    bitmaps = rows.groupBy(*keys, F.shiftright(of_row, _BITS).alias("_place")).agg(
        F.bitmap_construct_agg(of_row.bitwiseAND(F.lit((1 << _BITS) - 1))).alias("_bits")
    )
    sets: dict[tuple[Any, ...], BitMap64] = {}
    for *of_keys, place, bits in bitmaps.toLocalIterator():
        is_set = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        numbers = np.flatnonzero(is_set).astype(np.uint64) + np.uint64(place << _BITS)
        of_group = sets.setdefault(tuple(of_keys), BitMap64())
        of_group |= BitMap64(numbers)
    return sets


# Columns of the records table that an expression may use.
COLUMNS = """
    key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP
"""
_CATALYST = "org.apache.spark.sql.catalyst."
# Words that Spark replaces with a time: the parser in `TIMESTAMP 'now'`, the optimizer in a cast.
_WORDS = re.compile(r"\s*(now|today|tomorrow|yesterday|epoch)\b", re.IGNORECASE)
_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
# Spark's error for a data exception (by SQLSTATE), or an error that the expression raises. Its text
# has the record's data, which must not be logged.
_DATA_EXCEPTION = re.compile(
    r"\[([A-Z_.]+)\] (?:(?!\[[A-Z_.]+\] ).)*?SQLSTATE: (?:22\w{3}|P0001)", re.DOTALL
)


class Expression(NamedTuple):
    """An expression in a setting; `expected` describes valid ones in errors."""

    setting: str  # as its owner wrote it, up to the expression
    text: str
    expected: str

    @property
    def column(self) -> Column:
        """The expression as a column."""
        return F.expr(self.text)

    def type(self, spark: SparkSession) -> DataType:
        """Return the expression's type.

        Raise ConfigurationError if it is not a function of one record.
        """
        empty = spark.createDataFrame([], COLUMNS)
        try:
            # WHERE refuses aggregates, window functions and generators.
            judged = empty.where(self.column.isNull())
            data_type = empty.select(self.column).schema[0].dataType
        except PySparkException as error:
            raise self.refused(str(error).strip().splitlines()[0]) from error
        if reason := self._not_of_one_record(judged):
            raise self.refused(reason)
        return data_type

    def _not_of_one_record(self, judged: DataFrame) -> str | None:
        """Return why the expression may differ between evaluations, or None if it cannot."""
        spark, condition = judged.sparkSession, _condition(judged)
        if java_class(spark, _CATALYST + "expressions.SubqueryExpression").hasSubquery(condition):
            return "one with a subquery"
        if not condition.deterministic():
            return "one that is not deterministic"
        # Spark counts these as deterministic, because they have one value per query.
        current = java_class(spark, _CATALYST + "trees.TreePattern").CURRENT_LIKE()
        if condition.containsPattern(current):
            return "one that depends on the time, user or place of the run"
        if _has_literal_of_the_run(spark, self.text) or _casts_words_of_the_run(judged):
            return (
                "one with text that Spark replaces with a time, such as now, today, tomorrow, "
                "yesterday or epoch"
            )
        return None

    def refused(self, actual: str) -> ConfigurationError:
        """Return the error for this expression, with its setting."""
        return ConfigurationError(
            f"expected {self.expected} in {self.setting}{self.text}, found {actual}"
        )

    @contextmanager
    def failing_clearly(self) -> Iterator[None]:
        """Convert an error of the expression on a record to one that names the setting."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            failed = None if isinstance(error, AnalysisException) else _failure(error)
            if failed is None:
                raise
            raise self.refused(
                f"that it fails on a record with {failed}. Use functions that return null instead, "
                "such as try_cast, try_divide and try_element_at"
            ) from error


def _condition(judged: DataFrame) -> Any:
    return judged._jdf.queryExecution().analyzed().condition()


def _casts_words_of_the_run(judged: DataFrame) -> bool:
    """Return whether the expression casts a word such as 'now' to a time.

    Only the optimizer's rule SpecialDatetimeValues replaces such a cast. A cast of a record's text
    is not affected, nor one of text that constant folding produces.
    """
    spark, analyzed = judged.sparkSession, judged._jdf.queryExecution().analyzed()
    replaced = java_class(spark, _CATALYST + "optimizer.ReplaceExpressions").apply(analyzed)
    rule = java_class(spark, _CATALYST + "optimizer.SpecialDatetimeValues")
    return not rule.apply(replaced).equals(replaced)


def _has_literal_of_the_run(spark: SparkSession, text: str) -> bool:
    """Return whether the parser would replace a literal such as `TIMESTAMP 'now'` with a time."""
    lexer = java_class(spark, _CATALYST + "parser.SqlBaseLexer")
    characters = java_class(spark, "org.antlr.v4.runtime.CharStreams").fromString(text)
    stream = java_class(spark, _CATALYST + "parser.UpperCaseCharStream")(characters)
    parser = spark._jsparkSession.sessionState().sqlParser()
    strings = (lexer.STRING_LITERAL, lexer.DOUBLEQUOTED_STRING)
    tokens = [token for token in items(lexer(stream).getAllTokens()) if not token.getChannel()]
    literals = (
        token.getText()
        for before, token in pairwise(tokens)
        if token.getType() in strings and before.getText().upper().strip("`") in _TYPES
    )
    return any(_WORDS.match(parser.parseExpression(text).toString()) for text in literals)


def _failure(error: Exception) -> str | None:
    match = _DATA_EXCEPTION.search(str(error))
    return match.group(1) if match else None
