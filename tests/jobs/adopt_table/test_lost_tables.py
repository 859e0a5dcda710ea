"""Adopted tables that their owner dropped, created again, or stripped of their layout."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ForeignChangeError
from ebbtide.iceberg.topics import find, load, set_properties
from ebbtide.jobs.abandon_table import execute_abandonment, plan_abandonment
from ebbtide.layouts.layout import LAYOUT
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, spark_table


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str) -> TopicName:
    name = TopicName(cluster, "t")
    spark_table(sandbox.session, str(name))
    append(sandbox.session, str(name), [Record(n, "k") for n in range(10, 12)])
    adopt(sandbox.session, str(name))
    return name


def refused(spark: SparkSession, name: TopicName) -> str:
    with pytest.raises(ForeignChangeError) as error:
        load(spark, name)
    assert "batches" not in str(error.value)
    return str(error.value)


def create_again(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"DROP TABLE {name.records_table}")
    spark_table(spark, str(name))
    append(spark, str(name), [Record(n, "k") for n in range(3)])


def ends(spark: SparkSession, name: TopicName) -> Mapping[int, int]:
    return {p: state.log_end_offset for p, state in load(spark, name).partitions.items()}


def test_a_table_that_was_created_again_is_adopted_again(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    create_again(spark, name)
    why = refused(spark, name)
    assert f"expected adopted table {name.records_table}" in why
    assert "it was dropped and created again" in why
    assert "run adopt_table" in why
    adopt(spark, str(name))
    assert ends(spark, name) == {0: 3}


def test_one_that_has_the_layout_too_is_abandoned_first(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    layout = spark.sql(f"SHOW TBLPROPERTIES {name.records_table} ('{LAYOUT}')").first()
    assert layout is not None
    create_again(spark, name)
    set_properties(spark, name.records_table, {LAYOUT: layout["value"]})
    assert "run abandon_table, then adopt_table" in refused(spark, name)
    execute_abandonment(plan_abandonment(spark, name))
    adopt(spark, str(name))
    assert ends(spark, name) == {0: 3}


def test_a_table_that_was_dropped_is_abandoned(sandbox: LakeSandbox, name: TopicName) -> None:
    spark = sandbox.session
    spark.sql(f"DROP TABLE {name.records_table}")
    why = refused(spark, name)
    assert "found none: it was dropped" in why
    assert "run abandon_table" in why
    execute_abandonment(plan_abandonment(spark, name))
    assert find(spark, name) is None


def test_a_layout_that_was_removed_is_named(sandbox: LakeSandbox, name: TopicName) -> None:
    spark = sandbox.session
    set_properties(spark, name.records_table, {LAYOUT: None})
    why = refused(spark, name)
    assert f"no property {LAYOUT}" in why
    adopt(spark, str(name))
    assert ends(spark, name) == {0: 12}
