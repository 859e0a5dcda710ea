"""Random records that are produced for a while, and where the broker has put each."""

from __future__ import annotations

import json
import random
from collections import Counter
from threading import Event, Thread
from typing import Any, NamedTuple, Self

from confluent_kafka import Producer

from tests.kafka.broker import KafkaBroker
from tests.waiting import PATIENCE_S

PARTITIONS = 2
KEYS, RARE_KEYS = 25, 400
PAUSE_SECONDS = 0.2
AT_ONCE = 12
RARE, TOMBSTONE, KEYLESS = 0.15, 0.2, 0.03  # of the records


class Produced(NamedTuple):
    """A record as it is in the log; a number of None is that of a null value."""

    partition: int
    offset: int
    key: str | None
    number: int | None


class Producing:
    """Produces between `with` and `stop`; `records` are those that the broker has taken.

    A value is JSON with the key as `id` and a number of the record's own as `n`. A tombstone of a
    rare key lives until its horizon.
    """

    def __init__(self, broker: KafkaBroker, topic: str, seed: int) -> None:
        self.records: list[Produced] = []
        self._topic = topic
        self._rng = random.Random(f"produced {seed}")
        self._producer = Producer({**broker.client(), "enable.idempotence": "true"})
        self._errors: list[str] = []
        self._ended = Event()
        self._thread = Thread(target=self._produce, daemon=True)
        self._number = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def stop(self) -> list[Produced]:
        """End, when the broker has all; the records in the order of their offsets."""
        self._ended.set()
        self._thread.join()
        assert not self._errors, self._errors
        self.records.sort()
        return self.records

    def _produce(self) -> None:
        while not self._ended.is_set():
            for _ in range(self._rng.randint(1, AT_ONCE)):
                self._produce_one()
            self._producer.flush(PATIENCE_S)
            self._ended.wait(PAUSE_SECONDS)
        self._producer.flush(60)

    def _produce_one(self) -> None:
        rng, self._number = self._rng, self._number + 1
        chosen = rng.random()
        keys = RARE_KEYS if rng.random() < RARE else KEYS
        key = None if chosen < KEYLESS else f"k{rng.randrange(keys)}"
        is_tombstone = key is not None and rng.random() < TOMBSTONE
        number = None if is_tombstone else self._number

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._errors.append(str(error))
                return
            place = (message.partition(), message.offset())
            self.records.append(Produced(*place, key, number))

        self._producer.produce(
            self._topic,
            None if is_tombstone else json.dumps({"id": key, "n": number}),
            key,
            partition=rng.randrange(PARTITIONS),
            on_delivery=delivered,
        )


def ends(records: list[Produced]) -> Counter[int]:
    """The offset behind the last of these records, by partition."""
    found: Counter[int] = Counter()
    for record in records:
        found[record.partition] = max(found[record.partition], record.offset + 1)
    return found
