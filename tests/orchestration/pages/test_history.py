"""A topic's newest rows, in whatever order and however often they come."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from ebbtide.ledger.topic_summary import TopicSummary
from ebbtide.orchestration.pages.overview import TopicHistory, TopicRow
from tests.lake_sandbox import MIDNIGHT
from tests.rows import attempt


def summary(file_bytes: int, **numbers: Any) -> TopicSummary:
    return TopicSummary(
        cleanup_policy="compact",
        is_enabled=True,
        partitions=1,
        records=1,
        closed_records=1,
        dirty_records=0,
        file_bytes=file_bytes,
        **numbers,
    )


DAY = timedelta(days=1)
FIRST = attempt("clean_log", MIDNIGHT, summary=summary(10, waiting=3, low_watermark_lag=2))
FAILED = attempt("expire_segments", MIDNIGHT + DAY / 24, status="failed", summary=summary(20))
NEXT = attempt("clean_log", MIDNIGHT + DAY, run_id="night-2", summary=summary(5, waiting=0))
BY_HAND = attempt("delete_records", MIDNIGHT + 2 * DAY, run_id="x", dag=None, status="failed")


def test_the_order_of_rows_does_not_matter() -> None:
    for rows in permutations([FIRST, FAILED, NEXT, BY_HAND, FIRST]):
        history = TopicHistory("log.a")
        for row in rows:
            history.add(row)
        assert history.summary == NEXT.summary
        assert history.night == {"clean_log": NEXT}
        assert history.failures == [BY_HAND, FAILED]
        assert history.sizes == [20, 5]
        assert history.known_number("waiting") == 0
        assert history.known_number("low_watermark_lag") == 2
        assert history.known_number("drifted_settings") is None


def test_a_retry_takes_the_place_of_what_failed() -> None:
    history = TopicHistory("log.a")
    for row in (FAILED, attempt("expire_segments", MIDNIGHT + DAY / 12)):
        history.add(row)
    assert history.failures == []
    assert [run.status for run in history.night.values()] == ["succeeded"]


@pytest.mark.parametrize(
    ("policy", "share"),
    [("compact", 0.25), ("compact,delete", 0.25), ("delete", None), ("", None)],
)
def test_only_a_compacted_topic_is_dirty(policy: str, share: float | None) -> None:
    of_topic = summary(1, next_horizon_ms=None)
    dirty = replace(of_topic, cleanup_policy=policy, closed_records=8, dirty_records=2)
    assert dirty.dirty_share == share


@pytest.mark.parametrize(
    ("night", "ended", "is_overdue"),
    [
        pytest.param(MIDNIGHT, MIDNIGHT, True, id="a night as it is scheduled, three days ago"),
        pytest.param(MIDNIGHT - 2 * DAY, MIDNIGHT + 3 * DAY, False, id="a clock of long ago"),
        pytest.param(MIDNIGHT + 9 * DAY, MIDNIGHT + 3 * DAY, True, id="a clock that is ahead"),
        pytest.param(None, None, True, id="no night at all"),
    ],
)
def test_a_horizon_is_overdue_by_the_clock_that_the_last_night_had(
    night: datetime | None, ended: datetime | None, is_overdue: bool
) -> None:
    horizon_ms, clock = int(MIDNIGHT.timestamp() * 1000), MIDNIGHT + 3 * DAY
    attempts = [attempt("clean_log", ended, now=night)] if night and ended else []
    row = TopicRow(name="log.a", next_horizon_ms=horizon_ms, night=attempts)
    assert row.is_overdue(int(clock.timestamp() * 1000)) is is_overdue
