"""Snapshots that have lost the list of their manifests are forgotten, whenever a job is killed."""

from pathlib import Path

import pytest

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.file_changes import forget_lost, lost_list
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError


def test_an_older_snapshot_that_lost_its_list_is_forgotten(
    sandbox: LakeSandbox, cluster: str, kill_at: list[Step]
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    table = name.records_table
    sandbox.topic(str(name))
    for offset in range(3):
        sandbox.records(str(name), [(0, offset)])
    before = open_table(spark, table)
    snapshots = sorted(
        before.metadata.snapshots.values(), key=lambda snapshot: snapshot.sequence_number
    )
    first, lost, newest = snapshots
    spark.sql(f"ALTER TABLE {table} CREATE TAG held AS OF VERSION {lost.id}")
    Path(lost.manifest_list.removeprefix("file:")).unlink()
    assert lost_list(spark, table) is None  # the newest can be read
    for step in (Step.TAGS_RELEASED, Step.LOST_SNAPSHOTS):
        kill_at.append(step)
        with pytest.raises(KilledError):
            forget_lost(spark, table)
    forget_lost(spark, table)
    after = open_table(spark, table)
    assert set(after.metadata.snapshots) == {first.id, newest.id}
    assert set(after.metadata.refs) == {"main"}
    assert spark.table(table).count() == 3
