"""A plan in numbers: what goes by which rule, what stays and why, and what it takes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from ebbtide.text import in_ranges, number

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
    kept_by_holds: NotRequired[dict[str, int]]  # records that holds keep, by hold and case
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
        rules={str(rule): of for rule, of in rules.items() if any(of.values())},
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
        [ms for ms in (of[name] for of in (one, other)) if ms is not None]
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
