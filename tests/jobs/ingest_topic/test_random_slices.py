"""Each number that ingest_topic reports of random slices, against what the tables hold."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer

from ebbtide.settings.names import TopicName
from tests.fresh_seed import seeds
from tests.jobs.ingest_topic.live import FIRST_MS, NOW_MS, connect, create, take
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox
from tests.nights.expected_numbers import of_ingest
from tests.nights.job_numbers import EVENT_TIME, TIMED_KEY_BYTES, Nights, check, is_missing
from tests.tables.nights import HOUR_MS, set_properties
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.long]

FIXED_SEED = 7
PARTITIONS = 3
NIGHTS = 4
# What the slices of the fixed seed have to show; they are chosen for it.
NUMBERS = ("records", "batches", "bytes", "segments", "event_times_missing")
TOLD = {f"ingest_topic {name}" for name in NUMBERS}


def write_some(producer: Producer, topic: str, rng: random.Random) -> None:
    """A transaction of records with keys and values of any size, committed or aborted."""
    producer.begin_transaction()
    for _ in range(rng.randrange(40)):
        producer.produce(
            topic,
            rng.choice([None, rng.randbytes(rng.randrange(300))]),
            rng.choice([None, b"k" * rng.choice([TIMED_KEY_BYTES, 1, 20])]),
            partition=rng.randrange(PARTITIONS),
            timestamp=FIRST_MS + rng.randrange(HOUR_MS),
            headers=rng.choice([None, [("a", b"1"), ("b", None)]]),
        )
    assert producer.flush(PATIENCE_S) == 0
    end = producer.commit_transaction if rng.random() < 0.7 else producer.abort_transaction
    end(30)


@pytest.mark.parametrize("seed", seeds(__file__, FIXED_SEED))
def test_each_number_of_random_slices_is_what_the_tables_say(
    sandbox: LakeSandbox,
    cluster: str,
    broker: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    connect(monkeypatch, broker)
    rng, name = random.Random(seed), TopicName("live", cluster)
    create(broker, name.topic, PARTITIONS)
    producer = Producer({**broker.client(), "transactional.id": name.topic})
    producer.init_transactions(30)
    nights = Nights(sandbox.session, name)
    for night in range(NIGHTS):
        for _ in range(rng.randrange(1, 4)):
            write_some(producer, name.topic, rng)
        check_slices(nights, NOW_MS + night * HOUR_MS, max_offsets=rng.randrange(5, 60))
        set_properties(sandbox.session, str(name), {"ebbtide.event.time": EVENT_TIME})
    assert nights.reported >= (TOLD if seed == FIXED_SEED else set())


def check_slices(nights: Nights, now_ms: int, max_offsets: int) -> None:
    """Take all that is new in slices of so many offsets; bytes are those of ebbtide's batches."""
    has_expression = bool(nights.before.states)  # the first run makes the topic
    outcome, change = nights.run(
        "ingest_topic",
        lambda: take(nights.spark, nights.name, now_ms=now_ms, max_offsets=max_offsets),
    )
    wanted = {
        p: of_ingest(change, p, is_missing if has_expression else lambda _: False)
        for p in change.after.states
    }
    check(outcome, change, wanted, bytes_removed=0)
