"""The shape of a stage's plan that can be kept, and of the job that makes and executes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import Topic
from ebbtide.log.plans.guards import Removal
from ebbtide.log.plans.offsets import Removes
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.plans.summary import PartitionSummary
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.runs_table import JobOutcome

LOG_END = "log_end_offset"  # of a plan's bounds


class Order(NamedTuple):
    """What a job is asked to plan for a topic.

    `bounds` are a kept plan's: the new plan stays within them. `keeps_offsets` asks for the
    offsets that would leave, which not every run works out. `approved_by` is who approved the
    kept plan that is executed.
    """

    now_ms: int
    parameters: Mapping[str, Any]
    bounds: Bounds | None = None
    keeps_offsets: bool = False
    is_plan_only: bool = False
    approved_by: str | None = None


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
        """Return the offsets that would leave, if the order asked for them."""
        return {}

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


P = TypeVar("P", bound=Proposal)
Parameters = Mapping[str, Any]


def as_asked(_: SparkSession, __: TopicName, order: Order) -> Parameters:
    """Return the parameters: the request leaves nothing open."""
    return order.parameters


def removes_records(proposal: Proposal) -> bool:
    """Return whether any record would leave."""
    return any(proposal.removes().values())


@dataclass(frozen=True, slots=True)
class PlannedJob(Generic[P]):
    """A job's two halves: from an order to a plan, and from a plan to what was done.

    `propose` returns an outcome where the order is refused as a whole. `is_by_hand` tells a job
    that a person asks for from one that follows the topic's settings; `needs_approval` tells which
    of its plans another person has to approve where the rule of four eyes holds. `resolve` looks up
    what a request leaves open, once, so that a kept plan says it. `repairs` tells a job for topics
    whose rows or state others have changed, at which every other job stops.
    """

    propose: Callable[[SparkSession, TopicName, Order], P | JobOutcome]
    execute: Callable[[P], JobOutcome]
    is_by_hand: bool = False
    needs_approval: Callable[[P], bool] = removes_records
    resolve: Callable[[SparkSession, TopicName, Order], Parameters] = as_asked
    repairs: bool = False
