"""A job's interface: its request and plan for a topic, and its functions `plan` and `execute`."""

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

LOG_END = "log_end_offset"  # field of a plan's bounds
NOTHING_GIVEN = Namespace()

Parameters = Mapping[str, Any]


class PlanRequest(NamedTuple):
    """A request to plan a job's work on one topic."""

    now_ms: int
    parameters: Parameters
    bounds: Bounds | None = None  # of the stored plan to execute; the new plan stays within them
    keeps_offsets: bool = False  # the plan has to list the offsets that it would remove
    is_plan_only: bool = False
    approved_by: str | None = None  # the user who approved the stored plan
    given: Namespace = NOTHING_GIVEN  # the command line, for arguments that no plan stores


class Touched(NamedTuple):
    """The partitions whose rows or state an execution changes, and the snapshots before it."""

    partitions: Collection[int] = ()
    records_snapshot: int | None = None  # None: the table's current snapshot
    batches_snapshot: int | None = None
    truncated: Sequence[str] = ()  # connections of live topics whose log start it advances too


class Proposal(ABC):
    """A stage's plan for one topic, before it is executed."""

    __slots__ = ()

    topic: Topic  # as it was planned on

    @property
    def removal(self) -> Removal | None:
        """The planned removal that the guards of a nightly run check, or None if they do not."""
        return None

    @abstractmethod
    def outcome(self) -> JobOutcome:
        """Return the plan's numbers; its execution returns the same fields."""

    def removes(self) -> Removes:
        """Return the offsets to remove, by partition, if the request asked for them."""
        return {}

    def loses(self) -> Removes:
        """Return the offsets of `removes` whose rows the log does not retain."""
        return self.removes()

    def touches(self) -> Touched:
        """Return the changes of the execution, for its undo; none by default."""
        return Touched()

    def fixed(self) -> Bounds:
        """Return the bounds of an execution by partition, in addition to the parameters."""
        return {}

    def summary(self) -> Mapping[int, PartitionSummary]:
        """Return, by partition, the removals of each rule and the reasons for what is retained."""
        return {}


def log_ends(topic: Topic) -> dict[int, dict[str, int]]:
    """Return each partition's log end offset, as the bounds of a plan that reads only below it."""
    return {p: {LOG_END: state.log_end_offset} for p, state in topic.partitions.items()}


P = TypeVar("P")


def topics_named(args: Namespace) -> dict[TopicName, Parameters]:
    """Return the topics of the command line, without parameters."""
    return {name: {} for name in args.topic}


def accept(args: Namespace) -> None:
    """Accept any combination of arguments."""


def as_requested(_: SparkSession, __: TopicName, request: PlanRequest) -> Parameters:
    """Return the request's parameters unchanged."""
    return request.parameters


def removes_records(plan: Any) -> bool:
    """Return whether any record would be removed."""
    return any(plan.removes().values())


def do_as_planned(plan: Any) -> JobOutcome:
    """Raise AssertionError: a job without `execute` does its work in `plan`."""
    raise AssertionError(f"expected the outcome of a job without a plan, found {plan!r}")


@dataclass(frozen=True, slots=True)
class Job(Generic[P]):
    """A job's code, bound to its spec by name."""

    name: str
    # Returns a plan. Returns an outcome if the whole request is refused, or the job stores no plan.
    plan: Callable[[SparkSession, TopicName, PlanRequest], P | JobOutcome]
    execute: Callable[[P], JobOutcome] = do_as_planned
    # Returns the parameters of each topic on the command line.
    asked: Callable[[Namespace], Mapping[TopicName, Parameters]] = topics_named
    # `asked` reads the topics from the source; an error there refuses the run.
    is_of_source: bool = False
    # Raises an EbbtideError if arguments contradict each other; may add parsed values.
    check: Callable[[Namespace], None] = accept
    # Looks up the values that a request leaves open, so that a stored plan has them.
    resolve: Callable[[SparkSession, TopicName, PlanRequest], Parameters] = as_requested
    # True if a person asks for the run, not the topic's settings.
    is_by_hand: Callable[[Namespace], bool] = lambda _: False
    # True if four eyes require that another person approves the plan.
    needs_approval: Callable[[P], bool] = removes_records
    # False: the job also works on a topic after a foreign change, which every other job refuses.
    is_checked: bool = True
    # Called once, after all topics.
    at_end: Callable[[SparkSession], None] = lambda _: None


def start_spark(job: str) -> SparkSession:
    """Return the Spark session of the process, named after the job."""
    return SparkSession.builder.appName(job).getOrCreate()


def asked_of_each(*names: str) -> Callable[[Namespace], Mapping[TopicName, Parameters]]:
    """Return a function `asked` that gives each topic these arguments as its parameters."""

    def asked(args: Namespace) -> Mapping[TopicName, Parameters]:
        of_each = {name: getattr(args, name) for name in names}
        return dict.fromkeys(args.topic, of_each)

    return asked
