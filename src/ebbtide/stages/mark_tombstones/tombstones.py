"""Decide which records are tombstones, and why (KIP-87), as columns over the records table."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from ebbtide.log.settings.config import TombstoneHeader, TopicConfig
from ebbtide.records.attributes import TOMBSTONE
from ebbtide.spark.expressions import Expression

NULL_VALUE = "null_value"
FLAG = "flag"
HEADER = "header"
PREDICATE = "predicate"
# In the order in which they are checked; the first that holds is kept.
REASONS = (NULL_VALUE, FLAG, HEADER, PREDICATE)


class TombstoneRule(NamedTuple):
    """A topic's rule for tombstones.

    `marked_by` is why a record is a tombstone whatever its value; null where it is none.
    `may_match` is true of every record that is a tombstone by this or by its value, and of
    those already marked. It selects the files to read, so it uses no values unless it must.
    `is_plain` says that only a null value and the flag make a tombstone.
    """

    marked_by: Column
    may_match: Column
    is_explicit: bool
    predicate: Expression | None
    is_plain: bool

    def failing_clearly(self) -> AbstractContextManager[None]:
        """Turn the predicate's failure on a record into a ConfigurationError that names it."""
        return nullcontext() if self.predicate is None else self.predicate.failing_clearly()


def tombstone_rule(spark: SparkSession, config: TopicConfig) -> TombstoneRule:
    """Return the topic's rule; ConfigurationError for an invalid predicate."""
    is_flagged = F.col("attributes").bitwiseAND(F.lit(TOMBSTONE)) != 0
    marked_by = F.when(is_flagged, F.lit(FLAG))
    may_be_flagged = (F.col("attributes") < 0) | (F.col("attributes") >= TOMBSTONE)
    may_match = F.col("value").isNull() | may_be_flagged | F.col("is_tombstone")
    if config.tombstone_header is not None:
        has_header = _has_header(config.tombstone_header)
        marked_by = marked_by.when(has_header, F.lit(HEADER))
        may_match |= has_header
    predicate = None
    if config.tombstone_predicate is not None:
        predicate = _checked(spark, config.tombstone_predicate)
        marked_by = marked_by.when(predicate.column, F.lit(PREDICATE))
        may_match |= predicate.column
    is_plain = not config.tombstones_are_explicit and not config.tombstone_header and not predicate
    explicit = config.tombstones_are_explicit
    return TombstoneRule(marked_by, may_match, explicit, predicate, is_plain)


def _has_header(wanted: TombstoneHeader) -> Column:
    def matches(header: Column) -> Column:
        has_name = header["key"] == F.lit(wanted.name)
        if wanted.value is None:
            return has_name
        return has_name & (header["value"] == F.lit(wanted.value.encode()))

    return F.exists("headers", matches)


def _checked(spark: SparkSession, text: str) -> Expression:
    expected = "a boolean expression over key, value, headers and timestamp"
    predicate = Expression("ebbtide.tombstone.predicate=", text, expected)
    data_type = predicate.type(spark)
    if not isinstance(data_type, BooleanType):
        raise predicate.refused(f"one of type {data_type.simpleString()}")
    return predicate
