"""Plans as rows of `plans`: offsets, summaries, events and guards."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, NotRequired, TypedDict

from pyroaring import BitMap64

from ebbtide.errors import PlanError
from ebbtide.ledger.own_tables import JSON, Cell, OwnTable
from ebbtide.settings.config import TopicConfig
from ebbtide.text import in_ranges, number

# The offsets of each partition that would leave its log.
Removes = Mapping[int, BitMap64]


class NewOffsets(NamedTuple):
    """Offsets of a partition that would be removed and are not in the plan: number and first."""

    partition: int
    number: int
    first: int

    def __str__(self) -> str:
        return f"{self.number:,} offsets of partition {self.partition} from {self.first} on"


def offset_range(start: int, end: int) -> BitMap64:
    """Return the offsets [start, end) as one run, in constant space."""
    offsets = BitMap64()
    if start < end:
        offsets.add_range(start, end)
    return offsets


def union(parts: Iterable[BitMap64]) -> BitMap64:
    """Return the union of all parts."""
    together = BitMap64()
    for part in parts:
        together |= part
    return together


def to_bytes(offsets: BitMap64) -> bytes:
    """Return the offsets in Roaring's portable format. Equal sets give equal bytes."""
    canonical = offsets.copy()
    canonical.run_optimize()
    serialized: bytes = canonical.serialize()
    return serialized


def from_bytes(serialized: bytes) -> BitMap64:
    """Return the offsets from Roaring's portable format."""
    return BitMap64.deserialize(serialized)


def new_offsets(removes: Removes, planned: Removes) -> list[NewOffsets]:
    """Return the offsets that would be removed and are not in the plan, by partition."""
    beyond = []
    for partition, offsets in sorted(removes.items()):
        new = offsets - planned.get(partition, BitMap64())
        if new:
            beyond.append(NewOffsets(partition, len(new), new.min()))
    return beyond


EXAMPLE_KEYS = 3  # of a partition


class RuleNumbers(TypedDict):
    """A rule's removal from a partition; bytes and segments if they are counted by rule."""

    records: int
    bytes: NotRequired[int]
    segments: NotRequired[int]


class Staying(TypedDict):
    """Records of a partition that are retained, and why."""

    reason: str
    records: NotRequired[int]


class PartitionSummary(TypedDict):
    """Numbers of a removal from a partition."""

    records: int
    files: int  # removed entirely
    bytes: int  # of the log's batches; in delete_records of the data files
    rules: dict[str, RuleNumbers]
    oldest_event_ms: int | None  # ms since the epoch; None: not known
    newest_event_ms: int | None
    example_keys: list[str]  # SHA-256 in hex, or text if ebbtide.plan.show.keys
    stays: list[Staying]
    sets: NotRequired[list[str]]  # fields of the partition's state that change


class Summary(TypedDict):
    """A plan in numbers; `seconds` is the duration of the last such run, None if there was none."""

    partitions: dict[str, PartitionSummary]
    seconds: float | None
    copied_for_holds: NotRequired[dict[str, int]]  # records that holds keep, by hold and case
    guard: NotRequired[str]  # what made a night keep the plan instead of executing it
    settings: NotRequired[dict[str, str]]  # the topic's settings that decided what to remove


@dataclass(slots=True)
class LeavingRows:
    """Records that would be removed from a partition, and a few of their keys."""

    records: int = 0
    files: int = 0  # that leave as a whole
    event_times_ms: list[int] = field(default_factory=list)  # the extremes among others
    keys: list[bytes] = field(default_factory=list)


def partition_summary(
    rows: LeavingRows,
    rules: Mapping[str, RuleNumbers],
    stays: Iterable[Staying] = (),
    *,
    bytes_removed: int = 0,
    shows_keys: bool = False,
    sets: Sequence[str] = (),
) -> PartitionSummary:
    """Return a partition's summary without rules that remove nothing."""
    summary = PartitionSummary(
        records=rows.records,
        files=rows.files,
        bytes=bytes_removed,
        rules={str(rule): numbers for rule, numbers in rules.items() if any(numbers.values())},
        oldest_event_ms=min(rows.event_times_ms, default=None),
        newest_event_ms=max(rows.event_times_ms, default=None),
        example_keys=_shown(rows.keys, is_clear=shows_keys),
        stays=list(stays),
    )
    if sets:
        summary["sets"] = list(sets)
    return summary


def together(one: PartitionSummary, other: PartitionSummary) -> PartitionSummary:
    """Return the sum of two summaries; a record in both is counted twice."""
    times = [
        [ms for ms in (summary[name] for summary in (one, other)) if ms is not None]
        for name in ("oldest_event_ms", "newest_event_ms")
    ]
    return PartitionSummary(
        records=one["records"] + other["records"],
        files=one["files"] + other["files"],
        bytes=one["bytes"] + other["bytes"],
        rules={**one["rules"], **other["rules"]},
        oldest_event_ms=min(times[0], default=None),
        newest_event_ms=max(times[1], default=None),
        example_keys=[*one["example_keys"], *other["example_keys"]][:EXAMPLE_KEYS],
        stays=[*one["stays"], *other["stays"]],
    )


def _shown(keys: Sequence[bytes], *, is_clear: bool) -> list[str]:
    """Return the first distinct keys as text, or as SHA-256 in hex."""
    different = list(dict.fromkeys(keys))[:EXAMPLE_KEYS]
    if is_clear:
        return [key.decode(errors="backslashreplace") for key in different]
    return [hashlib.sha256(key).hexdigest() for key in different]


def stays_in_words(partitions: Mapping[str, PartitionSummary]) -> list[str]:
    """Return a line per reason with the records that are retained, in the order of the plan."""
    listed: dict[tuple[str, bool], Counter[int]] = {}
    for partition, of_partition in partitions.items():
        for stays in of_partition["stays"]:
            records = listed.setdefault((stays["reason"], "records" in stays), Counter())
            records[int(partition)] += stays.get("records", 0)
    lines = []
    for (reason, is_counted), records in listed.items():
        where = f"{'partitions' if len(records) > 1 else 'partition'} {in_ranges(records)}"
        total = records.total()
        one = "1 record is retained" if total == 1 else f"{number(total)} records are retained"
        what = f"{one} in {where}" if is_counted else f"nothing is removed from {where}"
        lines.append(f"{what}: {reason}")
    return lines


# What a job asked for, by partition; each job has bounds of its own.
Bounds = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A removal that a job plans for a topic at `now`; times are UTC."""

    plan_id: str
    job: str
    topic: str
    run_id: str
    dag: str | None
    requested_by: str | None
    made_at: datetime
    expires_at: datetime
    now: datetime
    parameters: Mapping[str, Any]  # enough to make the plan again
    bounds: Bounds  # by partition, such as the log end offset
    snapshots: Mapping[str, Mapping[str, Any]]  # the tables, each with its id and snapshot
    removes: Removes | None  # None if a reader leaves it out
    summary: Mapping[str, Any]
    text: str
    digest: str = ""

    @property
    def own_digest(self) -> str:
        """The SHA-256, in hex, of all that decides what an execution may remove.

        It equals `digest` unless the plan's row was edited.
        """
        assert self.removes is not None
        bounds = {
            str(partition): dict(partition_bounds)
            for partition, partition_bounds in self.bounds.items()
        }
        now = self.now.astimezone(UTC).isoformat()
        text = json.dumps([self.job, self.topic, now, self.parameters, bounds], sort_keys=True)
        digest = hashlib.sha256(text.encode())
        for partition, offsets in sorted(self.removes.items()):
            if offsets:
                serialized = to_bytes(offsets)
                digest.update(f"\n{partition} {len(serialized)}\n".encode())
                digest.update(serialized)
        return digest.hexdigest()

    def sealed(self) -> Plan:
        """Return the plan with its digest."""
        return replace(self, digest=self.own_digest)


def _bounds(text: str) -> Bounds:
    return {int(partition): bounds for partition, bounds in json.loads(text).items()}


def _cells_of_offsets(removes: Removes) -> list[tuple[int, bytes]]:
    return [(partition, to_bytes(offsets)) for partition, offsets in sorted(removes.items())]


def _offsets(cells: Iterable[tuple[int, bytes]]) -> Removes:
    return {partition: from_bytes(offsets) for partition, offsets in cells}


PLANS = OwnTable(
    name="plans",
    columns="""
    plan_id STRING, job STRING, topic STRING, run_id STRING, dag STRING,
    requested_by STRING, made_at TIMESTAMP, expires_at TIMESTAMP, `now` TIMESTAMP,
    parameters STRING COMMENT 'JSON: what the job was asked',
    bounds STRING COMMENT 'JSON: by partition the bounds of the plan, such as the log end offset',
    snapshots STRING COMMENT 'JSON: the tables of the plan, each with its id and snapshot',
    removes MAP<INT, BINARY>
        COMMENT 'by partition the offsets to remove, as a 64-bit Roaring bitmap',
    summary STRING COMMENT 'JSON: by partition and rule what is removed, what is retained and why',
    text STRING COMMENT 'the plan as the job prints it',
    digest STRING COMMENT 'SHA-256 of all that decides what an execution may remove'
    """,
    day="made_at",
    build=Plan,
    cells={
        **dict.fromkeys(("parameters", "snapshots", "summary"), JSON),
        "bounds": Cell(json.dumps, _bounds),
        "removes": Cell(_cells_of_offsets, _offsets),
    },
)


def new_plan_id(job: str, made_at: datetime) -> str:
    """Return a new plan id: job, day and eight hexadecimal digits."""
    return f"{job}-{made_at:%Y%m%d}-{uuid.uuid4().hex[:8]}"


FOUR_EYES = "ebbtide.plan.four.eyes"
FOUR_EYES_OF_ALL = "EBBTIDE_FOUR_EYES"  # in the environment
UNANSWERED = "no answer in time"  # the note of a rejection by nobody


class PlanStep(StrEnum):
    """The kinds of a plan's events."""

    APPROVED = "approved"
    REJECTED = "rejected"
    EXECUTED = "executed"
    EXCEEDED = "exceeded"  # an execution would have removed more than the plan has
    REPLACED = "replaced"  # by a newer plan for the same


class Standing(StrEnum):
    """The standing of a plan at a point in time."""

    OPEN = "open"
    APPROVED = "approved"
    EXPIRED = "expired"
    REJECTED = "rejected"
    EXECUTED = "executed"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """One event of a plan: a row of `lake.ebbtide.plan_events`; times are UTC."""

    plan_id: str
    digest: str
    event: PlanStep
    by: str | None
    at: datetime
    note: str | None = None
    run_id: str | None = None
    numbers: Mapping[str, Any] | None = None  # of an execution: removed, and planned


def _plan_step(text: str) -> PlanStep:
    return PlanStep.EXCEEDED if text == "stopped" else PlanStep(text)  # its name in version 0.1


PLAN_EVENTS = OwnTable(
    name="plan_events",
    columns="""
    plan_id STRING, digest STRING,
    event STRING COMMENT 'approved, rejected, executed, exceeded or replaced',
    `by` STRING, `at` TIMESTAMP, note STRING, run_id STRING,
    numbers STRING COMMENT 'JSON: planned and removed records, or the offsets that were not planned'
    """,
    day="at",
    build=PlanEvent,
    cells={"event": Cell(str, _plan_step), "numbers": JSON},
)


# Events after which a plan is closed.
_CLOSED = {
    PlanStep.EXECUTED: Standing.EXECUTED,
    PlanStep.REJECTED: Standing.REJECTED,
    PlanStep.REPLACED: Standing.REPLACED,
}


def standing_of(plan: Plan, events: Sequence[PlanEvent], at: datetime) -> Standing:
    """Return the plan's standing; `events` are its own, in any order."""
    for event, standing in _CLOSED.items():
        if any(plan_event.event is event for plan_event in events):
            return standing
    if at >= plan.expires_at:
        return Standing.EXPIRED
    return Standing.OPEN if approver_of(plan, events) is None else Standing.APPROVED


def approver_of(plan: Plan, events: Sequence[PlanEvent]) -> str | None:
    """Return who approved the plan with this digest last, or None."""
    approvals = [e for e in events if e.event is PlanStep.APPROVED and e.digest == plan.digest]
    return max(approvals, key=lambda event: event.at).by if approvals else None


def check_may_execute(plan: Plan, events: Sequence[PlanEvent], job: str, at: datetime) -> None:
    """Raise PlanError if the plan is of another job, was edited, or is closed."""
    if plan.job != job:
        raise PlanError(
            f"expected a plan of {job}, found {plan.plan_id}, a plan of {plan.job}. Execute it "
            f"with {plan.job}"
        )
    if plan.own_digest != plan.digest:
        raise PlanError(
            f"expected the digest {plan.digest[:12]} of plan {plan.plan_id}, found "
            f"{plan.own_digest[:12]}: its row was edited. Make a new plan"
        )
    standing = standing_of(plan, events, at)
    if standing not in (Standing.OPEN, Standing.APPROVED):
        raise PlanError(
            f"expected an open plan, found {plan.plan_id} {_described(standing, plan, events)}. "
            "Make a new plan"
        )


def _described(standing: Standing, plan: Plan, events: Sequence[PlanEvent]) -> str:
    if standing is Standing.EXPIRED:
        return f"expired at {plan.expires_at:%Y-%m-%d %H:%M} UTC"
    last = max((e for e in events if e.event == str(standing)), key=lambda event: event.at)
    by = f" by {last.by}" if last.by else ""
    if last.note == UNANSWERED:
        by = f" ({UNANSWERED})"
    return f"{standing}{by} at {last.at:%Y-%m-%d %H:%M} UTC"


def needs_four_eyes(properties: Mapping[str, str], of_all: str | None) -> bool:
    """Return whether the topic's properties, or the variable for all topics, require two people.

    It reads no other setting, so that configure_topic can repair a wrong one.
    """
    texts = (of_all, properties.get(FOUR_EYES))
    return any((text or "").strip().lower() == "true" for text in texts)


def check_four_eyes(plan: Plan, approver: str | None) -> None:
    """Raise PlanError unless a second person has approved the plan."""
    if not approver:
        raise PlanError(
            f"expected an approval of plan {plan.plan_id} by a second person ({FOUR_EYES} is "
            "set), found none. Ask another person to approve it"
        )
    if not plan.requested_by:
        raise PlanError(
            f"expected plan {plan.plan_id} with the person who asked for it ({FOUR_EYES} is set), "
            "found no such person. Make a new plan with --requested-by"
        )
    if approver.strip().casefold() == plan.requested_by.strip().casefold():
        raise PlanError(
            f"expected an approval of plan {plan.plan_id} by a second person ({FOUR_EYES} is "
            f"set), found one by {plan.requested_by}, who asked for the plan. Ask another person "
            "to approve it"
        )


RATIO = "ebbtide.max.delete.ratio"
RECORDS = "ebbtide.max.delete.records"
BYTES = "ebbtide.max.delete.bytes"
EMPTIED = "ebbtide.max.emptied.partitions"


class Removal(NamedTuple):
    """A stage's removal from a topic: bytes of the log and their share in [0, 1]."""

    records: int
    bytes: int
    share: float = 0.0
    emptied_partitions: int = 0


def tripped(name: str, config: TopicConfig, removal: Removal) -> str:
    """Return the guards that a removal trips, with their settings and numbers; empty if none."""
    emptied = removal.emptied_partitions
    guards: list[tuple[str, str, float | None, float]] = [
        (RATIO, "of the bytes", config.max_delete_ratio, removal.share),
        (RECORDS, "records", config.max_delete_records, removal.records),
        (BYTES, "bytes", config.max_delete_bytes, removal.bytes),
        (EMPTIED, "emptied partitions", config.max_emptied_partitions, emptied),
    ]
    allowed, found = [], []
    for setting, unit, limit, amount in guards:
        if limit is not None and amount > limit:
            allowed.append(f"{_guard_shown(limit)} {unit} ({setting})")
            found.append(f"{_guard_shown(amount)} {unit}")
    if not found:
        return ""
    most = " and ".join(allowed)
    return f"expected a removal of at most {most} of {name}, found {' and '.join(found)}"


def _guard_shown(amount: float) -> str:
    """Return a count with thousands separators, or a share to four digits."""
    return f"{amount:.4g}" if isinstance(amount, float) else f"{amount:,}"
