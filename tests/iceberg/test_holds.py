"""Tags on the snapshots that open work needs, and who lets go of them."""

from __future__ import annotations

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.holds import Hold, release
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import Meanwhile

HOLD = Hold("round", "1")


@pytest.fixture
def table(sandbox: LakeSandbox, cluster: str) -> str:
    """A table with a snapshot that two tags of a round hold."""
    spark, name = sandbox.session, f"lake.{cluster}.t"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{cluster}")
    spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS a")
    for tag in (HOLD.own, HOLD.before):
        spark.sql(f"ALTER TABLE {name} CREATE TAG `{tag}`")
    return name


def tags(sandbox: LakeSandbox, table: str) -> set[str]:
    rows = sandbox.session.sql(f"SELECT name FROM {table}.refs WHERE type = 'TAG'").collect()
    return {row["name"] for row in rows}


def test_work_that_is_open_keeps_its_tags(sandbox: LakeSandbox, table: str) -> None:
    release(sandbox.session, [table], lambda work: work == HOLD.id)
    assert tags(sandbox, table) == {HOLD.own, HOLD.before}
    release(sandbox.session, [table], lambda work: False)
    assert tags(sandbox, table) == set()


@pytest.mark.parametrize("gone", [(HOLD.own,), (HOLD.own, HOLD.before)])
def test_a_tag_that_another_job_has_removed_meanwhile_hinders_nobody(
    sandbox: LakeSandbox, table: str, meanwhile: Meanwhile, gone: tuple[str, ...]
) -> None:
    def other() -> None:
        for tag in gone:
            sandbox.session.sql(f"ALTER TABLE {table} DROP TAG `{tag}`")

    meanwhile(Step.HOLDS_RELEASED, other)
    release(sandbox.session, [table], lambda work: False)
    assert tags(sandbox, table) == set()
