from datetime import timedelta
from typing import Any

import pytest

from ebbtide.lake.reader import LakeTopic, Run
from ebbtide.orchestration.deletions import newest_deletion
from tests.lake_sandbox import MIDNIGHT

OUT = "3 records left the table on 2026-01-02 00:00 UTC"
DUE = "they leave the disk with the first expire_snapshots after 2026-01-07 00:00 UTC"

WAIT = (
    "2 deleted rows wait in files that are rewritten once 30% of their rows are deleted "
    "(ebbtide.rewrite.deleted.share; 0 means at the first), and in active segments, once these "
    "are closed"
)


def run_of(job: str, days: int, rows_removed: int = 0, **topic_result: Any) -> Run:
    when = MIDNIGHT + timedelta(days=days)
    return Run(
        run_id="r",
        dag="d",
        task=job,
        job=job,
        topic="log.a",
        started=when,
        ended=when,
        now=when,
        status="succeeded",
        error=None,
        error_class=None,
        is_transient=False,
        result={"topic": topic_result},
        rows_removed=rows_removed,
        files_removed=0,
        bytes_removed=0,
        snapshot_ids=(),
    )


CLEANED = run_of("clean_log", 0, rows_removed=3)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        pytest.param([CLEANED], f"{OUT}; {DUE}.", id="out of the table"),
        pytest.param(
            [CLEANED, run_of("expire_snapshots", 4)], f"{OUT}; {DUE}.", id="snapshots are too young"
        ),
        pytest.param(
            [CLEANED, run_of("expire_snapshots", 5, deleted_rows_in_files=2)],
            f"{OUT}; no snapshot shows them any more, but {WAIT}.",
            id="snapshots are gone, rows wait in their files",
        ),
        pytest.param(
            [CLEANED, run_of("expire_snapshots", 4, deleted_rows_in_files=2)],
            f"{OUT}; {DUE}, except that {WAIT}.",
            id="both are still to come",
        ),
        pytest.param(
            [CLEANED, run_of("expire_snapshots", 5), run_of("expire_snapshots", 6)],
            f"{OUT} and the disk by 2026-01-07 00:00 UTC.",
            id="off the disk",
        ),
        pytest.param(
            [run_of("expire_segments", -3, rows_removed=9), CLEANED],
            f"{OUT}; {DUE}.",
            id="the newest deletion counts",
        ),
    ],
)
def test_both_dates(runs: list[Run], words: str) -> None:
    deletion = newest_deletion(LakeTopic("log.a", {}), runs)
    assert deletion is not None
    assert deletion.in_words() == words


def test_the_age_is_the_tables_own() -> None:
    topic = LakeTopic("log.a", {"history.expire.max-snapshot-age-ms": "3600000"})
    deletion = newest_deletion(topic, [CLEANED])
    assert deletion is not None
    assert deletion.due == MIDNIGHT + timedelta(hours=1)


def test_nothing_was_deleted() -> None:
    expired = run_of("expire_snapshots", 0, rows_removed=1)
    assert newest_deletion(LakeTopic("log.a", {}), [run_of("clean_log", 0), expired]) is None
