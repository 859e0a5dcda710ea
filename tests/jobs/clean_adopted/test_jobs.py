"""The jobs themselves on an adopted table, with their rows in `runs` and kept plans."""

import pytest

from ebbtide.iceberg.topics import load
from ebbtide.kafka.reasons import Reason
from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.night import nothing_to_do
from ebbtide.settings.names import TopicName
from jobs import (
    abandon_table,
    adopt_table,
    clean_log,
    configure_topic,
    expire_segments,
    export_segments,
    mark_tombstones,
    repair_state,
)
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import COMPACTED, Record, append, live, spark_table
from tests.tables.nights import at
from tests.tables.planned import Jobs


@pytest.mark.long
def test_a_table_of_others_through_its_jobs(sandbox: LakeSandbox, cluster: str, jobs: Jobs) -> None:
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "b"), Record(2, "a")])
    topic, now = ("--topic", name), ("--now", at(10_000).isoformat())
    settings = [word for setting in COMPACTED.items() for word in ("--set", "=".join(setting))]
    assert jobs.run(adopt_table, *topic, *now, *settings, "--plan-only") == 0
    assert jobs.run(adopt_table, *topic, *now, *settings) == 0
    assert jobs.last_run().topic_result["columns"][0] == "partition: partition"
    plan = jobs.plan(clean_log, 10_000, *topic)
    assert plan.removes is not None
    assert {p: list(offsets) for p, offsets in plan.removes.items()} == {0: [0]}
    append(spark, name, [Record(3, "b")])
    assert live(spark, name) == [0, 1, 2, 3]
    assert jobs.run(clean_log, "--plan", plan.plan_id) == 0
    assert live(spark, name) == [1, 2, 3]
    run = jobs.last_run()
    assert (run.rows_removed, len(run.snapshot_ids)) == (1, 1)
    assert run.partitions[0]["superseded"] == 1
    assert jobs.run(mark_tombstones, *topic, *now) == 0
    assert jobs.last_run().topic_result["note"].startswith(Reason.OTHERS_WRITE)
    assert jobs.run(expire_segments, *topic, *now) == 0
    for job, more in ((repair_state, ()), (export_segments, ("--target", "file:///none"))):
        assert jobs.run(job, *topic, *now, *more) != 0
        assert "does not work on adopted tables" in str(jobs.last_run().error)
    shorter = ("--set", "kafka.retention.ms=1", "--set", "kafka.cleanup.policy=compact,delete")
    planned = jobs.plan(configure_topic, 10_001, *topic, *shorter)
    assert {p: list(removed) for p, removed in (planned.removes or {}).items()} == {0: [0, 1, 2, 3]}
    assert jobs.run(configure_topic, *topic, *now, "--set", "kafka.retention.ms=999999") == 0
    assert load(spark, TopicName.parse(name)).config.retention_ms == 999_999
    with open_lake() as lake:
        assert lake.contents(name)[0].records == 3
        assert lake.live_rows(name) == {0: 3}
        of_lake = lake.topic(name)
        assert nothing_to_do("clean_log", of_lake, 10_000, lake) is None
        assert nothing_to_do("expire_snapshots", of_lake, 10_000, lake) is Reason.OTHERS_WRITE
    assert jobs.run(abandon_table, *topic, *now) == 0
    assert live(spark, name) == [1, 2, 3]
