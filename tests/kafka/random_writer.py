"""Writes one random log as its producers and its broker would, batch by batch."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ebbtide.kafka.batch_header import ABORT, COMMIT
from ebbtide.records.attributes import DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from ebbtide.records.compression import Codec
from tests.kafka.scenarios import Written, WrittenBatch, WrittenSegment

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
COMMIT_KEY = "\0\0\0\1"  # a user's key may equal a marker's


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What a topic's logs are made of; shares are between 0 and 1."""

    producers: int
    transactional: float  # of the producers
    bumps_epoch: float  # of the transactional ones, those whose markers do
    legacy: float
    compressed: float
    append_time: float
    keyless: float
    tombstone: float
    headers: float
    untimed: float
    gap: float
    cleaned: float  # as if the source had been compacted before
    empty_segment: float
    keys: int
    first_offset: int
    jitter_ms: int
    retention: float


@dataclass(slots=True)
class Producer:
    """An idempotent or transactional producer."""

    producer_id: int
    is_transactional: bool
    bumps_epoch: bool
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False
    is_remembered: bool = False  # it wrote since a round could make the broker forget it

    def begin_epoch(self) -> None:
        """The next epoch, whose sequence begins anew."""
        self.epoch += 1
        self.sequence = 0


@dataclass(slots=True)
class LogWriter:
    """One partition's log; it remembers where it ends and when its records were written."""

    rng: random.Random
    flavour: Flavour
    clock_ms: int = T0
    first_offset: int = 0
    next_offset: int = 0
    end_offset: int = 0  # where a broker says that the log ends
    producers: list[Producer] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # where segments begin, and markers
    modified_ms: int = T0
    _is_served: bool = False  # a broker holds what was written so far
    _base: int = 0
    _batches: list[WrittenBatch] = field(default_factory=list)
    _finished: list[WrittenSegment] = field(default_factory=list)

    def __post_init__(self) -> None:
        flavour, rng = self.flavour, self.rng
        self.first_offset = self.next_offset = self.end_offset = flavour.first_offset
        self._base = flavour.first_offset
        for number in range(flavour.producers):
            is_transactional = rng.random() < flavour.transactional
            bumps = rng.random() < flavour.bumps_epoch
            self.producers.append(Producer(100 + number, is_transactional, bumps))

    def advance_to(self, now_ms: int) -> None:
        """Let what is written next be of about this time or later."""
        self.clock_ms = max(self.clock_ms, now_ms - self.rng.choice([0, 1, HOUR_MS]))

    def write(self, rolls: int, batches_each: int) -> tuple[WrittenSegment, ...]:
        """Go on with the active segment, roll that often; what is new of each segment."""
        for producer in self.producers:
            producer.is_remembered = producer.is_open or not self._is_served
        for _ in range(rolls):
            if self.rng.random() >= self.flavour.empty_segment:
                self._write_batches(self.rng.randint(1, max(batches_each, 1)))
            self._roll()
        if self.rng.random() < 0.6:
            self._write_batches(batches_each)
        self._finish()
        finished, self._finished = tuple(self._finished), []
        self._is_served = True
        return finished

    def _write_batches(self, count: int) -> None:
        for _ in range(count):
            self.clock_ms += self.rng.choice([0, 1, 1_000, 60_000, HOUR_MS])
            self._append(self._batch())
            if self.rng.random() < self.flavour.gap:
                self.next_offset += self.rng.randint(1, 3)
        # A batch of an old format that ends a round and loses its records makes Kafka fail.
        if self._batches and self._batches[-1].magic < 2:
            self._append(self._plain())

    def _append(self, batch: WrittenBatch) -> None:
        self._batches.append(batch)
        self.next_offset = self.end_offset = batch.next_offset
        self.times_ms += [record.timestamp_ms for record in batch.records]

    def _roll(self) -> None:
        """Begin another segment: a broker's at its end, a cleaned one's also behind a gap."""
        if self._is_served:
            self.next_offset = self.end_offset
        if self.next_offset == self._base:
            if self.flavour.gap == 0 or self._is_served:
                return
            self.next_offset += 1
        self._finish()
        self._base = self.end_offset = self.next_offset
        self.cuts.append(self._base)

    def _finish(self) -> None:
        written_ms = self.clock_ms + self.rng.choice([0, 1, self._jitter()])
        self.modified_ms = self.rng.choice([self.modified_ms, written_ms, written_ms])
        segment = WrittenSegment(self._base, self.modified_ms, tuple(self._batches))
        self._finished.append(segment)
        self._batches = []

    def _batch(self) -> WrittenBatch:
        rng, flavour = self.rng, self.flavour
        if self.producers and rng.random() < 0.7:
            return self._produced(rng.choice(self.producers))
        return self._legacy() if rng.random() < flavour.legacy else self._plain()

    def _produced(self, producer: Producer) -> WrittenBatch:
        chosen = self.rng.random()
        if producer.is_open:
            return self._marker(producer) if chosen < 0.4 else self._data(producer, TRANSACTIONAL)
        if not producer.is_transactional:
            if chosen < 0.1:
                producer.begin_epoch()
            return self._data(producer, 0)
        if chosen < 0.12:  # of a transaction that wrote nothing here
            return self._marker(producer)
        if chosen < 0.2:
            producer.begin_epoch()
        if chosen > 0.93:
            return self._data(producer, 0)
        producer.is_open = True
        return self._data(producer, TRANSACTIONAL)

    def _marker(self, producer: Producer) -> WrittenBatch:
        # What a broker knew before it forgot the producer, no row of ours forgets: a marker without
        # data would bring it back.
        if producer.bumps_epoch or not producer.is_remembered:
            producer.begin_epoch()
        producer.is_remembered = True
        producer.is_open = False
        self.cuts.append(self.next_offset)
        return WrittenBatch(
            # The broker's own clock, which may be uneven, but is never missing.
            (Written(self.next_offset, self.clock_ms + self._jitter(), None, None),),
            attributes=TRANSACTIONAL,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            control=self.rng.choice([COMMIT, ABORT]),
        )

    def _data(self, producer: Producer, attributes: int) -> WrittenBatch:
        batch = self._plain()
        sequence, producer.is_remembered = producer.sequence, True
        producer.sequence += batch.next_offset - self.next_offset
        return batch._replace(
            attributes=batch.attributes | attributes,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
        )

    def _plain(self) -> WrittenBatch:
        rng, flavour = self.rng, self.flavour
        records = self._records(rng.choice([1, 1, 2, 3, 5]))
        codecs = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
        codec = rng.choice(codecs) if rng.random() < flavour.compressed else Codec.NONE
        batch = WrittenBatch(tuple(records), codec=int(codec))
        if rng.random() < flavour.append_time:
            records = [record._replace(timestamp_ms=self.clock_ms) for record in records]
            batch = batch._replace(
                records=tuple(records), attributes=LOG_APPEND_TIME, max_timestamp_ms=self.clock_ms
            )
        return self._cleaned(batch) if rng.random() < flavour.cleaned else batch

    def _cleaned(self, batch: WrittenBatch) -> WrittenBatch:
        """The batch as a round of the source would leave it: fewer records, a horizon, none."""
        rng = self.rng
        first, last = batch.records[0].offset, batch.next_offset - 1
        newest_ms = max(record.timestamp_ms for record in batch.records)
        batch = batch._replace(base_offset=first, last_offset=last)
        if rng.random() < 0.2:
            return batch._replace(
                records=(), codec=0, base_timestamp_ms=-1, max_timestamp_ms=newest_ms
            )
        kept = tuple(r for r in batch.records if rng.random() < 0.7) or batch.records[:1]
        batch = batch._replace(records=kept)
        if any(record.value is None for record in kept) and rng.random() < 0.5:
            horizon_ms = self.clock_ms + rng.choice([0, HOUR_MS, 24 * HOUR_MS])
            self.times_ms.append(horizon_ms)
            attributes = batch.attributes | DELETE_HORIZON
            batch = batch._replace(attributes=attributes, base_timestamp_ms=horizon_ms)
        return batch

    def _legacy(self) -> WrittenBatch:
        rng, flavour = self.rng, self.flavour
        magic = rng.choice([0, 1])
        codec = Codec.NONE
        if rng.random() < flavour.compressed:
            codec = rng.choice([Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
        records = self._records(rng.choice([1, 2, 3]) if codec else 1)
        records = [record._replace(headers=()) for record in records]
        if magic == 0:
            records = [record._replace(timestamp_ms=-1) for record in records]
        batch = WrittenBatch(tuple(records), magic=magic, codec=int(codec))
        if magic == 1 and rng.random() < flavour.append_time:
            batch = batch._replace(attributes=LOG_APPEND_TIME, max_timestamp_ms=self.clock_ms)
        return batch

    def _records(self, count: int) -> list[Written]:
        return [
            Written(self.next_offset + i, self._time(), self._key(), self._value(), self._headers())
            for i in range(count)
        ]

    def _key(self) -> str | None:
        if self.rng.random() < self.flavour.keyless:
            return None
        number = self.rng.randrange(self.flavour.keys)
        return {1: "", 2: COMMIT_KEY}.get(number, f"key-{number}")

    def _value(self) -> str | None:
        chosen = self.rng.random()
        if chosen < self.flavour.tombstone:
            return None
        return "" if chosen > 0.93 else f"v{self.next_offset}" * self.rng.choice([1, 1, 2, 8])

    def _headers(self) -> tuple[tuple[str, str | None], ...]:
        if self.rng.random() >= self.flavour.headers:
            return ()
        values = ["", "x" * 3, None]
        return tuple((f"h{i}", self.rng.choice(values)) for i in range(self.rng.randint(1, 2)))

    def _time(self) -> int:
        """A producer's clock: about now, or none, or a day that is far away."""
        if self.rng.random() < self.flavour.untimed:
            return -1
        chosen = self.rng.random()
        if chosen < 0.02:
            return self.clock_ms + 400 * 24 * HOUR_MS
        return 0 if chosen < 0.03 else self.clock_ms + self._jitter()

    def _jitter(self) -> int:
        return self.rng.randint(-self.flavour.jitter_ms, self.flavour.jitter_ms)
