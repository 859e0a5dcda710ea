"""Random logs through Kafka's own classes and through `ebbtide.log`, by the thousand.

`python -m tests.log.fuzz --logs 100000 --seed 7`; goes on with `--first N` where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Self

from tests.kafka.oracle import JARS, compiled_classes
from tests.kafka.random_logs import random_topic
from tests.kafka.scenarios import Topic, to_json
from tests.log.proof import Compared
from tests.log.replay import Replay, replay_topics
from tests.log.shrink import shrink

REGRESSIONS = Path(__file__).parent / "regressions"
PROCESSES = 2
CHUNK = 250
SEEDS_APART = 10**9
LINE_WIDTH = 98


@dataclass
class Summary(Compared):
    """What a run of logs showed; `failed` has the numbers of those that differ."""

    estimates: list[tuple[int, int]] = field(default_factory=list)
    failed: dict[int, list[str]] = field(default_factory=dict)

    def add(self, other: Self) -> None:
        """Count the other's logs too."""
        super().add(other)
        self.estimates += other.estimates
        self.failed |= other.failed

    def __str__(self) -> str:
        rounds = ", ".join(f"{count} {picked}" for picked, count in self.picked.most_common())
        lines = [
            f"{self.logs} logs, {self.picked.total()} rounds ({rounds}): "
            f"{len(self.failed)} differ, {self.refused} refused, "
            f"{self.markers_kept_longer} rounds keep a marker longer"
        ]
        if self.estimates:
            errors = sorted(abs(ours - theirs) / theirs for ours, theirs in self.estimates)
            shares = [f"p{p} {errors[len(errors) * p // 100]:.1%}" for p in (50, 99)]
            lines.append(
                f"{len(errors)} compressed batches written anew, size off by {', '.join(shares)}"
            )
        return "\n".join(lines)


def topic_of(seed: int, number: int) -> Topic:
    """Log `number` of a seed."""
    return random_topic(seed * SEEDS_APART + number)


def run_chunk(seed: int, numbers: range) -> Summary:
    """Compare these logs."""
    summary = Summary()
    topics = [topic_of(seed, number) for number in numbers]
    for number, (outcome,) in zip(numbers, replay_topics(topics, JARS), strict=True):
        _count(summary, number, outcome)
    return summary


def _count(summary: Summary, number: int, outcome: Replay) -> None:
    summary.logs += 1
    summary.refused += outcome.is_refused
    summary.picked.update(outcome.picked)
    summary.markers_kept_longer += outcome.markers_kept_longer
    summary.estimates += outcome.estimates
    if outcome.differences:
        summary.failed[number] = outcome.differences


def run(seed: int, numbers: range) -> Iterator[Summary]:
    """The summary of each chunk of logs, in order."""
    compiled_classes(JARS)
    chunks = [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_chunk, [seed] * len(chunks), chunks)


def write_smallest(seed: int, number: int) -> Path:
    """Shrink the log that differs, and write it where regression tests are found."""
    smallest = shrink(topic_of(seed, number), JARS)
    ((outcome,),) = replay_topics([smallest], JARS)
    REGRESSIONS.mkdir(exist_ok=True)
    path = REGRESSIONS / f"seed-{seed}-log-{number}.json"
    described = {"shows": outcome.differences[:3], **to_json(smallest)}
    path.write_text(as_text(described) + "\n")
    return path


def as_text(value: object, indent: str = "") -> str:
    """JSON in which whatever fits is on one line."""
    flat = json.dumps(value)
    if len(indent) + len(flat) <= LINE_WIDTH or not isinstance(value, dict | list):
        return flat
    deeper = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {as_text(item, deeper)}" for name, item in value.items()]
    else:
        items = [as_text(item, deeper) for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}{last}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run and tell how far it is; 1 where a log differs, or too little was compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="the number of the first log")
    arguments = parser.parse_args(argv)
    total, started = Summary(), time.monotonic()
    for summary in run(arguments.seed, range(arguments.first, arguments.logs)):
        total.add(summary)
        done, seconds = arguments.first + total.logs, time.monotonic() - started
        print(
            f"fuzz: {done} of {arguments.logs} logs, {len(total.failed)} differ, "
            f"{total.logs / seconds:.0f} a second; --seed {arguments.seed} --first {done} goes on",
            file=sys.stderr,
        )
        for number, lines in summary.failed.items():
            print(f"log {number}:", *lines[:5], sep="\n  ")
            print(f"smallest: {write_smallest(arguments.seed, number)}")
    print(*total.gaps(), total, sep="\n")
    return 1 if total.failed or total.gaps() else 0


if __name__ == "__main__":
    sys.exit(main())
