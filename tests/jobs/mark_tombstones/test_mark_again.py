"""Marking again what is not cleaned, by rules that have changed."""

from __future__ import annotations

import pytest

from ebbtide.errors import CommitConflictError, RequestError
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.mark_tombstones import execute_mark, plan_mark
from ebbtide.jobs.quarantine import RunOf
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import FromOffset
from tests.jobs.mark_tombstones.tombstones import (
    BY_HEADER,
    COMPACT,
    EXPLICIT,
    FLAG,
    NIGHT_MS,
    PREDICATE,
    marks,
    quarantine,
    record,
    topic_of,
)
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.nights import DAY_MS, at


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


AGAIN = [
    *(record(0, None), record(1, "d")),
    *(record(2, "v", [("op", "d")]), record(3, None)),
    *(record(4, "d", [("op", "d")]), record(5, "v", attributes=FLAG)),
]
SAYS_D = {PREDICATE: "string(value) = 'd'"}


def marked_by_header(bench: Bench) -> None:
    topic_of(bench, AGAIN, COMPACT, BY_HEADER)
    bench.mark()
    assert marks(bench) == {
        0: "null_value",
        2: "header",
        3: "null_value",
        4: "header",
        5: "flag",
    }
    remove = (
        f"ALTER TABLE {bench.name.records_table} UNSET TBLPROPERTIES ('ebbtide.tombstone.header')"
    )
    bench.spark.sql(remove)
    bench.set(SAYS_D)


@pytest.mark.long(but="mark_again")
@pytest.mark.parametrize("step", [None, Step.MARK_AGAIN, Step.MARK_RECORDS, Step.MARK_STATE])
def test_a_changed_rule_is_for_what_is_marked_again(
    bench: Bench, kill_at: list[Step], step: Step | None
) -> None:
    """From offset 1 on: 1 becomes one, 2 is none any more, 4 is one for another reason."""
    marked_by_header(bench)
    assert bench.mark().partitions[0]["marked"] == 0
    again = [FromOffset(0, 1)]
    plan = plan_mark(bench.load(), again).outcome().partitions[0]
    assert plan["by_rule"] == {"predicate": 2}
    assert (plan["marked"], plan["unmarked"]) == (2, 1)
    if step is not None:
        kill_at.append(step)
        with pytest.raises(KilledError):
            bench.mark(again)
        again = [] if step != Step.MARK_AGAIN else again  # the next night finishes it
    bench.mark(again)
    assert marks(bench) == {
        0: "null_value",
        1: "predicate",
        3: "null_value",
        4: "predicate",
        5: "flag",
    }
    rows = bench.spark.table(bench.name.records_table).orderBy("offset").collect()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["value"] for row in rows] == [r.value for r in AGAIN]
    assert (rows[2]["is_tombstone"], rows[2]["tombstone_by"]) == (False, None)
    assert bench.load().partitions[0].first_unmarked_offset == 6


@pytest.mark.long
def test_what_was_a_tombstone_may_be_what_the_log_must_not_hold(bench: Bench) -> None:
    """Marks by a null value fall away, so the records go; those before the offset stay."""
    marked_by_header(bench)
    bench.set(EXPLICIT)
    bench.mark([FromOffset(None, 2)])
    assert marks(bench) == {0: "null_value", 4: "predicate", 5: "flag"}
    assert [row["offset"] for row in quarantine(bench)] == [3]
    assert bench.left() == [0, 1, 2, 4, 5]
    bench.clean(NIGHT_MS)
    bench.clean(NIGHT_MS + DAY_MS)
    assert bench.left() == [1, 2]


def test_what_is_cleaned_is_not_marked_again(bench: Bench, kill_at: list[Step]) -> None:
    """Nor what a round in flight is about to clean."""
    topic_of(bench, AGAIN[:4], COMPACT)
    bench.mark()
    kill_at.append(Step.ROUND_STATE)
    with pytest.raises(KilledError):
        bench.clean(NIGHT_MS)
    for _ in ("in flight", "done"):
        with pytest.raises(RequestError, match="expected an offset from 4 to 4 to begin marking"):
            bench.mark([FromOffset(0, 3)])
        bench.clean(NIGHT_MS)
    assert bench.load().partitions[0].first_dirty_offset == 4
    bench.mark([FromOffset(0, 4)])


@pytest.mark.long
def test_a_round_does_not_start_on_what_is_being_marked_again(
    bench: Bench, meanwhile: Meanwhile
) -> None:
    """It was planned before; planned again, it stays below."""
    marked_by_header(bench)
    plan = plan_clean(bench.load(), NIGHT_MS)

    def begin_again() -> None:
        bench.set({"ebbtide.state.0.first-unmarked-offset": "1"})

    begin_again()
    with pytest.raises(CommitConflictError, match="up to offset 6, found them up to 1"):
        execute_clean(plan)
    assert bench.clean(NIGHT_MS).partitions[0]["picked"] is False
    bench.mark()
    # And a marking that another one overtakes does not skip what that has left.
    topic_of(bench, [*AGAIN, record(6, None), record(7, "v")])
    plan_of_night = plan_mark(bench.load(), [])
    meanwhile(Step.MARK_RECORDS, begin_again)
    with pytest.raises(
        CommitConflictError, match="to be marked up to offset 6, found 1: another run"
    ):
        execute_mark(plan_of_night, RunOf("night", at(NIGHT_MS)))
    bench.mark()
    assert bench.load().partitions[0].first_unmarked_offset == 8
