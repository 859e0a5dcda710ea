"""Who writes the sample's events to the broker, and how: plainly, idempotently, in transactions."""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from confluent_kafka import Producer

from sample.flight_events import Event

FLIGHTS = "flights"
AUDIT = "audit"
WINDOW_SIZES = (500, 1800)
ABORT_RATIO = 0.12
DRILL_EVERY = 8  # windows
DRILL_SIZE = 40  # flights
RESTART_EVERY = 20  # windows
LATE_FROM = timedelta(minutes=20)
TOWERS = {"EWR": "zstd", "JFK": "lz4", "LGA": "snappy"}
WRITER_OF_KIND = {"scheduled": "schedule", "cancelled": "desk", "delayed": "desk", "lost": "desk"}


class Operation(NamedTuple):
    """One thing a writer did, for the audit topic."""

    writer: str
    outcome: str
    records: int


class Writers:
    """The producers of one run: each airport's tower writes in transactions of its own."""

    def __init__(self, bootstrap_servers: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "partitioner": "murmur2_random",
            # Batches end where a writer flushes, so that the same seed gives the same batches.
            "linger.ms": 60_000,
            "transaction.timeout.ms": 120_000,
            # Only errors: a broker just started is asked again a few times.
            "log_level": 3,
        }
        self.desk = self._producer("none", {"enable.idempotence": False})
        self.audit = self._producer("none", {"enable.idempotence": False})
        self.schedule = self._schedule()
        self.towers = {airport: self._tower(airport) for airport in TOWERS}

    def _producer(self, codec: str, settings: dict[str, str | bool]) -> Producer:
        return Producer({**self.common, "compression.type": codec, **settings})

    def _schedule(self) -> Producer:
        return self._producer("gzip", {"enable.idempotence": True})

    def _tower(self, airport: str) -> Producer:
        return self._transactional(f"tower-{airport}", TOWERS[airport])

    def _transactional(self, name: str, codec: str) -> Producer:
        producer = self._producer(codec, {"transactional.id": name})
        producer.init_transactions()
        return producer

    def restart(self) -> None:
        """Restart what restarts in real life: new producer id for one, new epoch for the other."""
        self.schedule = self._schedule()
        airport = self.random.choice(list(TOWERS))
        self.towers[airport] = self._tower(airport)

    def write_window(self, window: Sequence[Event]) -> list[Operation]:
        """Write one stretch of arrivals; what was done, in order."""
        scheduled = [event for event in window if writer_of(event) == "schedule"]
        told = [event for event in window if writer_of(event) == "desk"]
        done = [
            *write_plainly(self.schedule, "schedule", scheduled),
            *write_plainly(self.desk, "desk", told),
        ]
        seen = {airport: [e for e in window if writer_of(e) == airport] for airport in TOWERS}
        return done + self._write_towers({key: events for key, events in seen.items() if events})

    def _write_towers(self, seen: dict[str, list[Event]]) -> list[Operation]:
        """The towers' transactions are open at the same time; an aborted one is written again."""
        for airport in seen:
            self.towers[airport].begin_transaction()
        for half in range(2):
            for airport, events in seen.items():
                produce(self.towers[airport], events[half::2])
        done = []
        for airport in self.random.sample(list(seen), len(seen)):
            aborts = self.random.random() < ABORT_RATIO
            count = len(seen[airport])
            if not aborts:
                self.towers[airport].commit_transaction()
                done.append(Operation(f"tower-{airport}", "committed", count))
                continue
            self.towers[airport].abort_transaction()
            done.append(Operation(f"tower-{airport}", "aborted", count))
            done += self._write_towers({airport: seen[airport]})
        return done

    def write_drill(self, window: Sequence[Event], number: int) -> list[Operation]:
        """Two writers that write once and never again: a relief tower repeats the last departures,
        and a trainee cancels those flights, which is aborted and must never count.
        """
        newest = {event.key: event for event in window}
        flying = [event for event in newest.values() if event.kind == "departed"][-DRILL_SIZE:]
        relief = self._transactional(f"relief-{number}", "lz4")
        relief.begin_transaction()
        produce(relief, flying)
        relief.commit_transaction()
        cancelled = [event._replace(value=None) for event in flying]
        trainee = self._transactional(f"trainee-{number}", "none")
        trainee.begin_transaction()
        produce(trainee, cancelled)
        trainee.abort_transaction()
        return [
            Operation(f"relief-{number}", "committed", len(flying)),
            Operation(f"trainee-{number}", "aborted", len(cancelled)),
        ]

    def write_audit(self, window: Sequence[Event], done: Sequence[Operation]) -> None:
        """One keyless record an operation, one keyed record a late event; no value for a loss."""
        closed_ms = epoch_ms(window[-1].arrival_time.timestamp())
        for operation in done:
            value = json.dumps(operation._asdict(), separators=(",", ":")).encode()
            self.audit.produce(AUDIT, value=value, partition=0, timestamp=closed_ms)
        for event in window:
            if event.lag >= LATE_FROM:
                late = f'{{"late_s":{event.lag.total_seconds():.0f}}}'.encode()
                arrival_ms = epoch_ms(event.arrival_time.timestamp())
                self.audit.produce(
                    AUDIT,
                    key=event.key,
                    value=None if event.value is None else late,
                    partition=0,
                    timestamp=arrival_ms,
                )
        self.audit.flush()


def write_log(bootstrap_servers: str, events: Sequence[Event], seed: int) -> list[Operation]:
    """Write all events, window by window; every operation done."""
    writers = Writers(bootstrap_servers, seed)
    done = []
    for number, window in enumerate(windows(events, seed), start=1):
        operations = writers.write_window(window)
        if number % DRILL_EVERY == 0:
            operations += writers.write_drill(window, number)
        if number % RESTART_EVERY == 0:
            writers.restart()
        writers.write_audit(window, operations)
        done += operations
    return done


def windows(events: Sequence[Event], seed: int) -> Iterator[Sequence[Event]]:
    """Consecutive stretches of uneven length."""
    lengths = random.Random(seed)
    start = 0
    while start < len(events):
        end = start + lengths.randint(*WINDOW_SIZES)
        yield events[start:end]
        start = end


def writer_of(event: Event) -> str:
    """Name of a plain writer, or the airport whose tower writes."""
    return WRITER_OF_KIND.get(event.kind, event.origin)


def write_plainly(producer: Producer, name: str, events: Sequence[Event]) -> list[Operation]:
    """Write outside of any transaction."""
    produce(producer, events)
    return [Operation(name, "written", len(events))] if events else []


def produce(producer: Producer, events: Sequence[Event]) -> None:
    """Send the events and wait: an abort would drop what has not left yet."""
    for event in events:
        producer.produce(
            FLIGHTS,
            key=event.key,
            value=event.value,
            headers=list(event.headers),
            timestamp=epoch_ms(event.event_time.timestamp()),
            on_delivery=raise_failure,
        )
    producer.flush()


def raise_failure(error: object, _message: object) -> None:
    """Stop at the first record the broker did not take."""
    if error is not None:
        raise RuntimeError(f"a record was not delivered: {error}")


def epoch_ms(seconds: float) -> int:
    """Milliseconds since the epoch."""
    return round(seconds * 1000)
