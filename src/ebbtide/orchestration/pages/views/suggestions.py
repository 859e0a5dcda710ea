"""What the fields of forms suggest, read from the lake: each list only where a form asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from ebbtide.errors import EbbtideError
from ebbtide.lake.holds import read_holds
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.lake.standing_plans import open_plans
from ebbtide.lake.undo_points import undoable_runs
from ebbtide.log.settings.names import TopicName
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.orchestration.pages.forms.form import Suggested, Suggestions

AGES = ("P1D", "P7D", "P30D", "P90D", "P365D")


def suggestions_of(
    lake: Lake, asked: Collection[Suggestions], topic: LakeTopic | None
) -> dict[Suggestions, list[Suggested]]:
    """Return the lists that are asked for; those of a topic are empty while none is chosen.

    A list that cannot be read is empty: the form can be filled in without it.
    """
    lists: dict[Suggestions, list[Suggested]] = {}
    for name in asked:
        try:
            if name in _OF_LAKE:
                lists[name] = _OF_LAKE[name](lake)
            elif name in _OF_TOPIC:
                lists[name] = [] if topic is None else _OF_TOPIC[name](lake, topic)
        except EbbtideError:
            lists[name] = []
    return lists


def _topics(lake: Lake) -> list[Suggested]:
    return [Suggested(name) for name in lake.topic_names()]


def _tables(lake: Lake) -> list[Suggested]:
    return [Suggested(name) for name in lake.other_tables()]


def _clusters(lake: Lake) -> list[Suggested]:
    clusters = {TopicName.parse(name).cluster for name in lake.topic_names()}
    return [Suggested(cluster) for cluster in sorted(clusters)]


def _plans(lake: Lake) -> list[Suggested]:
    return [
        Suggested(plan.plan_id, f"{plan.job} on {plan.topic}, {plan.made_at:%Y-%m-%d %H:%M}")
        for plan in open_plans(lake, datetime.now(UTC), HISTORY)
    ]


def _partitions(_lake: Lake, topic: LakeTopic) -> list[Suggested]:
    return [
        Suggested(str(number), f"offsets {state.log_start_offset:,} to {state.log_end_offset:,}")
        for number, state in topic.partitions.items()
    ]


def _holds(lake: Lake, topic: LakeTopic) -> list[Suggested]:
    holds = [standing.hold for standing in read_holds(lake, datetime.now(UTC), topic.name)]
    return [Suggested(h.hold_id, f"{h.case_id or 'a pause'}: {h.covers}") for h in holds]


def _runs(lake: Lake, topic: LakeTopic) -> list[Suggested]:
    return [
        Suggested(run.run_id, f"{', '.join(run.jobs)}, until {run.until:%Y-%m-%d %H:%M}")
        for run in undoable_runs(lake, topic.name, datetime.now(UTC))
    ]


_OF_LAKE: Mapping[Suggestions, Callable[[Lake], list[Suggested]]] = {
    Suggestions.TOPICS: _topics,
    Suggestions.TABLES: _tables,
    Suggestions.CLUSTERS: _clusters,
    Suggestions.AGES: lambda _: [Suggested(age) for age in AGES],
    Suggestions.PLANS: _plans,
}
_OF_TOPIC: Mapping[Suggestions, Callable[[Lake, LakeTopic], list[Suggested]]] = {
    Suggestions.PARTITIONS: _partitions,
    Suggestions.HOLDS: _holds,
    Suggestions.RUNS: _runs,
}
