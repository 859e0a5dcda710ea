"""SQL expressions that a topic's settings hold: functions of one record, checked before a run."""

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

# Join very many conditions as a balanced tree, which is only logarithmically deep.
#
# Spark and Iceberg walk a condition recursively. Conditions joined one after the other make a
# tree as deep as their number, and 8,000 of them overflow the stack. Spark itself balances `a OR
# b OR c` in SQL text.


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


# Of the bitmaps that Spark's function builds.
_BITS = 15


def number_sets(
    rows: DataFrame, keys: Sequence[str], number: str
) -> dict[tuple[Any, ...], BitMap64]:
    """Return the numbers, which are not negative, of the rows with the same keys."""
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
# What Spark takes for a time of its own: in `TIMESTAMP 'now'` the parser, in a cast the optimizer.
_WORDS = re.compile(r"\s*(now|today|tomorrow|yesterday|epoch)\b", re.IGNORECASE)
_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
# A condition of Spark's whose SQLSTATE is a data exception, or one that the expression raises. Its
# text holds the record's data, which belongs in no log.
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
        """The expression itself."""
        return F.expr(self.text)

    def type(self, spark: SparkSession) -> DataType:
        """Return the expression's type; ConfigurationError if it is no function of one record."""
        empty = spark.createDataFrame([], COLUMNS)
        try:
            # A WHERE takes neither aggregates, nor window functions, nor generators.
            judged = empty.where(self.column.isNull())
            data_type = empty.select(self.column).schema[0].dataType
        except PySparkException as error:
            raise self.refused(str(error).strip().splitlines()[0]) from error
        if reason := self._not_of_one_record(judged):
            raise self.refused(reason)
        return data_type

    def _not_of_one_record(self, judged: DataFrame) -> str | None:
        """Return why the expression may differ between evaluations; None if it cannot."""
        spark, condition = judged.sparkSession, _condition(judged)
        if java_class(spark, _CATALYST + "expressions.SubqueryExpression").hasSubquery(condition):
            return "one with a subquery"
        if not condition.deterministic():
            return "one that is not deterministic"
        # Spark calls these deterministic, since they are one value in a query.
        current = java_class(spark, _CATALYST + "trees.TreePattern").CURRENT_LIKE()
        if condition.containsPattern(current):
            return "one that asks for the time, the user or the place of the run"
        if _has_literal_of_the_run(spark, self.text) or _casts_words_of_the_run(judged):
            return (
                "one with text that Spark reads as a time of the run, as it does now, today, "
                "tomorrow, yesterday and epoch"
            )
        return None

    def refused(self, actual: str) -> ConfigurationError:
        """Return the error that names the setting and what is wrong with its expression."""
        return ConfigurationError(
            f"expected {self.expected} in {self.setting}{self.text}, found {actual}"
        )

    @contextmanager
    def failing_clearly(self) -> Iterator[None]:
        """Name the setting in the error when its expression fails on a record."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            failed = None if isinstance(error, AnalysisException) else _failure(error)
            if failed is None:
                raise
            raise self.refused(
                f"that it fails on a record with {failed}; use functions that give null instead, "
                "such as try_cast, try_divide and try_element_at"
            ) from error


def _condition(judged: DataFrame) -> Any:
    return judged._jdf.queryExecution().analyzed().condition()


def _casts_words_of_the_run(judged: DataFrame) -> bool:
    """Return whether the optimizer would put a time in the place of a cast; it does so by a rule.

    Nobody else does: a cast of a record's text, or of text that only folding makes constant, knows
    no such words.
    """
    spark, analyzed = judged.sparkSession, judged._jdf.queryExecution().analyzed()
    replaced = java_class(spark, _CATALYST + "optimizer.ReplaceExpressions").apply(analyzed)
    rule = java_class(spark, _CATALYST + "optimizer.SpecialDatetimeValues")
    return not rule.apply(replaced).equals(replaced)


def _has_literal_of_the_run(spark: SparkSession, text: str) -> bool:
    """Return whether the parser would put a time in place of a literal like `TIMESTAMP 'now'`."""
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
