"""Random topics, determined by a seed: logs that grow, and rounds at times that matter to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.kafka.random_writer import T0, Flavour, LogWriter
from tests.kafka.scenarios import Partition, Topic, TopicRound, WrittenSegment

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TIMES_MS = (0, 1, MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS, 3 * DAY_MS)
EXPIRATIONS_MS = (1, MINUTE_MS, HOUR_MS, DAY_MS, 2**31 - 1, 2**31 - 1)
MAX_LONG = 2**63 - 1


def random_topic(
    seed: int,
    partitions: int = 1,
    *,
    rounds: int = 5,
    grows: bool = True,
    merges_by_size: bool = True,
) -> Topic:
    """The topic of that seed; its partitions differ, their configuration and rounds do not.

    `merges_by_size` allows segment.bytes below what Kafka lets a topic set.
    """
    rng = random.Random(f"topic {seed}")
    config = _first_config(rng, merges_by_size=merges_by_size)
    flavour = _flavour(rng, config)
    writers = [LogWriter(random.Random(rng.random()), flavour) for _ in range(partitions)]
    drafts = [_Draft(writer, [], []) for writer in writers]
    planned: list[TopicRound] = []
    current = dict(config)
    for number in range(rounds):
        changes = _changes(rng, current) if number else {}
        current |= changes
        before_ms = planned[-1].now_ms if planned else T0
        now_ms = _go_on(rng, drafts, before_ms, current, grows=grows or not number)
        is_retained = rng.random() < flavour.retention
        planned.append(TopicRound(now_ms=now_ms, config=changes, retention=is_retained))
    finished = tuple(draft.partition for draft in drafts)
    return Topic(config=config, rounds=tuple(planned), partitions=finished)


def _go_on(
    rng: random.Random,
    drafts: list[_Draft],
    now_ms: int,
    config: Mapping[str, str],
    *,
    grows: bool,
) -> int:
    """Let all partitions go on to the next round; when that is."""
    for draft in drafts:
        draft.grow(rng, is_growing=grows)
    now_ms = _next_time(rng, now_ms, config, [draft.writer for draft in drafts])
    for draft in drafts:
        draft.delete_records(rng, config)
        draft.writer.advance_to(now_ms)
    return now_ms


@dataclass(slots=True)
class _Draft:
    """A partition in the making."""

    writer: LogWriter
    grown: list[tuple[WrittenSegment, ...]]
    requests: list[int | None]

    def grow(self, rng: random.Random, *, is_growing: bool) -> None:
        """Write what is there before the round, at first always."""
        if not self.grown:
            self.grown.append(self.writer.write(rng.randint(1, 5), rng.randint(1, 8)))
        elif is_growing and rng.random() < 0.7:
            self.grown.append(self.writer.write(rng.randint(0, 2), rng.randint(0, 4)))
        else:
            self.grown.append(())

    def delete_records(self, rng: random.Random, config: Mapping[str, str]) -> None:
        """Ask for it now and then, where the policy allows it."""
        offset = None
        if "delete" in config["cleanup.policy"] and rng.random() < 0.35:
            writer = self.writer
            anywhere = rng.randint(writer.first_offset, writer.end_offset)
            cuts = [cut for cut in writer.cuts if cut <= writer.end_offset] or [anywhere]
            offset = rng.choice([anywhere, anywhere, rng.choice(cuts)])
            offset = -1 if rng.random() < 0.05 else offset
        self.requests.append(offset)

    @property
    def partition(self) -> Partition:
        """The finished one."""
        return Partition(grown=tuple(self.grown), delete_records=tuple(self.requests))


def _first_config(rng: random.Random, *, merges_by_size: bool) -> dict[str, str]:
    policies = ["compact"] * 5 + ["compact,delete"] * 4 + ["delete"]
    config = {"cleanup.policy": rng.choice(policies)}
    config |= {name: _drawn(rng, name) for name in ("delete.retention.ms", _RATIO, _EXPIRATION)}
    if rng.random() < 0.35:
        config |= _lags(rng)
    if "delete" in config["cleanup.policy"]:
        config["retention.ms"] = _drawn(rng, "retention.ms")
        config["retention.bytes"] = _drawn(rng, "retention.bytes")
    if merges_by_size and rng.random() < 0.5:
        config[_SEGMENT_BYTES] = _drawn(rng, _SEGMENT_BYTES)
    return config


_RATIO = "min.cleanable.dirty.ratio"
_EXPIRATION = "producer.id.expiration.ms"
_SEGMENT_BYTES = "internal.segment.bytes"


def _drawn(rng: random.Random, name: str) -> str:
    match name:
        case "delete.retention.ms":
            return str(rng.choice([0, *TIMES_MS]))
        case "min.cleanable.dirty.ratio":
            return rng.choice(["0"] * 6 + ["0.01", "0.3", "0.5", "0.9", "1"])
        case "producer.id.expiration.ms":
            return str(rng.choice(EXPIRATIONS_MS))
        case "retention.ms":
            return str(rng.choice([-1, -1, *TIMES_MS, 10 * DAY_MS]))
        case "retention.bytes":
            return str(rng.choice([-1, -1, 0, 200, 500, 1_000, 2_000]))
        case "internal.segment.bytes":
            return str(rng.choice([1, 150, 300, 600, 1_200]))
    raise ValueError(name)


def _lags(rng: random.Random) -> dict[str, str]:
    lag_ms = rng.choice([0, 0, 1, MINUTE_MS, HOUR_MS])
    longest_ms = rng.choice([MAX_LONG, max(lag_ms, 1), lag_ms + HOUR_MS, lag_ms + DAY_MS])
    return {"min.compaction.lag.ms": str(lag_ms), "max.compaction.lag.ms": str(longest_ms)}


def _changes(rng: random.Random, config: Mapping[str, str]) -> dict[str, str]:
    """Now and then another value for something that the topic sets."""
    changes = {}
    if rng.random() < 0.3:
        changes["delete.retention.ms"] = _drawn(rng, "delete.retention.ms")
    if rng.random() < 0.2:
        changes[_RATIO] = _drawn(rng, _RATIO)
    if "min.compaction.lag.ms" in config and rng.random() < 0.3:
        changes |= _lags(rng)
    for name in ("retention.ms", "retention.bytes", _SEGMENT_BYTES):
        if name in config and rng.random() < 0.1:
            changes[name] = _drawn(rng, name)
    if "compact" in config["cleanup.policy"] and rng.random() < 0.1:
        changes["cleanup.policy"] = rng.choice(["compact", "compact,delete"])
        changes["retention.ms"] = _drawn(rng, "retention.ms")
        changes["retention.bytes"] = _drawn(rng, "retention.bytes")
    return changes


def _flavour(rng: random.Random, config: Mapping[str, str]) -> Flavour:
    """What the topic's logs are made of: each thing is in some topics only."""

    def sometimes(share: float, most: float) -> float:
        return rng.uniform(0, most) if rng.random() < share else 0.0

    is_compacted = "compact" in config["cleanup.policy"]
    return Flavour(
        producers=rng.choice([0, 1, 2, 2, 3, 4]),
        transactional=sometimes(0.8, 1),
        bumps_epoch=rng.choice([0.0, 0.0, 1.0, 1.0, 0.5]),
        legacy=sometimes(0.3, 1),
        compressed=sometimes(0.6, 1),
        append_time=rng.choice([0.0, 0.0, 0.0, 0.5, 1.0]),
        keyless=sometimes(0.3, 0.3),
        tombstone=sometimes(0.9, 0.6),
        headers=sometimes(0.4, 0.5),
        untimed=sometimes(0.15, 0.6),
        gap=sometimes(0.35, 0.3) if is_compacted else 0.0,
        cleaned=sometimes(0.25, 0.5) if is_compacted else 0.0,
        empty_segment=sometimes(0.4, 0.3),
        keys=rng.choice([1, 2, 3, 5, 8, 12]),
        first_offset=rng.choice([0, 0, 0, 1, 1_000, 2**33]),
        jitter_ms=rng.choice([0, MINUTE_MS, HOUR_MS, 2 * DAY_MS]),
        retention=rng.choice([0.0, 0.5, 0.5, 1.0]),
    )


def _next_time(
    rng: random.Random, now_ms: int, config: Mapping[str, str], writers: list[LogWriter]
) -> int:
    """When the next round comes: often within a millisecond of where something changes."""
    spans = [int(value) for name, value in config.items() if name.endswith(".ms")]
    spans = [span for span in spans if 0 < span <= 10 * DAY_MS] or [HOUR_MS]
    stamped = [time_ms for writer in writers for time_ms in writer.times_ms]
    latest_ms = max([now_ms, *(writer.clock_ms for writer in writers)])
    chosen = rng.random()
    if chosen < 0.35:  # a horizon set in the round before
        then_ms = now_ms + rng.choice(spans) + rng.choice([-1, 0, 0, 1])
    elif chosen < 0.6 and stamped:
        then_ms = rng.choice(stamped) + rng.choice(spans) + rng.choice([-1, 0, 0, 1])
    elif chosen < 0.7:
        then_ms = now_ms + 1
    else:
        then_ms = latest_ms + rng.choice([1, MINUTE_MS, HOUR_MS, DAY_MS, 5 * DAY_MS])
    return max(then_ms, now_ms + 1)
