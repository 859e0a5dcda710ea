"""Random topics, and logs that once differed, through Kafka's own classes and the Spark stages."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.kafka.scenarios import from_json
from tests.lake_sandbox import LakeSandbox
from tests.tables.fuzz import REGRESSIONS, run, topic_of, write_smallest
from tests.tables.spark_replay import Tally, replay_topic

FIXED_SEED = 1
FRESH_SEED = random.SystemRandom().randrange(2, 10**6)
TOPICS = {FIXED_SEED: 5, FRESH_SEED: 5}


@pytest.mark.parametrize("seed", TOPICS, ids=["fixed seed", "fresh seed"])
def test_kafka_leaves_the_same_of_random_topics(
    seed: int,
    sandbox: LakeSandbox,
    kafka_jars: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    total, failed = Tally(), []
    for number, tally in run(sandbox.session, tmp_path, seed, range(TOPICS[seed])):
        total.add(tally)
        failed += [(number, p, lines) for p, lines in tally.differences.items()]
    with capsys.disabled():
        print(f"\nseed {seed}: {total}")
    for number, partition, lines in failed[:1]:
        name = f"seed-{seed}-topic-{number}-{partition}"
        topic = topic_of(seed, number)
        path = write_smallest(sandbox.session, tmp_path, topic, partition, name)
        pytest.fail(f"topic {number} partition {partition}: {lines[:5]}; smallest: {path}")


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*.json")), ids=lambda path: path.stem)
def test_kafka_leaves_the_same_of_what_once_differed(
    path: Path, sandbox: LakeSandbox, kafka_jars: Path, tmp_path: Path
) -> None:
    described = json.loads(path.read_text())
    described.pop("shows")
    home = tmp_path / path.stem.replace("-", "_")
    tally = replay_topic(sandbox.session, from_json(described), home, kafka_jars)
    assert tally.logs == 1
    assert tally.refused == 0
    assert tally.differences == {}
