"""The shape of a job: what it is asked for a topic, its plan, and the two halves of its code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import Topic
from ebbtide.ledger.plans import Bounds, PartitionSummary, Removal, Removes
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName

LOG_END = "log_end_offset"  # of a plan's bounds
NOTHING_GIVEN = Namespace()

Parameters = Mapping[str, Any]


class PlanRequest(NamedTuple):
    """What a job is asked to plan for a topic.

    `bounds` are those of the stored plan that is executed: the new plan stays within them.
    `keeps_offsets` asks for the offsets that would be removed, which not every run works out.
    `approved_by` is who approved the stored plan. `given` are the arguments of the command line,
    for what no plan stores.
    """

    now_ms: int
    parameters: Parameters
    bounds: Bounds | None = None
    keeps_offsets: bool = False
    is_plan_only: bool = False
    approved_by: str | None = None
    given: Namespace = NOTHING_GIVEN


class Touched(NamedTuple):
    """The partitions whose rows or state an execution changes, and the snapshots before it.

    A snapshot of None is the table's current one. `truncated` names the connections of live topics
    that it truncates too.
    """

    partitions: Collection[int] = ()
    records_snapshot: int | None = None
    batches_snapshot: int | None = None
    truncated: Sequence[str] = ()


class Proposal(ABC):
    """A stage's plan for one topic, before anything is done."""

    __slots__ = ()

    topic: Topic  # as it was planned on

    @property
    def removal(self) -> Removal | None:
        """What it removes, for the guards of a night; None where none applies."""
        return None

    @abstractmethod
    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan, which are those of its execution too."""

    def removes(self) -> Removes:
        """Return the offsets that would leave, if the request asked for them."""
        return {}

    def loses(self) -> Removes:
        """Return the offsets of `removes` of which the log keeps no row."""
        return self.removes()

    def touches(self) -> Touched:
        """Return what an undo of the execution would give back: nothing, unless a plan says so."""
        return Touched()

    def fixed(self) -> Bounds:
        """Return the bounds that an execution stays within beside the parameters, by partition."""
        return {}

    def summary(self) -> Mapping[int, PartitionSummary]:
        """Return what goes by which rule and what stays and why, by partition."""
        return {}


def log_ends(topic: Topic) -> dict[int, dict[str, int]]:
    """Return each partition's log end offset, as the bounds of a plan that reads no further."""
    return {p: {LOG_END: state.log_end_offset} for p, state in topic.partitions.items()}


P = TypeVar("P")


def topics_named(args: Namespace) -> dict[TopicName, Parameters]:
    """Return the topics of the command line, of which nothing more is asked."""
    return {name: {} for name in args.topic}


def accept(args: Namespace) -> None:
    """Find nothing wrong between the arguments."""


def as_requested(_: SparkSession, __: TopicName, request: PlanRequest) -> Parameters:
    """Return the parameters: the request leaves nothing open."""
    return request.parameters


def removes_records(plan: Any) -> bool:
    """Return whether any record would be removed."""
    return any(plan.removes().values())


def do_as_planned(plan: Any) -> JobOutcome:
    """Refuse to execute: the `plan` of such a job has done its work."""
    raise AssertionError(f"expected the outcome of a job without a plan, found {plan!r}")


@dataclass(frozen=True, slots=True)
class Job(Generic[P]):
    """A job's code, bound to its spec by name.

    Reading the command line: `check` raises an EbbtideError for what is wrong between arguments,
    and may add what it has parsed; `asked` returns the parameters of each topic. For a job that
    `is_of_source` it looks for them in the source, and an error there refuses the run.

    For each topic: `resolve` looks up what a request leaves open, once, so that a stored plan has
    it. `plan` returns a plan, or an outcome if the request is refused as a whole or the job has
    none to store. `execute` does what the plan says.

    `is_by_hand` is True if a person asks, not the topic's settings. `needs_approval` says of a plan
    whether another person has to approve it under the rule of four eyes. A job that is not
    `checked` is for topics whose rows or state another tool has changed, at which every other
    job stops. `at_end` is called once after all topics.
    """

    name: str
    plan: Callable[[SparkSession, TopicName, PlanRequest], P | JobOutcome]
    execute: Callable[[P], JobOutcome] = do_as_planned
    asked: Callable[[Namespace], Mapping[TopicName, Parameters]] = topics_named
    is_of_source: bool = False
    check: Callable[[Namespace], None] = accept
    resolve: Callable[[SparkSession, TopicName, PlanRequest], Parameters] = as_requested
    is_by_hand: Callable[[Namespace], bool] = lambda _: False
    needs_approval: Callable[[P], bool] = removes_records
    is_checked: bool = True
    at_end: Callable[[SparkSession], None] = lambda _: None


def start_spark(job: str) -> SparkSession:
    """Return the Spark session of a job's process."""
    return SparkSession.builder.appName(job).getOrCreate()


def asked_of_each(*names: str) -> Callable[[Namespace], Mapping[TopicName, Parameters]]:
    """Return an `asked` that gives these arguments to each topic of the command line."""

    def asked(args: Namespace) -> Mapping[TopicName, Parameters]:
        of_each = {name: getattr(args, name) for name in names}
        return dict.fromkeys(args.topic, of_each)

    return asked
