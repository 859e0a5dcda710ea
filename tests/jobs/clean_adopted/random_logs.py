"""Random logs of single records that grow night after night, for Kafka's cleaner and for ours."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kafka.oracle import GrownSegment, LogState, Round, SourceLog
from tests.log.log_files import data_batch, write_log
from tests.tables.adopted import Record

T0 = 1_700_000_000_000
NIGHTS = 5
TIMES_MS = (1, 1_000, 60_000)
KEYS = (*"abcdefgh", None)

# Offsets that live, with the delete horizon of each tombstone; None where it has none yet.
Left = dict[int, int | None]


class RandomTopic(NamedTuple):
    """Logs by partition, each a list of records a night; all have the settings and clocks."""

    config: dict[str, str]
    nights_ms: Sequence[int]
    logs: Sequence[Sequence[Sequence[Record]]]


def random_topic(
    seed: int, logs: int, nights: int = NIGHTS, *, has_tombstones: bool = True
) -> RandomTopic:
    rng = random.Random(f"adopted {seed}")
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": str(rng.choice(TIMES_MS)),
        "min.compaction.lag.ms": str(rng.choice((0, 0, 1_000))),
    }
    nights_ms = [T0]
    for _ in range(nights):
        nights_ms.append(nights_ms[-1] + rng.choice(TIMES_MS))
    tombstones = 0.35 if has_tombstones else 0
    grown = [_log(rng, partition, nights_ms, tombstones) for partition in range(logs)]
    return RandomTopic(config, nights_ms[1:], grown)


def _log(
    rng: random.Random, partition: int, nights_ms: Sequence[int], tombstones: float
) -> list[list[Record]]:
    offset, nights = 0, []
    for number, at_ms in enumerate(nights_ms[:-1]):
        night = []
        for _ in range(rng.randint(0 if number else 1, 9)):
            value = None if rng.random() < tombstones else "v"
            key = rng.choice(KEYS)
            night.append(Record(offset, key, value, partition, at_ms - rng.randint(0, 900)))
            offset += rng.choice((1, 1, 1, 2, 5))
        nights.append(night)
    return nights


def source_of(topic: RandomTopic, partition: int, directory: Path) -> SourceLog:
    """The log for Kafka: it rolls a segment where a night has found the log end."""
    first, *later = topic.logs[partition]
    active, grown = _end(first), [[]]
    write_log(directory, {0: _batches(first), active: []})
    for night in later:
        segments = []
        if night:
            end = _end(night)
            segments = [
                GrownSegment(active, T0, b"".join(_batches(night))),
                GrownSegment(end, T0, b""),
            ]
            active = end
        grown.append(segments)
    rounds = [Round(now_ms=n, grown=g) for n, g in zip(topic.nights_ms, grown, strict=True)]
    return SourceLog(directory=directory, config=topic.config, rounds=rounds)


def _batches(night: Sequence[Record]) -> list[bytes]:
    return [data_batch(r.offset, (r.key, r.value), at_ms=r.timestamp_ms) for r in night]


def _end(night: Sequence[Record]) -> int:
    return night[-1].offset + 1


def left_by_kafka(state: LogState) -> Left:
    horizons = {batch.base_offset: batch.delete_horizon_ms for batch in state.batches}
    return {
        record.offset: horizons[record.batch] if record.value is None else None
        for record in state.records
    }
