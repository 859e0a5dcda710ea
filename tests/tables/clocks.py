"""Clocks of machines that go back, and time zones of environments."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Self

import pytest
from pyspark.sql import SparkSession

from ebbtide import moments
from ebbtide.iceberg.catalog import open_table
from ebbtide.moments import to_ms
from ebbtide.spark.jvm import iceberg_class, java_class
from tests.lake_sandbox import LakeSandbox

ZONE = "spark.sql.session.timeZone"


def turn_back(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Let the machine's clock, as jobs read it, be behind what it was."""

    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) - by

    monkeypatch.setattr(moments, "datetime", Behind)


def let_newest_be_ahead(spark: SparkSession, name: str, by: timedelta) -> None:
    """Let a table's newest commit be of a clock that is ahead of this one, which went back.

    None is further ahead afterwards.
    """
    operations = open_table(spark, name).java.operations()
    parser = iceberg_class(spark, "TableMetadataParser")
    base = operations.current()
    values = json.loads(parser.toJson(base))
    ahead_ms = to_ms(datetime.now(UTC) + by)
    values["last-updated-ms"] = ahead_ms
    for part in ("snapshots", "snapshot-log", "metadata-log"):
        for entry in values[part]:
            entry["timestamp-ms"] = min(entry["timestamp-ms"], ahead_ms)
    for part in ("snapshots", "snapshot-log"):
        for entry in values[part][-1:]:
            entry["timestamp-ms"] = ahead_ms
    operations.commit(base, parser.fromJson(json.dumps(values)))


@contextmanager
def in_zone(sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch, zone: str) -> Iterator[None]:
    """Let Python, the JVM and Spark's defaults have a zone; jobs make sessions of their own."""
    spark = sandbox.session
    zones = java_class(spark, "java.util.TimeZone")
    of_jvm, of_session = zones.getDefault(), spark.conf.get(ZONE)
    make = type(spark).newSession

    def new_session() -> SparkSession:
        session = make(spark)
        for key, value in {**sandbox.catalogs(), ZONE: zone}.items():
            session.conf.set(key, value)
        return session

    with monkeypatch.context() as patched:
        patched.setattr(spark, "newSession", new_session)
        patched.setenv("TZ", zone)
        time.tzset()
        zones.setDefault(zones.getTimeZone(zone))
        spark.conf.set(ZONE, zone)
        try:
            yield
        finally:
            spark.conf.set(ZONE, of_session)
            zones.setDefault(of_jvm)
    time.tzset()
    assert os.environ.get("TZ") != zone
