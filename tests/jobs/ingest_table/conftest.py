"""A table that others write, and the topic that it is copied to."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from ebbtide.settings.names import TopicName
from tests.jobs.ingest_table.copying import source_of
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import spark_table


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


@pytest.fixture
def source(spark: SparkSession, name: TopicName) -> str:
    spark_table(spark, source_of(name))
    return source_of(name)
