"""Plans as rows of `plans`: their offsets, summaries, events and guards."""

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
    """How many offsets of a partition would leave that the plan does not have, and the first."""

    partition: int
    number: int
    first: int

    def __str__(self) -> str:
        return f"{self.number:,} offsets of partition {self.partition} from {self.first} on"


def offset_range(start: int, end: int) -> BitMap64:
    """Return the offsets [start, end) as a run, however many there are."""
    offsets = BitMap64()
    if start < end:
        offsets.add_range(start, end)
    return offsets


def union(parts: Iterable[BitMap64]) -> BitMap64:
    """Return the offsets of all parts."""
    together = BitMap64()
    for part in parts:
        together |= part
    return together


def to_bytes(offsets: BitMap64) -> bytes:
    """Return the offsets in Roaring's portable format; the same offsets give the same bytes."""
    canonical = offsets.copy()
    canonical.run_optimize()
    serialized: bytes = canonical.serialize()
    return serialized


def from_bytes(serialized: bytes) -> BitMap64:
    """Return the offsets of Roaring's portable format."""
    return BitMap64.deserialize(serialized)


def new_offsets(removes: Removes, planned: Removes) -> list[NewOffsets]:
    """Return what would leave beyond a plan, by partition; empty where all is within it."""
    beyond = []
    for partition, offsets in sorted(removes.items()):
        new = offsets - planned.get(partition, BitMap64())
        if new:
            beyond.append(NewOffsets(partition, len(new), new.min()))
    return beyond


EXAMPLE_KEYS = 3  # of a partition


class RuleNumbers(TypedDict):
    """What one rule removes from a partition; bytes and segments where they are told by rule."""

    records: int
    bytes: NotRequired[int]
    segments: NotRequired[int]


class Staying(TypedDict):
    """Records of a partition that stay, and why."""

    reason: str
    records: NotRequired[int]


class PartitionSummary(TypedDict):
    """What leaves a partition: rows of its records table, whole files, bytes, and by rule.

    Bytes are of the log's batches; delete_records tells those of the data files. Event times are
    ms since the epoch, None where none is known. Example keys are the SHA-256 of their bytes, or
    text where the topic allows it.
    """

    records: int
    files: int
    bytes: int
    rules: dict[str, RuleNumbers]
    oldest_event_ms: int | None
    newest_event_ms: int | None
    example_keys: list[str]
    stays: list[Staying]
    sets: NotRequired[list[str]]  # what of the partition's state is set


class Summary(TypedDict):
    """A whole plan; `seconds` is what the job took for this topic before, None if never."""

    partitions: dict[str, PartitionSummary]
    seconds: float | None
    copied_for_holds: NotRequired[dict[str, int]]  # records that holds keep, by hold and case
    guard: NotRequired[str]  # what made a night keep the plan instead of executing it
    settings: NotRequired[dict[str, str]]  # the topic's settings that decided what to remove


@dataclass(slots=True)
class LeavingRows:
    """Rows of the records table that would leave a partition, and a few of their keys."""

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
    """Return a partition's summary; rules that remove nothing are left out."""
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
    """Return the summary of both; a record that both count is counted twice."""
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
    """Return the first different keys as text, or as their SHA-256 in hex."""
    different = list(dict.fromkeys(keys))[:EXAMPLE_KEYS]
    if is_clear:
        return [key.decode(errors="backslashreplace") for key in different]
    return [hashlib.sha256(key).hexdigest() for key in different]


def stays_in_words(partitions: Mapping[str, PartitionSummary]) -> list[str]:
    """Return what stays where, in the order of the plan: for each reason a line without an end."""
    listed: dict[tuple[str, bool], Counter[int]] = {}
    for partition, of_partition in partitions.items():
        for stays in of_partition["stays"]:
            records = listed.setdefault((stays["reason"], "records" in stays), Counter())
            records[int(partition)] += stays.get("records", 0)
    lines = []
    for (reason, is_counted), records in listed.items():
        where = f"{'partitions' if len(records) > 1 else 'partition'} {in_ranges(records)}"
        total = records.total()
        one = "1 record stays" if total == 1 else f"{number(total)} records stay"
        what = f"{one} in {where}" if is_counted else f"nothing leaves {where}"
        lines.append(f"{what}: {reason}")
    return lines


# What a job asked for, by partition; each job has bounds of its own.
Bounds = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job would remove from a topic at `now`, and who asked; times are UTC.

    `parameters` are enough to make the plan anew. `bounds` hold for each partition what is fixed,
    such as the log end offset. `snapshots` has the tables that it was made on, each by its id and
    snapshot. `removes` is None where a reader leaves it out.
    """

    plan_id: str
    job: str
    topic: str
    run_id: str
    dag: str | None
    requested_by: str | None
    made_at: datetime
    expires_at: datetime
    now: datetime
    parameters: Mapping[str, Any]
    bounds: Bounds
    snapshots: Mapping[str, Mapping[str, Any]]
    removes: Removes | None
    summary: Mapping[str, Any]
    text: str
    digest: str = ""

    @property
    def own_digest(self) -> str:
        """The SHA-256, in hex, of all that decides what an execution may remove.

        It is `digest` unless somebody edited the plan's row.
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
        """Return the plan with the digest of what it says."""
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
    bounds STRING COMMENT 'JSON: per partition what the plan fixes, such as the log end offset',
    snapshots STRING COMMENT 'JSON: the tables it was made on, each by its id and snapshot',
    removes MAP<INT, BINARY>
        COMMENT 'per partition the offsets that would leave, a 64-bit Roaring bitmap',
    summary STRING COMMENT 'JSON: per partition and rule what goes, what stays and why',
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
    """Return a new id: the job, the day and eight hexadecimal digits."""
    return f"{job}-{made_at:%Y%m%d}-{uuid.uuid4().hex[:8]}"


FOUR_EYES = "ebbtide.plan.four.eyes"
FOUR_EYES_OF_ALL = "EBBTIDE_FOUR_EYES"  # in the environment
UNANSWERED = "nobody answered in time"  # the note of a rejection by nobody


class PlanStep(StrEnum):
    """The kinds of events of a plan."""

    APPROVED = "approved"
    REJECTED = "rejected"
    EXECUTED = "executed"
    EXCEEDED = "exceeded"  # an execution would have removed more than the plan has
    REPLACED = "replaced"  # by a newer plan for the same

    @classmethod
    def _missing_(cls, value: object) -> PlanStep | None:
        """Return the kind that version 0.1 has named otherwise."""
        return cls.EXCEEDED if value == "stopped" else None


class Standing(StrEnum):
    """How a plan stands at a moment."""

    OPEN = "open"
    APPROVED = "approved"
    EXPIRED = "expired"
    REJECTED = "rejected"
    EXECUTED = "executed"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """One event of a plan, a row of `lake.ebbtide.plan_events`; times are UTC.

    `numbers` holds what an execution removed beside what was planned.
    """

    plan_id: str
    digest: str
    event: PlanStep
    by: str | None
    at: datetime
    note: str | None = None
    run_id: str | None = None
    numbers: Mapping[str, Any] | None = None


PLAN_EVENTS = OwnTable(
    name="plan_events",
    columns="""
    plan_id STRING, digest STRING,
    event STRING COMMENT 'approved, rejected, executed, exceeded or replaced',
    `by` STRING, `at` TIMESTAMP, note STRING, run_id STRING,
    numbers STRING COMMENT 'JSON: what an execution removed beside what was planned'
    """,
    day="at",
    build=PlanEvent,
    cells={"event": Cell(str, PlanStep), "numbers": JSON},
)


# Events after which a plan is closed.
_CLOSED = {
    PlanStep.EXECUTED: Standing.EXECUTED,
    PlanStep.REJECTED: Standing.REJECTED,
    PlanStep.REPLACED: Standing.REPLACED,
}


def standing_of(plan: Plan, events: Sequence[PlanEvent], at: datetime) -> Standing:
    """Return how the plan stands; `events` are its own, in any order."""
    for event, standing in _CLOSED.items():
        if any(plan_event.event is event for plan_event in events):
            return standing
    if at >= plan.expires_at:
        return Standing.EXPIRED
    return Standing.OPEN if approver_of(plan, events) is None else Standing.APPROVED


def approver_of(plan: Plan, events: Sequence[PlanEvent]) -> str | None:
    """Return who approved this very plan last; None where nobody did."""
    approvals = [e for e in events if e.event is PlanStep.APPROVED and e.digest == plan.digest]
    return max(approvals, key=lambda event: event.at).by if approvals else None


def check_may_execute(plan: Plan, events: Sequence[PlanEvent], job: str, at: datetime) -> None:
    """Raise PlanError for a plan of another job, an edited one, or one that is closed."""
    if plan.job != job:
        raise PlanError(
            f"expected a plan of {job}, found that {plan.plan_id} is one of {plan.job}; "
            "execute it with that job"
        )
    if plan.own_digest != plan.digest:
        raise PlanError(
            f"expected plan {plan.plan_id} to have the digest {plan.digest[:12]}, found "
            f"{plan.own_digest[:12]}: somebody edited its row; make a new plan"
        )
    standing = standing_of(plan, events, at)
    if standing not in (Standing.OPEN, Standing.APPROVED):
        raise PlanError(
            f"expected an open plan, found {plan.plan_id} {_described(standing, plan, events)}; "
            "make a new plan"
        )


def _described(standing: Standing, plan: Plan, events: Sequence[PlanEvent]) -> str:
    if standing is Standing.EXPIRED:
        return f"expired at {plan.expires_at:%Y-%m-%d %H:%M} UTC"
    last = max((e for e in events if e.event == str(standing)), key=lambda event: event.at)
    by = f" by {last.by}" if last.by else ""
    if last.note == UNANSWERED:
        by = f", since {UNANSWERED},"
    return f"{standing}{by} at {last.at:%Y-%m-%d %H:%M} UTC"


def needs_four_eyes(properties: Mapping[str, str], of_all: str | None) -> bool:
    """Return whether the topic's properties, or the variable for all topics, ask for two people.

    A topic with a wrong setting must still be one that configure_topic can repair.
    """
    texts = (of_all, properties.get(FOUR_EYES))
    return any((text or "").strip().lower() == "true" for text in texts)


def check_four_eyes(plan: Plan, approver: str | None) -> None:
    """Raise PlanError unless somebody other than who asked for the plan has approved it."""
    if not approver:
        raise PlanError(
            f"expected plan {plan.plan_id} to be approved before it is executed, since "
            f"{FOUR_EYES} is set, found no approval; have another person approve it"
        )
    if not plan.requested_by:
        raise PlanError(
            f"expected plan {plan.plan_id} to say who asked for it, since {FOUR_EYES} is set, "
            "found that it does not; make a new plan with --requested-by"
        )
    if approver.strip().casefold() == plan.requested_by.strip().casefold():
        raise PlanError(
            f"expected another person than {plan.requested_by}, who asked for plan "
            f"{plan.plan_id}, to approve it, since {FOUR_EYES} is set, found the same; have "
            "somebody else approve it"
        )


RATIO = "ebbtide.max.delete.ratio"
RECORDS = "ebbtide.max.delete.records"
BYTES = "ebbtide.max.delete.bytes"
EMPTIED = "ebbtide.max.emptied.partitions"


class Removal(NamedTuple):
    """What a stage would remove from a topic: the bytes of the log, and their share in [0, 1]."""

    records: int
    bytes: int
    share: float = 0.0
    emptied_partitions: int = 0


def tripped(name: str, config: TopicConfig, removal: Removal) -> str:
    """Return which guards a removal trips, each with its setting and number; empty where none."""
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
    return f"expected to remove at most {most} of {name}, found {' and '.join(found)}"


def _guard_shown(amount: float) -> str:
    """Return a count with its thousands marked, or a share to four digits."""
    return f"{amount:.4g}" if isinstance(amount, float) else f"{amount:,}"
