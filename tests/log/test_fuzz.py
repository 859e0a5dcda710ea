"""Random logs, and those that once differed, through Kafka's own classes and `ebbtide.log`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fresh_seed import seeds
from tests.kafka.scenarios import from_json
from tests.log.fuzz import REGRESSIONS, Summary, run, write_smallest
from tests.log.replay import Replay, replay_topics

FIXED_SEED = 1
FEW, MANY = 100, 1_000
FOUND = sorted(REGRESSIONS.glob("*.json"))


@pytest.mark.parametrize("logs", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", seeds(__file__, FIXED_SEED))
def test_kafka_leaves_the_same_of_random_logs(
    seed: int, logs: int, kafka_jars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = Summary()
    for summary in run(seed, range(logs)):
        total.add(summary)
    with capsys.disabled():
        print(f"\nseed {seed}: {total}")
    for number, lines in list(total.failed.items())[:1]:
        pytest.fail(f"log {number}: {lines[:5]}; smallest: {write_smallest(seed, number)}")
    assert total.logs == logs
    assert total.gaps() == []


@pytest.fixture(scope="module")
def replays(kafka_jars: Path) -> dict[str, Replay]:
    """Every log that once differed; one JVM does them all."""
    described = {path.stem: json.loads(path.read_text()) for path in FOUND}
    topics = [
        from_json({name: value for name, value in values.items() if name != "shows"})
        for values in described.values()
    ]
    outcomes = [outcome for (outcome,) in replay_topics(topics, kafka_jars)]
    return dict(zip(described, outcomes, strict=True))


@pytest.mark.parametrize("name", [path.stem for path in FOUND])
def test_kafka_leaves_the_same_of_what_once_differed(name: str, replays: dict[str, Replay]) -> None:
    assert replays[name].differences == []
    assert not replays[name].is_refused
    assert replays[name].picked != []
