"""The shape of a stage's plan that can be kept, and of the job that makes and executes it."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step, current_commits
from ebbtide.iceberg.own_tables import append_own, read_own
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.kafka.low_watermarks import ErrorCode
from ebbtide.ledger.plans import Bounds, PartitionSummary, Removal, Removes
from ebbtide.ledger.undo_points import UNDO_POINTS, UndoPoint
from ebbtide.moments import following, minute
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.text import NOTHING, aligned, changes_in_words, in_ranges, number, size, without_empty

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


NOTHING_CHANGED = "plan only, nothing was changed"
MAX_PARTITIONS = 200  # of a table; a plan is also kept with Airflow's run
# Columns that need another title than their name.
TITLES = {
    "records_in_segments": "records\nexpired",
    "record_bytes_expired": "their\nbytes",
    "records_expired": "single\nrecords\nexpired",
    "bytes_removed": "bytes\nremoved",
    "newest_record_ms": "newest record\nexpired (UTC)",
    "next_horizon_ms": "next horizon\ndue (UTC)",
    "low_watermark": "low\nwatermark",
}
# Numbers that are not shown here: in a sentence elsewhere, or for programs only.
LEFT_OUT = {"picked", "reason", "note", "error_code", "next_run", "held_back", "dirty_ratio"}
LEFT_OUT |= {"open_transaction", "uncleanable"}


def render_plan(job: str, topic: str, outcome: JobOutcome) -> str:
    """Return the plan of a job for one topic."""
    lines = [f"{job} {topic}: {NOTHING_CHANGED}"]
    lines += changes_in_words(outcome.topic.get("changes", {}))
    for stage in _stages(outcome.partitions):
        of_stage = {p: _of_stage(numbers, stage) for p, numbers in outcome.partitions.items()}
        lines += ["", f"what {stage} would then do:" if stage else "by partition:"]
        lines += [_table(of_stage), *_reasons(of_stage)]
    left = {**outcome.topic, **outcome.topic.get("next_run", {})}
    lines += [""]
    if "files_read" in left:
        lines += [f"reads {number(left['files_read'])} of {number(left['files'])} data files"]
    lines += [f"{key.replace('_', ' ')}: {_shown(key, value)}" for key, value in _plain(left)]
    lines += [str(numbers["note"]) for numbers in (outcome.topic,) if "note" in numbers]
    return "\n".join(lines).rstrip()


def _stages(partitions: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the jobs of a next run that the plan foresees; "" for the job's own numbers."""
    foreseen = [numbers["next_run"] for numbers in partitions.values() if "next_run" in numbers]
    return list(foreseen[0]) if foreseen else [""]


def _of_stage(numbers: Mapping[str, Any], stage: str) -> Mapping[str, Any]:
    of_stage: Mapping[str, Any] = numbers["next_run"].get(stage, {}) if stage else numbers
    return of_stage


def _table(partitions: Mapping[int, Mapping[str, Any]]) -> str:
    keys = list(dict.fromkeys(key for numbers in partitions.values() for key in numbers))
    keys = [key for key in keys if key not in LEFT_OUT]
    titles = [TITLES.get(key, key.replace("_", "\n")) for key in keys]
    rows = [
        [str(partition), *(_shown(key, numbers.get(key)) for key in keys)]
        for partition, numbers in list(partitions.items())[:MAX_PARTITIONS]
    ]
    table = aligned(*without_empty(("part", *titles), rows))
    more = len(partitions) - len(rows)
    return table + (f"\nand {more} partitions more" if more else "")


def _reasons(partitions: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """List why partitions have no work, grouped by reason."""
    by_reason: dict[str, list[int]] = {}
    for partition, numbers in partitions.items():
        for key in ("reason", "note"):
            if numbers.get(key):
                by_reason.setdefault(str(numbers[key]), []).append(partition)
    return [f"partition {in_ranges(of)}: {reason}" for reason, of in by_reason.items()]


def _plain(numbers: Mapping[str, Any]) -> list[tuple[str, Any]]:
    left_out = LEFT_OUT | {"changes", "seconds"}
    if "files_read" in numbers:
        left_out |= {"files_read", "files"}
    return [(key, value) for key, value in numbers.items() if key not in left_out]


def _shown(key: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items() if count) or "-"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "-"
    if not isinstance(value, int):
        return NOTHING if value == ErrorCode.NONE.name else str(value)
    if key.endswith("_ms"):
        return minute(value)
    return size(value) if "bytes" in key else number(value)


def new_point_id() -> str:
    """Return an id that no other point has."""
    return uuid.uuid4().hex


def note_before(topic: Topic, touched: Touched) -> None:
    """Keep the topic as it is before the job at work removes from it; nothing if it will not.

    An attempt that goes on where a killed one stopped adds a point; the first of a run counts.
    """
    commits, spark, name = current_commits(), topic.spark, topic.name
    if not touched.partitions or commits is None or topic.config.undo_ms == 0:
        return
    records = touched.records_snapshot or current_snapshot(spark, name.records_table)
    batches = touched.batches_snapshot
    if batches is None and not topic.is_adopted:
        batches = current_snapshot(spark, name.batches_table)
    append_point(
        spark,
        UndoPoint(
            point_id=new_point_id(),
            run_id=commits.run_id,
            job=commits.job,
            topic=str(name),
            at=datetime.now(UTC),
            records_snapshot=records,
            batches_snapshot=batches,
            states={p: topic.partitions[p] for p in touched.partitions},
            truncated=touched.truncated,
        ),
        Step.UNDO_POINT,
    )


def append_point(spark: SparkSession, point: UndoPoint, step: Step) -> None:
    """Store a point. Their times are in their order, also if a machine's clock goes back."""
    later = read_points(spark, TopicName.parse(point.topic), point.at)
    point = replace(point, at=following((known.at for known in later), point.at))
    append_own(spark, UNDO_POINTS, [point], step)


def read_points(
    spark: SparkSession, name: TopicName, since: datetime | None = None
) -> list[UndoPoint]:
    """Return a topic's points, those noted at `since` or later, in no order."""
    return read_own(spark, UNDO_POINTS, "topic", [str(name)], since)
