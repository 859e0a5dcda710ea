"""Erasures that are refused, and plans that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import (
    ConfigurationError,
    RequestError,
    SourceError,
)
from ebbtide.iceberg.topics import load
from ebbtide.jobs.erase_keys.plan import plan_erase
from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.closed_archive import configure, erase, erasure_of, records


@pytest.mark.parametrize(("keys", "file"), [([], None), (["a"], "/keys")])
def test_keys_are_typed_in_or_in_a_file(
    spark: SparkSession, name: TopicName, keys: list[str], file: str | None
) -> None:
    with pytest.raises(RequestError, match=r"^expected keys "):
        plan_erase(load(spark, name), erasure_of(*keys, keys_file=file))
    with pytest.raises(SourceError, match=r"^expected a text file of keys .* at /none, found"):
        plan_erase(load(spark, name), erasure_of(keys_file="/none"))


def test_a_plan_changes_nothing(spark: SparkSession, name: TopicName) -> None:
    before = records(spark, name), load(spark, name).properties
    outcome = plan_erase(load(spark, name), erasure_of("a", "x")).outcome()
    assert outcome.partitions[0]["tombstones"] == outcome.partitions[1]["tombstones"] == 1
    assert outcome.topic["not_found"] == 1
    assert (records(spark, name), load(spark, name).properties) == before


def refused(
    spark: SparkSession, name: TopicName, changes: dict[str, str | None], **fields: Any
) -> str:
    configure(spark, name, changes)
    with pytest.raises((ConfigurationError, RequestError)) as raised:
        erase(spark, name, erasure_of("a", **fields))
    assert load(spark, name).partitions[0].log_end_offset == 6
    return str(raised.value)


def test_a_topic_that_is_not_compacted_is_refused(spark: SparkSession, name: TopicName) -> None:
    message = refused(spark, name, {"kafka.cleanup.policy": "delete"})
    assert "expected compact in kafka.cleanup.policy of" in message
    assert ", found delete: a tombstone would delete nothing" in message


@pytest.mark.parametrize(
    "writer",
    [{"ebbtide.source": "segments:/logs"}, {"ebbtide.replicas": "kafka:main"}],
)
def test_a_topic_that_somebody_writes_gets_none_directly(
    spark: SparkSession, name: TopicName, writer: dict[str, str | None]
) -> None:
    assert "expected a topic without a source for `append`" in refused(spark, name, writer)


def test_a_topic_without_a_connection_gets_none_by_its_writer(
    spark: SparkSession, name: TopicName
) -> None:
    message = refused(spark, name, {"ebbtide.source": "segments:/logs"}, appends=False)
    assert "expected a Kafka connection to the live topic of" in message
    assert "ebbtide.source (segments:/logs)" in message


def test_a_replica_gets_none(spark: SparkSession, name: TopicName) -> None:
    message = refused(spark, name, {"ebbtide.replica.of": "the primary's id"})
    assert "expected a topic that is no replica" in message
