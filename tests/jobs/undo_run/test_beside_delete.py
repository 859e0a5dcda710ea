"""An undo and delete_records of one topic at the same moment, at each commit point of either."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.ledger.undo_points import points_to_undo
from ebbtide.runner.undo_points import read_points
from ebbtide.settings.names import TopicName
from jobs import delete_records, undo_run
from tests.jobs.undo_run.twins import assert_in_one_segment, of_request
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.fixtures import Meanwhile
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark
from tests.tables.planned import Jobs

pytestmark = pytest.mark.long

NOW = ("--now", at(FIRST_MS + DAY_MS).isoformat())
# The last is small: an undo that gives back whole segments alone writes a small one anew.
SEGMENTS = [[Message(key, "1") for key in keys] for keys in ("ab", "ab", "ab", "a")]
END = 7
FIRST, SECOND = 3, 5  # where the log begins after each request, each within a segment
BESIDE_DELETE = [
    Step.UNDO_POINT,
    Step.LOG_START_OFFSET,
    Step.ROWS_REMOVING,
    Step.TRUNCATE_RECORD_SEGMENTS,
    Step.TRUNCATE_RECORDS,
    Step.RUN_ROW,
]
BESIDE_UNDO = [
    Step.UNDO_STARTED,
    Step.UNDO_TAGGED,
    Step.UNDO_RECORDS,
    Step.HOLD_EVENT,
    Step.UNDO_NOTED,
    Step.UNDO_STATE,
]
NAME = TopicName("beside", "t")


class Both:
    """A partition up to `FIRST` of which a run has deleted; then both jobs work on it."""

    def __init__(self, sandbox: LakeSandbox, jobs: Jobs, partition: int) -> None:
        self.spark, self.jobs, self.partition = sandbox.session, jobs, partition
        assert self.delete(FIRST) == 0
        self.deleted = self.jobs.run_id

    def delete(self, offset: int = SECOND) -> int:
        """Move the log start; the exit code."""
        asked = of_request(NAME, [{"partition": self.partition, "offset": offset}])
        return self.jobs.run(delete_records, *asked, *NOW)

    def undo(self) -> int:
        """Take the first deletion back, and with it later ones; the exit code."""
        return self.jobs.run(undo_run, "--topic", str(NAME), "--run", self.deleted, *NOW)

    def assert_one_after_the_other(self) -> None:
        """The log is what one order of both leaves, and all that is gone can be taken back."""
        start = load(self.spark, NAME).partitions[self.partition].log_start_offset
        assert start in (0, SECOND)
        self.assert_begins_at(start)
        if start:
            assert self.undo() == 0
            self.assert_begins_at(0)
        assert not points_to_undo(read_points(self.spark, NAME), self.deleted)

    def assert_begins_at(self, start: int) -> None:
        view = view_of_table(self.spark, NAME, self.partition)
        assert (view.log_start_offset, offsets(view)) == (start, list(range(start, END)))
        rows = self.spark.table(NAME.records_table).where(f"`partition` = {self.partition}")
        assert rows.count() == END - start
        assert_counted(self.spark, NAME)
        assert_in_one_segment(self.spark, NAME)


@pytest.fixture(scope="module")
def partitions(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Partitions of one topic, of the same records each; every test takes one."""
    log = tmp_path_factory.mktemp("beside") / "log"
    for partition in range(len(BESIDE_DELETE) + len(BESIDE_UNDO)):
        write_log(log, "t", SEGMENTS, {"cleanup.policy": "delete"}, partition=partition)
    ingest(sandbox.session, str(NAME), log, FIRST_MS)
    mark(sandbox.session, str(NAME))
    return count()


@pytest.fixture
def both(sandbox: LakeSandbox, jobs: Jobs, partitions: Iterator[int]) -> Both:
    return Both(sandbox, jobs, next(partitions))


@pytest.mark.parametrize("step", BESIDE_DELETE)
def test_an_undo_while_records_are_deleted(both: Both, meanwhile: Meanwhile, step: Step) -> None:
    meanwhile(step, both.undo)
    both.delete()
    both.assert_one_after_the_other()


@pytest.mark.parametrize("step", BESIDE_UNDO)
def test_records_are_deleted_while_a_run_is_undone(
    both: Both, meanwhile: Meanwhile, step: Step
) -> None:
    meanwhile(step, both.delete)
    both.undo()
    both.assert_one_after_the_other()
