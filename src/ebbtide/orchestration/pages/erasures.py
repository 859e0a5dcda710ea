"""The page Erasures: each request with its two dates as they are now, and its certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ebbtide.errors import EbbtideError
from ebbtide.lake.own_tables import RequestedErasure, certificates_of, requested_erasures
from ebbtide.lake.reader import Lake
from ebbtide.ledger.own_tables import Run
from ebbtide.orchestration.deletions import HISTORY, dates_of, full_minute, out_of_table

SHOWN = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class ShownErasure:
    """A request, and its records and dates as they are now."""

    request: RequestedErasure
    remaining: int | None  # None: the run has not ended
    out_of_table: datetime | None
    off_disk: str | None  # the date, or the event that must come first


def erasures_page(lake: Lake, topic: str, clock: datetime) -> dict[str, Any]:
    """Return the values of the page, of all topics if `topic` is empty."""
    since = clock - SHOWN
    requests = requested_erasures(lake, since, topic or None)
    certificates = certificates_of(lake, since, topic or None)
    named = {each.certificate for request in requests for each in request.certificates}
    by_topic: dict[str, list[Run]] = {name: [] for name in {each.topic for each in requests}}
    if by_topic:
        oldest = max(clock - HISTORY, min(each.requested_at for each in requests))
        for run in lake.runs(oldest, topic=sorted(by_topic)):
            by_topic[run.topic].append(run)
    return {
        "erasures": [_shown(lake, each, by_topic[each.topic], clock) for each in requests],
        "unnamed": [each for each in certificates if each.certificate not in named],
        "newest": certificates[0] if certificates else None,
        "topic": topic,
        "span": SHOWN,
    }


def _shown(
    lake: Lake, request: RequestedErasure, runs: Sequence[Run], clock: datetime
) -> ShownErasure:
    """Return the dates from the runs since the request, or the dates that the request reported."""
    since = [run for run in runs if run.ended >= request.requested_at]
    out = request.out_of_table_at or out_of_table(since, request.tombstones)
    reported = request.off_disk_from
    if out is None:
        return ShownErasure(request, request.left, None, None)
    try:
        dates = dates_of(lake.topic(request.topic), since, clock, request.found, out)
    except EbbtideError:  # its page has the error; a certificate does not need the topic
        return ShownErasure(request, 0, out, None if reported is None else full_minute(reported))
    moment = dates.off_disk or (None if dates.wait else dates.due)
    return ShownErasure(request, 0, out, full_minute(moment) if moment else dates.wait)
