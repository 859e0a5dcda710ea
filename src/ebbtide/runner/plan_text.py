"""Render a plan as text, for the log, a file and the table of plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.kafka.low_watermarks import ErrorCode
from ebbtide.moments import minute
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.text import NOTHING, aligned, changes_in_words, in_ranges, number, size, without_empty

NOTHING_CHANGED = "plan only, nothing was changed"
MAX_PARTITIONS = 200  # in a table; Airflow stores a plan's text with its run
# Columns whose title is not their name.
TITLES = {
    "records_in_segments": "records\nexpired",
    "record_bytes_expired": "their\nbytes",
    "records_expired": "single\nrecords\nexpired",
    "bytes_removed": "bytes\nremoved",
    "newest_record_ms": "newest record\nexpired (UTC)",
    "next_horizon_ms": "next horizon\ndue (UTC)",
    "low_watermark": "low\nwatermark",
}
# Numbers that the table omits: a sentence below it has them, or they are for programs only.
LEFT_OUT = {
    "picked",
    "reason",
    "note",
    "error_code",
    "next_run",
    "waiting_for_replicas",
    "dirty_ratio",
}
LEFT_OUT |= {"open_transaction", "uncleanable"}


def render_plan(job: str, topic: str, outcome: JobOutcome) -> str:
    """Return the plan of a job for one topic."""
    lines = [f"{job} {topic}: {NOTHING_CHANGED}"]
    lines += changes_in_words(outcome.topic.get("changes", {}))
    for stage in _stages(outcome.partitions):
        of_stage = {p: _of_stage(numbers, stage) for p, numbers in outcome.partitions.items()}
        lines += ["", f"{stage} in the next nightly run:" if stage else "by partition:"]
        lines += [_table(of_stage), *_reasons(of_stage)]
    left = {**outcome.topic, **outcome.topic.get("next_run", {})}
    lines += [""]
    if "files_read" in left:
        lines += [f"reads {number(left['files_read'])} of {number(left['files'])} data files"]
    lines += [f"{key.replace('_', ' ')}: {_shown(key, value)}" for key, value in _plain(left)]
    lines += [str(numbers["note"]) for numbers in (outcome.topic,) if "note" in numbers]
    return "\n".join(lines).rstrip()


def _stages(partitions: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the stages of the next nightly run in the plan; "" stands for the job itself."""
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
    return table + (f"\nand {more} more partitions" if more else "")


def _reasons(partitions: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """List the reasons and notes of partitions, one line per text."""
    by_reason: dict[str, list[int]] = {}
    for partition, numbers in partitions.items():
        for key in ("reason", "note"):
            if numbers.get(key):
                by_reason.setdefault(str(numbers[key]), []).append(partition)
    return [f"partition {in_ranges(group)}: {reason}" for reason, group in by_reason.items()]


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
