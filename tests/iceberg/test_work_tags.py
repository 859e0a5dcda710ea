"""Tags on the snapshots that open work needs, and who lets go of them."""

from __future__ import annotations

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.work_tags import WorkTag, release_tags
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import Meanwhile

TAG = WorkTag("round", "1")


@pytest.fixture
def table(sandbox: LakeSandbox, cluster: str) -> str:
    """A table with a snapshot that has two tags of a round."""
    spark, name = sandbox.session, f"lake.{cluster}.t"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{cluster}")
    spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS a")
    for tag in (TAG.own, TAG.before):
        spark.sql(f"ALTER TABLE {name} CREATE TAG `{tag}`")
    return name


def tags(sandbox: LakeSandbox, table: str) -> set[str]:
    rows = sandbox.session.sql(f"SELECT name FROM {table}.refs WHERE type = 'TAG'").collect()
    return {row["name"] for row in rows}


def test_work_that_is_open_keeps_its_tags(sandbox: LakeSandbox, table: str) -> None:
    release_tags(sandbox.session, [table], lambda work: work == TAG.id)
    assert tags(sandbox, table) == {TAG.own, TAG.before}
    release_tags(sandbox.session, [table], lambda work: False)
    assert tags(sandbox, table) == set()


@pytest.mark.parametrize("gone", [(TAG.own,), (TAG.own, TAG.before)])
def test_a_tag_that_another_job_has_removed_meanwhile_hinders_nobody(
    sandbox: LakeSandbox, table: str, meanwhile: Meanwhile, gone: tuple[str, ...]
) -> None:
    def other() -> None:
        for tag in gone:
            sandbox.session.sql(f"ALTER TABLE {table} DROP TAG `{tag}`")

    meanwhile(Step.TAGS_RELEASED, other)
    release_tags(sandbox.session, [table], lambda work: False)
    assert tags(sandbox, table) == set()
