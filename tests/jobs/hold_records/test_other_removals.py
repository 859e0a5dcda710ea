"""What leaves by quarantine, in replicas and by repair is kept too."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.topics import load
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.repair_state import execute_repair, plan_repair
from ebbtide.ledger.holds import HoldEvent, newest_events
from ebbtide.runner.holds import keep_removed, read_holds
from ebbtide.settings.names import TopicName
from ebbtide.state.rebuilding import RepairInput
from jobs import hold_records
from tests.jobs.hold_records.builders import kept, make_hold
from tests.jobs.mark_tombstones.tombstones import FORBIDDEN_OFFSETS, NIGHT_MS, forbidden_topic
from tests.jobs.replicate_log.replicas import grow, replica_of, replicate, sandbox, set_replicas
from tests.lake_sandbox import LakeSandbox
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import at, mark
from tests.tables.planned import Jobs

pytestmark = pytest.mark.long

__all__ = ["sandbox"]


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster[-40:], "t")


def test_what_goes_to_quarantine_is_kept_beside_it(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    spark = sandbox.session
    bench = Bench(sandbox, name, tmp_path)
    forbidden_topic(bench)
    going = list(FORBIDDEN_OFFSETS)
    make_hold(spark, name, "before", end_offset=going[-1])
    outcome = mark(spark, str(name), now_ms=NIGHT_MS)
    assert bench.left() == [o for o in range(8) if o not in going]
    assert kept(spark, name) == {"before": going[:-1]}
    assert outcome.topic["copied_for_holds"] == {"hold before (case 7)": len(going) - 1}
    make_hold(spark, name, "after")
    keep_removed(load(spark, name))
    assert kept(spark, name)["after"] == going


def test_a_replica_gets_the_hold_and_keeps_its_own_records(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, tmp_path: Path
) -> None:
    spark, replica = sandbox.session, replica_of(name)
    grow(sandbox, name, tmp_path, [[Message("a", "1"), Message("b", "1")]] * 3)
    set_replicas(sandbox, name, f"other.{name.cluster}")
    replicate(sandbox, name)
    why = ("--case-id", "7", "--reason", "asked by a court", "--owner", "legal")
    asked = ("--topic", str(name), "--action", "make", *why, "--partition", "0")
    now = ("--now", at(FIRST_MS).isoformat())
    assert jobs.run(hold_records, *asked, "--end-offset", "3", *now) == ExitCode.DONE
    (here,), (there,) = read_holds(spark, name), read_holds(spark, replica)
    assert (here.hold_id, here.end_offset) == (there.hold_id, there.end_offset)
    execute_delete(plan_delete(load(spark, name), {0: 4, 1: 4}, FIRST_MS))
    for topic in (name, replica):
        assert kept(spark, topic) == {here.hold_id: [0, 1, 2]}
        assert kept(spark, topic, 1) == {}
    end = ("--topic", str(name), "--action", "end", "--hold", here.hold_id)
    plan = jobs.plan(hold_records, FIRST_MS, *end)
    assert jobs.run(hold_records, "--plan", plan.plan_id, "--approved-by", "bob") == ExitCode.DONE
    (ended,) = newest_events(read_holds(spark, replica))
    assert ended.event is HoldEvent.ENDED


def test_a_hold_of_the_primary_counts_where_its_replica_does_not_know_it(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """By replicate_log, too: the log start offset moves there."""
    spark, replica = sandbox.session, replica_of(name)
    grow(sandbox, name, tmp_path, [[Message("a", "1"), Message("b", "1")]] * 3)
    set_replicas(sandbox, name, f"other.{name.cluster}")
    replicate(sandbox, name)
    hold = make_hold(spark, name, first_offset=1)
    set_replicas(sandbox, name, None)
    execute_delete(plan_delete(load(spark, name), {0: 3}, FIRST_MS))
    grow(sandbox, name, tmp_path, [[Message("a", "1"), Message("b", "1")]] * 4)
    set_replicas(sandbox, name, f"other.{name.cluster}")
    replicate(sandbox, name)
    assert kept(spark, replica) == kept(spark, name) == {hold.hold_id: [1, 2]}
    assert [copy.hold_id for copy in read_holds(spark, replica)] == [hold.hold_id]


def test_what_others_removed_is_kept_by_the_repair(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    spark = sandbox.session
    grow(sandbox, name, tmp_path, [[Message("a", "1"), Message("b", "1")]] * 2)
    make_hold(spark, name, partition=0)
    spark.sql(f"DELETE FROM {name.records_table} WHERE `partition` = 0 AND offset = 1")
    plan = plan_repair(spark, name, FIRST_MS, RepairInput(), keeps=True)
    assert execute_repair(plan).topic["copied_for_holds"] == {"hold h-1 (case 7)": 1}
    assert kept(spark, name) == {"h-1": [1]}
