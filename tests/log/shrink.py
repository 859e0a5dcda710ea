"""Make a scenario that differs from Kafka smaller for as long as it still differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tests.kafka.scenarios import Partition, Topic, WrittenBatch, WrittenSegment, to_json
from tests.log.replay import Replay, replay_topics

# Together in one JVM, since starting one costs more than a hundred little logs.
AT_ONCE = 60

Item = TypeVar("Item")


def shrink(topic: Topic, jars_dir: Path) -> Topic:
    """The smallest topic of one partition that was found to differ in the same way."""
    ((outcome,),) = replay_topics([topic], jars_dir)
    kinds = kinds_of(outcome)
    while True:
        candidates = list(_smaller(topic))
        for start in range(0, len(candidates), AT_ONCE):
            some = candidates[start : start + AT_ONCE]
            results = zip(some, replay_topics(some, jars_dir), strict=True)
            smaller = [other for other, (r,) in results if set() < kinds_of(r) <= kinds]
            if smaller:
                topic = min(smaller, key=_length)
                break
        else:
            return topic


def _length(topic: Topic) -> int:
    return len(json.dumps(to_json(topic)))


def kinds_of(outcome: Replay) -> set[str]:
    """What differs, without where: a topic that became another kind of broken is no smaller one."""
    return {
        " ".join(word for word in line.split(": ")[1].split() if not word.isdigit())
        for line in outcome.differences
    }


def _smaller(topic: Topic) -> Iterator[Topic]:
    """Topics with one thing less, the largest things first."""
    (partition,) = topic.partitions
    count = len(topic.rounds)
    if count > 1:
        yield _without_round(topic, partition, count - 1, joins=False)
        for number in range(count):
            yield _without_round(topic, partition, number, joins=True)
    for smaller in (*less_grown(partition), *fewer_requests(partition)):
        yield replace(topic, partitions=(smaller,))
    yield from _plainer(topic)


def _without_round(topic: Topic, partition: Partition, number: int, *, joins: bool) -> Topic:
    """Without a round; what grew before it goes too, or joins what grew next."""
    rounds, grown = list(topic.rounds), list(partition.grown)
    gone, segments = rounds.pop(number), grown.pop(number)
    requests = partition.delete_records[:number] + partition.delete_records[number + 1 :]
    if number < len(rounds):
        rounds[number] = replace(rounds[number], config={**gone.config, **rounds[number].config})
        grown[number] = _joined((*segments, *grown[number]) if joins else grown[number])
    return replace(
        topic,
        rounds=tuple(rounds),
        partitions=(Partition(grown=tuple(grown), delete_records=requests),),
    )


def _joined(segments: Sequence[WrittenSegment]) -> tuple[WrittenSegment, ...]:
    by_base: dict[int, WrittenSegment] = {}
    for segment in segments:
        before = by_base[segment.base_offset].batches if segment.base_offset in by_base else ()
        batches = (*before, *segment.batches)
        by_base[segment.base_offset] = segment._replace(batches=batches)
    return tuple(by_base.values())


def first_rounds(topic: Topic, count: int) -> Topic:
    """Without the rounds that come later."""
    return replace(
        topic,
        rounds=topic.rounds[:count],
        partitions=tuple(
            Partition(grown=p.grown[:count], delete_records=p.delete_records[:count])
            for p in topic.partitions
        ),
    )


def less_grown(partition: Partition) -> Iterator[Partition]:
    """Without a step's growth, a segment, a batch, a record."""
    for number, step in enumerate(partition.grown):
        steps = list(partition.grown)
        if number and step:
            yield _with_step(partition, number, ())
        for i, segment in enumerate(step):
            if len(step) > 1 or number:
                yield _with_step(partition, number, _without(step, i))
            for smaller in _smaller_segments(segment):
                steps[number] = (*step[:i], smaller, *step[i + 1 :])
                yield replace(partition, grown=tuple(steps))


def _with_step(partition: Partition, number: int, step: tuple[WrittenSegment, ...]) -> Partition:
    steps = (*partition.grown[:number], step, *partition.grown[number + 1 :])
    return replace(partition, grown=steps)


def _smaller_segments(segment: WrittenSegment) -> Iterator[WrittenSegment]:
    if len(segment.batches) > 1:
        yield segment._replace(batches=())
    for i, batch in enumerate(segment.batches):
        yield segment._replace(batches=_without(segment.batches, i))
        for smaller in _smaller_batches(batch):
            batches = (*segment.batches[:i], smaller, *segment.batches[i + 1 :])
            yield segment._replace(batches=batches)


def _smaller_batches(batch: WrittenBatch) -> Iterator[WrittenBatch]:
    if len(batch.records) > 1:
        for i in range(len(batch.records)):
            yield batch._replace(records=_without(batch.records, i))
    if batch.codec and (batch.magic == 2 or len(batch.records) == 1):
        yield batch._replace(codec=0)
    for i, record in enumerate(batch.records):
        if record.headers:
            plainer = record._replace(headers=())
            records = (*batch.records[:i], plainer, *batch.records[i + 1 :])
            yield batch._replace(records=records)


def fewer_requests(partition: Partition) -> Iterator[Partition]:
    for i, offset in enumerate(partition.delete_records):
        if offset is not None:
            requests = list(partition.delete_records)
            requests[i] = None
            yield replace(partition, delete_records=tuple(requests))


def _plainer(topic: Topic) -> Iterator[Topic]:
    """Without a setting, a change of one, or a look at retention."""
    for name in topic.config:
        # Without these, Kafka has defaults of its own.
        if not name.startswith(("cleanup.policy", "retention.")):
            yield replace(topic, config={k: v for k, v in topic.config.items() if k != name})
    for i, a_round in enumerate(topic.rounds):
        fewer = [{k: v for k, v in a_round.config.items() if k != name} for name in a_round.config]
        plainer = [replace(a_round, config=config) for config in fewer]
        if a_round.retention:
            plainer.append(replace(a_round, retention=False))
        for other in plainer:
            yield replace(topic, rounds=(*topic.rounds[:i], other, *topic.rounds[i + 1 :]))


def _without(items: tuple[Item, ...], i: int) -> tuple[Item, ...]:
    return (*items[:i], *items[i + 1 :])
