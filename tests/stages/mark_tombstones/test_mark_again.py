"""Marking again what is not cleaned, by rules that have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import CommitConflictError, RequestError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.log.requests.from_offset import FromOffset
from ebbtide.log.settings.names import TopicName
from ebbtide.stages.clean_log.stage import execute_clean, plan_clean
from ebbtide.stages.mark_tombstones.quarantine import RunOf
from ebbtide.stages.mark_tombstones.stage import execute_mark, plan_mark
from tests.lake_sandbox import LakeSandbox
from tests.stages.mark_tombstones.tombstones import (
    BY_HEADER,
    COMPACT,
    EXPLICIT,
    FLAG,
    NIGHT_MS,
    PREDICATE,
    configure,
    left,
    marks,
    quarantine,
    record,
    topic_of,
)
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.nights import DAY_MS, at, clean, mark


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


AGAIN = [
    *(record(0, None), record(1, "d")),
    *(record(2, "v", [("op", "d")]), record(3, None)),
    *(record(4, "d", [("op", "d")]), record(5, "v", attributes=FLAG)),
]
SAYS_D = {PREDICATE: "string(value) = 'd'"}


def marked_by_header(sandbox: LakeSandbox, name: TopicName, directory: Path) -> None:
    topic_of(sandbox, name, directory, AGAIN, COMPACT, BY_HEADER)
    mark(sandbox.session, str(name))
    assert marks(sandbox, name) == {
        0: "null_value",
        2: "header",
        3: "null_value",
        4: "header",
        5: "flag",
    }
    remove = f"ALTER TABLE {name.records_table} UNSET TBLPROPERTIES ('ebbtide.tombstone.header')"
    sandbox.session.sql(remove)
    configure(sandbox, name, SAYS_D)


@pytest.mark.long(but="mark_again")
@pytest.mark.parametrize("step", [None, Step.MARK_AGAIN, Step.MARK_RECORDS, Step.MARK_STATE])
def test_a_changed_rule_is_for_what_is_marked_again(
    sandbox: LakeSandbox,
    name: TopicName,
    tmp_path: Path,
    kill_at: list[Step],
    step: Step | None,
) -> None:
    """From offset 1 on: 1 becomes one, 2 is none any more, 4 is one for another reason."""
    marked_by_header(sandbox, name, tmp_path)
    assert mark(sandbox.session, str(name)).partitions[0]["marked"] == 0
    again = [FromOffset(0, 1)]
    plan = plan_mark(load(sandbox.session, name), again).outcome().partitions[0]
    assert plan["by"] == {"predicate": 2}
    assert (plan["marked"], plan["unmarked"]) == (2, 1)
    if step is not None:
        kill_at.append(step)
        with pytest.raises(KilledError):
            mark(sandbox.session, str(name), again)
        again = [] if step != Step.MARK_AGAIN else again  # the next night finishes it
    mark(sandbox.session, str(name), again)
    assert marks(sandbox, name) == {
        0: "null_value",
        1: "predicate",
        3: "null_value",
        4: "predicate",
        5: "flag",
    }
    rows = sandbox.session.table(name.records_table).orderBy("offset").collect()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["value"] for row in rows] == [r.value for r in AGAIN]
    assert (rows[2]["is_tombstone"], rows[2]["tombstone_by"]) == (False, None)
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 6


@pytest.mark.long
def test_what_was_a_tombstone_may_be_what_the_log_must_not_hold(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """Marks by a null value fall away, so the records go; those before the offset stay."""
    marked_by_header(sandbox, name, tmp_path)
    configure(sandbox, name, EXPLICIT)
    mark(sandbox.session, str(name), [FromOffset(None, 2)])
    assert marks(sandbox, name) == {0: "null_value", 4: "predicate", 5: "flag"}
    assert [row["offset"] for row in quarantine(sandbox, name)] == [3]
    assert left(sandbox, name) == [0, 1, 2, 4, 5]
    clean(sandbox.session, str(name), NIGHT_MS)
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert left(sandbox, name) == [1, 2]


def test_what_is_cleaned_is_not_marked_again(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kill_at: list[Step]
) -> None:
    """Nor what a round in flight is about to clean."""
    topic_of(sandbox, name, tmp_path, AGAIN[:4], COMPACT)
    mark(sandbox.session, str(name))
    kill_at.append(Step.ROUND_STATE)
    with pytest.raises(KilledError):
        clean(sandbox.session, str(name), NIGHT_MS)
    for _ in ("in flight", "done"):
        with pytest.raises(RequestError, match=r"expected an offset in \[4, 4\] to mark"):
            mark(sandbox.session, str(name), [FromOffset(0, 3)])
        clean(sandbox.session, str(name), NIGHT_MS)
    assert load(sandbox.session, name).partitions[0].first_dirty_offset == 4
    mark(sandbox.session, str(name), [FromOffset(0, 4)])


@pytest.mark.long
def test_a_round_does_not_start_on_what_is_being_marked_again(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, meanwhile: Meanwhile
) -> None:
    """It was planned before; planned again, it stays below."""
    marked_by_header(sandbox, name, tmp_path)
    spark = sandbox.session
    plan = plan_clean(load(spark, name), NIGHT_MS)

    def begin_again() -> None:
        configure(sandbox, name, {"ebbtide.state.0.first-unmarked-offset": "1"})

    begin_again()
    with pytest.raises(CommitConflictError, match="to be marked up to 6, found 1"):
        execute_clean(plan)
    assert clean(spark, str(name), NIGHT_MS).partitions[0]["picked"] is False
    mark(spark, str(name))
    # And a marking that another one overtakes does not skip what that has left.
    topic_of(sandbox, name, tmp_path, [*AGAIN, record(6, None), record(7, "v")])
    plan_of_night = plan_mark(load(spark, name), [])
    meanwhile(Step.MARK_RECORDS, begin_again)
    with pytest.raises(CommitConflictError, match="to be marked up to 6, found 1"):
        execute_mark(plan_of_night, RunOf("night", at(NIGHT_MS)))
    mark(spark, str(name))
    assert load(spark, name).partitions[0].first_unmarked_offset == 8
