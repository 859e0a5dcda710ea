"""Holds as pages and reports show them: how each stands, and how many records it has kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ebbtide.errors import HoldError, UnknownTopicError
from ebbtide.lake.live_files import files_of
from ebbtide.lake.reader import Lake
from ebbtide.log.holds import HOLDS, Hold, newest_events


@dataclass(frozen=True, slots=True)
class HoldStanding:
    """A hold as its newest event left it, and the records that were copied for it so far."""

    hold: Hold
    made_at: datetime
    stands: bool
    is_to_be_reviewed: bool
    kept_records: int = 0


def read_holds(
    lake: Lake, now: datetime, topic: str | None = None, *, with_ended: bool = False
) -> list[HoldStanding]:
    """Return the holds of a topic, or of all, in the order they were made.

    Kept records are counted from manifests, and only where one topic is asked for. Raise HoldError
    for a row that nobody understands.
    """
    events = [HOLDS.to_row(cells) for cells in _cells(lake, topic)]
    kept = Counter[str]() if topic is None or not events else kept_records(lake, topic)
    standings = _standings(events, kept, now)
    return [standing for standing in standings if with_ended or standing.stands]


class AllHolds(NamedTuple):
    """The holds of all topics that stand, and the topics whose holds nobody understands."""

    standings: list[HoldStanding]
    problems: dict[str, HoldError]


def read_all_holds(lake: Lake, now: datetime) -> AllHolds:
    """Return the holds of all topics; a row that nobody understands is its topic's fault alone."""
    events: dict[str, list[Hold]] = {}
    problems: dict[str, HoldError] = {}
    for cells in _cells(lake, None):
        topic = str(cells.get("topic"))
        try:
            events.setdefault(topic, []).append(HOLDS.to_row(cells))
        except HoldError as error:
            problems.setdefault(topic, error)
    of_readable = (of for topic in sorted(events.keys() - problems) for of in events[topic])
    standings = _standings(list(of_readable), Counter(), now)
    return AllHolds([standing for standing in standings if standing.stands], problems)


def _cells(lake: Lake, topic: str | None) -> Iterable[Mapping[str, Any]]:
    of_topic: dict[str, Any] = {} if topic is None else {"topic": topic}
    return lake.own_cells(HOLDS, HOLDS.types, **of_topic)


def _standings(
    events: Sequence[Hold], kept: Mapping[str, int], now: datetime
) -> list[HoldStanding]:
    made_at: dict[tuple[str, str], datetime] = {}
    for event in sorted(events, key=lambda event: event.at):
        made_at.setdefault((event.topic, event.hold_id), event.at)
    return [
        HoldStanding(
            hold,
            made_at[hold.topic, hold.hold_id],
            hold.stands_at(now),
            hold.stands_at(now) and hold.is_to_be_reviewed(now),
            kept.get(hold.hold_id, 0),
        )
        for hold in newest_events(events)
    ]


def kept_records(lake: Lake, topic: str) -> Counter[str]:
    """Count the records that each hold has kept of a topic, from manifests alone."""
    kept = Counter[str]()
    try:
        table = lake.held(topic)
    except UnknownTopicError:
        return kept
    for file in files_of(table):
        kept[file.partition[0]] += file.record_count
    return kept


def review_warnings(standings: Iterable[HoldStanding]) -> list[str]:
    """Return a sentence for each hold whose review date has passed."""
    due = [of for of in standings if of.is_to_be_reviewed]
    return [f"{of.hold.topic}: {of.hold.review_warning}" for of in due]
