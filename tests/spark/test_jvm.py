"""Asking the driver's JVM: what a Java exception costs, and where none comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage, JVMView
from pyspark.errors.exceptions import captured

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import catalog_store, check_catalog, open_table, table_exists
from ebbtide.iceberg.file_commits import DescribedFiles
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox


def test_no_exception_searches_the_jars_for_the_class_that_tells(
    sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, searches = sandbox.session, Counter[str]()
    for kind in (JVMView, JavaPackage):
        monkeypatch.setattr(kind, "__getattr__", _counting(kind.__getattr__, searches))
    assert not table_exists(spark, "`lake`.`no_such`.`table`")
    assert searches["TypeUtil"] == searches["py4j"] == 0


def test_settings_and_specs_are_read_without_an_exception(
    sandbox: LakeSandbox, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = sandbox.session
    sandbox.topic(f"{cluster}.t")
    table = open_table(spark, TopicName.parse(f"{cluster}.t").records_table)

    def never(error: object) -> None:
        pytest.fail(f"an exception comes here: {error}")

    monkeypatch.setattr(captured, "convert_exception", never)
    assert catalog_store(spark)
    assert DescribedFiles.of(table).specs


def test_a_catalog_that_airflows_side_cannot_read_is_refused(sandbox: LakeSandbox) -> None:
    session = sandbox.session.newSession()
    check_catalog(session)
    session.conf.set("spark.sql.catalog.lake.uri", "jdbc:mysql://h/d?password=x")
    with pytest.raises(ConfigurationError, match="jdbc:postgresql:, found jdbc:mysql://h/d:"):
        check_catalog(session)


def _counting(search: Any, searches: Counter[str]) -> Any:
    def counted(found_in: object, name: str) -> object:
        searches[name] += 1
        return search(found_in, name)

    return counted
