"""Every job B runs whole at each commit point of a job A on the same topic.

Both orders of the two, one job after the other, say how a topic may end. A pair comes to one of
these ends at each commit point, or one of the jobs fails, with an error of ebbtide's own, and comes
to such an end when it runs again. A replica may also be a copy of the log as it was when B ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from pyspark.sql import SparkSession

from ebbtide.errors import class_named
from ebbtide.iceberg.commits import Step
from ebbtide.ledger.own_tables import RUNS
from ebbtide.settings.names import TopicName
from tests.pairs.cases import OWNER, Topics, run_words
from tests.pairs.ends import End, end_of, log_of
from tests.pairs.two_processes import OtherProcess

FIRST_A, FIRST_B, EITHER, NEITHER = "A, B", "B, A", "either", "neither"
COPY = "a copy of the log as it was"
COPIER = "replicate_log"
NO_ROW = "no row in runs"  # of a job that was refused before it looked at the topic
_tags = count()


class Met(NamedTuple):
    """What two jobs came to on a topic: the class of each one's error, if any, and the end."""

    a: str | None
    b: str | None
    end: End


class Cell(NamedTuple):
    """A commit point of A at which B runs."""

    b: str
    step: Step


class Outcome(NamedTuple):
    """What a cell came to, in a word, and what is wrong about it."""

    word: str
    why: str = ""


# By B and the commit point of A.
Outcomes = dict[str, dict[str, Outcome]]


class Pairs:
    """The matrix of one kind of topics, in one lake: A in another process, B in this one."""

    def __init__(self, topics: Topics, other: OtherProcess) -> None:
        self._topics = topics
        self._other = other
        self.spark: SparkSession = topics.spark

    def meet(self, a: str, others: Sequence[str]) -> Outcomes:
        """Let each of the others run at each commit point of A."""
        serial, steps = self._one_after_the_other(a, others)
        cells = [Cell(b, step) for b in others for step in dict.fromkeys(steps[b])]
        if not cells:  # A commits nothing on such topics
            return {b: {} for b in others}
        names = self._names(cells)
        self._topics.fill({name: (a, names[name].b) for name in names})
        missed, logs = self._b_within_a(a, names)
        met = self._met(a, names)
        again = self._run_again(a, names, met, serial)
        found: Outcomes = {b: {} for b in others}
        for name, cell in names.items():
            if name not in missed:
                outcome = judged(met[name], again.get(name), serial[cell.b], logs.get(name))
                found[cell.b][str(cell.step)] = outcome
        return found

    def _names(self, cells: Iterable[Cell]) -> dict[TopicName, Cell]:
        return {TopicName(self._topics.kind, f"t{next(_tags)}"): cell for cell in cells}

    def _one_after_the_other(
        self, a: str, others: Sequence[str]
    ) -> tuple[dict[str, tuple[Met, Met]], dict[str, list[Step]]]:
        """Both orders of A and each of the others, and A's steps on the topic where it is first."""
        first_a = {b: TopicName(self._topics.kind, f"t{next(_tags)}") for b in others}
        first_b = {b: TopicName(self._topics.kind, f"t{next(_tags)}") for b in others}
        self._topics.fill(
            {name: (a, b) for topics in (first_a, first_b) for b, name in topics.items()}
        )
        steps = self._run_a(a, list(first_a.values()), "a")
        for b in others:
            self._topics.run(b, [first_a[b], first_b[b]], "b")
        self._run_a(a, list(first_b.values()), "a")
        names = {topics[b]: Cell(b, Step.PROBE) for topics in (first_a, first_b) for b in others}
        met = self._met(a, names)
        serial = {b: (met[first_a[b]], met[first_b[b]]) for b in others}
        return serial, {b: steps.get(str(first_a[b]), []) for b in others}

    def _b_within_a(
        self, a: str, names: Mapping[TopicName, Cell]
    ) -> tuple[set[TopicName], dict[TopicName, End]]:
        """Run A up to each topic's step, each B there, and A to its end.

        Return the topics that A missed, and the logs that were copied by B as they were then.
        """
        missed: set[TopicName] = set()
        logs: dict[TopicName, End] = {}
        topics = _call_groups(self._topics.calls(a, list(names)), names)
        for call, of_call in topics:
            stops = {str(name): names[name].step for name in of_call}
            steps = self._other.begin(a, [*call, *run_words("a")], stops)
            if steps is not None:
                missed |= {n for n in of_call if stops[str(n)] not in steps.get(str(n), [])}
            copied = [name for name in of_call if names[name].b == COPIER]
            logs |= {name: log_of(self.spark, name) for name in copied}
            for b in dict.fromkeys(names[name].b for name in of_call):
                self._topics.run(b, [name for name in of_call if names[name].b == b], "b")
            if steps is None:
                self._other.end()
        return missed, logs

    def _run_again(
        self,
        a: str,
        names: Mapping[TopicName, Cell],
        met: Mapping[TopicName, Met],
        serial: Mapping[str, tuple[Met, Met]],
    ) -> dict[TopicName, Met]:
        """Run what failed again, where the topic has not come to the end of an order."""
        left = [name for name, cell in names.items() if met[name] not in serial[cell.b]]
        failed_a = [name for name in left if met[name].a]
        failed_b = [name for name in left if met[name].b]
        if failed_a:
            self._run_a(a, failed_a, "a")
        for b in dict.fromkeys(names[name].b for name in failed_b):
            self._topics.run(b, [name for name in failed_b if names[name].b == b], "b")
        return self._met(a, {name: names[name] for name in {*failed_a, *failed_b}})

    def _run_a(self, a: str, names: Sequence[TopicName], run_id: str) -> dict[str, list[Step]]:
        steps: dict[str, list[Step]] = {}
        for call in self._topics.calls(a, names):
            steps |= self._other.run(a, [*call, *run_words(run_id)])
        return steps

    def _met(self, a: str, names: Mapping[TopicName, Cell]) -> dict[TopicName, Met]:
        """What each topic has come to, by the newest rows of its two jobs."""
        rows = (
            self.spark.table(RUNS.in_catalog())
            .where("run_id IN ('a', 'b')")
            .orderBy("ended")
            .collect()
        )
        errors = {
            (row["run_id"], row["job"], row["topic"]): (row["error_class"], row["error"])
            for row in rows
        }

        def error(run_id: str, job: str, name: TopicName) -> str | None:
            if job == OWNER:
                return None
            found = errors.get((run_id, job, str(name)), (NO_ROW, ""))
            return None if found[0] is None else str(found[0])

        return {
            name: Met(error("a", a, name), error("b", cell.b, name), end_of(self.spark, name))
            for name, cell in names.items()
        }


def _call_groups(
    calls: Sequence[list[str]], names: Iterable[TopicName]
) -> list[tuple[list[str], list[TopicName]]]:
    """Each call with the topics that it names."""
    return [(call, [n for n in names if f'"{n}"' in str(call) or str(n) in call]) for call in calls]


def judged(
    met: Met, again: Met | None, serial: tuple[Met, Met], copied: End | None = None
) -> Outcome:
    """What a cell came to; `copied` is the log that B has copied, if it did."""
    if NO_ROW in {error for result in (met, *serial) for error in (result.a, result.b)}:
        return Outcome(NEITHER, "a job was refused by its arguments, so that nothing was compared")
    if met in serial:
        return Outcome(_order(met, serial))
    failed = {"A": met.a, "B": met.b}
    failed = {which: error for which, error in failed.items() if error}
    if len(failed) != 1:
        if not failed and copied is not None and _is_copy(met, serial, copied):
            return Outcome(COPY)
        which = "both failed" if failed else "none failed"
        return Outcome(NEITHER, f"{which}: {difference(met, serial)}")
    ((which, error),) = failed.items()
    if class_named(error) is None:
        return Outcome(NEITHER, f"{which} failed with {error}")
    if which == "A" and met._replace(a=serial[0].a) == serial[0]:
        return Outcome(f"{FIRST_A}, and A fails ({error})")
    if again is None or again not in serial:
        why = difference(again or met, serial)
        return Outcome(NEITHER, f"{which} failed ({error}), again: {why}")
    return Outcome(f"{which} fails ({error}), again: {_order(again, serial)}")


def _is_copy(met: Met, serial: tuple[Met, Met], copied: End) -> bool:
    """Whether the replica is what it copied, and the topic as it is after both orders."""
    replica = met.end.get("replica", {})
    is_right = all(met.end["topic"] == order.end["topic"] for order in serial)
    return is_right and {what: replica.get(what) for what in copied} == copied


def _order(met: Met, serial: tuple[Met, Met]) -> str:
    if serial[0] == serial[1]:
        return EITHER
    return FIRST_A if met == serial[0] else FIRST_B


def difference(met: Met, serial: tuple[Met, Met]) -> str:
    """How the outcome differs from each order, for people."""
    return json.dumps(
        {
            order: _diff(met, expected)
            for order, expected in zip((FIRST_A, FIRST_B), serial, strict=True)
        },
        default=repr,
    )


def _diff(met: Met, order: Met) -> dict[str, object]:
    found: dict[str, object] = {
        which: [getattr(met, which), getattr(order, which)]
        for which in ("a", "b")
        if getattr(met, which) != getattr(order, which)
    }
    for place in {*met.end, *order.end}:
        one, two = met.end.get(place, {}), order.end.get(place, {})
        for what in {*one, *two}:
            if one.get(what) != two.get(what):
                found[f"{place} {what}"] = _shown(one.get(what), two.get(what))
    return found


def _shown(one: object, two: object) -> object:
    if isinstance(one, list) and isinstance(two, list):
        return [
            [x for x in one if x not in two],
            [x for x in two if x not in one],
            len(one),
            len(two),
        ]
    return [one, two]
