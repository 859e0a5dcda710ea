"""A record's event time where `ebbtide.event.time` asks for another than its timestamp."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from ebbtide.log.settings.config import EventTime
from ebbtide.spark.expressions import Expression

LATEST_MS = 253_402_300_799_999  # the end of the year 9999
HAS_ZONE = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.]\d{1,9})?(Z|[+-]\d\d:?\d\d)$"
_EXPECTED = (
    "an expression over key, value, headers and timestamp of type timestamp, or of type bigint for "
    "ms since the epoch,"
)


def event_time_of(spark: SparkSession, source: EventTime) -> Column | None:
    """Return the event time by `source`, null where unreadable; None where it is the timestamp.

    Raise ConfigurationError for an expression that cannot give an event time.
    """
    if source.source == "header":
        return _of_header(source.text)
    if source.source == "sql":
        return _of_expression(spark, _expression(source))
    return None


def _of_header(name: str) -> Column:
    """Read the last header of that name: ms since the epoch, or ISO 8601 with its zone."""
    matching = F.filter("headers", lambda header: header["key"] == F.lit(name))
    text = F.try_element_at(matching, F.lit(-1))["value"].cast("string")
    of_text = F.when(text.rlike(HAS_ZONE), text.try_cast("timestamp"))
    return F.coalesce(_of_millis(text.try_cast("bigint")), _within_range(of_text))


def _of_millis(millis: Column) -> Column:
    return F.when(millis.between(0, LATEST_MS), F.timestamp_millis(millis))


def _within_range(time: Column) -> Column:
    first, last = (F.timestamp_millis(F.lit(ms)) for ms in (0, LATEST_MS))
    return F.when(time.between(first, last), time)


def failing_clearly(source: EventTime) -> AbstractContextManager[None]:
    """Turn an expression's failure on a record into a ConfigurationError that names it."""
    return _expression(source).failing_clearly() if source.source == "sql" else nullcontext()


def _expression(source: EventTime) -> Expression:
    return Expression("ebbtide.event.time=sql:", source.text, _EXPECTED)


def _of_expression(spark: SparkSession, expression: Expression) -> Column:
    data_type = expression.type(spark)
    if isinstance(data_type, TimestampType):
        return _within_range(expression.column)
    if isinstance(data_type, LongType):
        return _of_millis(expression.column)
    raise expression.refused(f"one of type {data_type.simpleString()}")
