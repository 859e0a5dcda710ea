"""What goes to the quarantine is planned, kept, and goes only as the plan says."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from ebbtide.errors import ExitCode
from ebbtide.ledger.plans import PlanStep
from ebbtide.records.log_directory_writer import BatchFields, write_batch
from jobs import mark_tombstones
from tests.jobs.mark_tombstones.tombstones import (
    FORBIDDEN_OFFSETS,
    NIGHT_MS,
    forbidden_topic,
    marks,
    quarantine,
    record,
)
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS
from tests.tables.nights import at
from tests.tables.partition_log import append
from tests.tables.planned import Jobs


def test_a_plan_has_the_offsets_that_the_quarantine_takes_and_no_later_ones(
    bench: Bench, jobs: Jobs
) -> None:
    forbidden_topic(bench)
    kept = jobs.plan(mark_tombstones, NIGHT_MS, "--topic", str(bench.name))
    assert kept.removes == {0: BitMap64(FORBIDDEN_OFFSETS)}
    assert kept.bounds == {0: {"log_end_offset": 8}}
    of_partition = kept.summary["partitions"]["0"]
    assert (of_partition["records"], of_partition["rules"]) == (3, {"quarantined": {"records": 3}})
    assert marks(bench) == {}

    append(bench.home, 8, write_batch(BatchFields(), [record(8, None)]))
    bench.ingest(bench.home, FIRST_MS)
    approved = ("--plan", kept.plan_id, "--approved-by", "bob")
    assert jobs.run(mark_tombstones, *approved) == ExitCode.DONE
    assert bench.left() == [0, 2, 3, 6, 7, 8]
    clocks = {row["quarantined_at"] for row in quarantine(bench)}
    assert clocks == {at(NIGHT_MS).replace(tzinfo=None)}
    assert bench.load().partitions[0].first_unmarked_offset == 8
    assert jobs.kinds(kept) == [PlanStep.APPROVED, PlanStep.EXECUTED]


@pytest.mark.long
def test_with_four_eyes_a_night_marks_and_who_marks_again_needs_another_person(
    bench: Bench, jobs: Jobs
) -> None:
    forbidden_topic(bench)
    bench.set({"ebbtide.plan.four.eyes": "true"})
    now = ("--topic", str(bench.name), "--now", at(NIGHT_MS).isoformat())
    assert jobs.run(mark_tombstones, *now, "--from-offset", "0") == ExitCode.FAILED
    assert jobs.last_run().error_class == "PlanError"
    assert marks(bench) == {}
    assert jobs.run(mark_tombstones, *now) == ExitCode.DONE
    assert len(quarantine(bench)) == 3
