"""A record's event time where `ebbtide.event.time` asks for another than its timestamp."""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from ebbtide.errors import ConfigurationError
from ebbtide.log.config import EventTime
from ebbtide.tables.java import java_class

# What an expression may look at, as the records table has it.
COLUMNS = """
    key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP
"""
LATEST_MS = 253_402_300_799_999  # the end of the year 9999
HAS_ZONE = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.]\d{1,9})?(Z|[+-]\d\d:?\d\d)$"
SUBQUERIES = "org.apache.spark.sql.catalyst.expressions.SubqueryExpression"


def event_time_of(spark: SparkSession, source: EventTime) -> Column | None:
    """The event time by `source`, null where it cannot be read; None where the timestamp is it.

    ConfigurationError for an expression that no record's event time can be.
    """
    if source.source == "header":
        return _of_header(source.text)
    if source.source == "sql":
        return _of_expression(spark, source.text)
    return None


def _of_header(name: str) -> Column:
    """Of the last header of that name, ms since the epoch or ISO 8601 with its zone."""
    found = F.filter("headers", lambda header: header["key"] == F.lit(name))
    text = F.try_element_at(found, F.lit(-1))["value"].cast("string")
    of_text = F.when(text.rlike(HAS_ZONE), text.try_cast("timestamp"))
    return F.coalesce(_of_millis(text.try_cast("bigint")), _within_range(of_text))


def _of_millis(millis: Column) -> Column:
    return F.when(millis.between(0, LATEST_MS), F.timestamp_millis(millis))


def _within_range(time: Column) -> Column:
    first, last = (F.timestamp_millis(F.lit(ms)) for ms in (0, LATEST_MS))
    return F.when(time.between(first, last), time)


def _of_expression(spark: SparkSession, text: str) -> Column:
    empty = spark.createDataFrame([], COLUMNS)
    try:
        # A WHERE takes neither aggregates, nor window functions, nor generators.
        judged = empty.where(F.expr(text).isNull())
        found = empty.select(F.expr(text)).schema[0].dataType
    except AnalysisException as error:
        raise _refused(text, str(error).strip().splitlines()[0]) from error
    if reason := _not_of_one_record(judged):
        raise _refused(text, reason)
    if isinstance(found, TimestampType):
        return _within_range(F.expr(text))
    if isinstance(found, LongType):
        return _of_millis(F.expr(text))
    raise _refused(text, f"one of type {found.simpleString()}")


def _not_of_one_record(judged: DataFrame) -> str | None:
    """Why the expression in the frame's WHERE is not a function of one record; None if it is."""
    condition: Any = judged._jdf.queryExecution().analyzed().condition()
    if java_class(judged.sparkSession, SUBQUERIES).hasSubquery(condition):
        return "one with a subquery"
    return None if condition.deterministic() else "one that is not deterministic"


def _refused(text: str, found: str) -> ConfigurationError:
    return ConfigurationError(
        "expected an expression over key, value, headers and timestamp of type timestamp, or of "
        f"type bigint for ms since the epoch, in ebbtide.event.time=sql:{text}, found {found}"
    )
