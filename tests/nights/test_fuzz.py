"""Random topics, and logs that once differed, through Kafka's own classes and the Spark stages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fresh_seed import seeds
from tests.kafka.oracle import OracleError
from tests.kafka.random_logs import random_topic
from tests.kafka.scenarios import from_json
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.log.replay import Replay, Subject
from tests.nights import spark_replay
from tests.nights.fuzz import REGRESSIONS
from tests.nights.spark_replay import Tally, expect, replay_topic

pytestmark = pytest.mark.long

TOPICS = 5


@pytest.mark.parametrize(
    "options", [["--in-tasks"], ["--map-bytes", "9000", "--holds"]], ids=" ".join
)
@pytest.mark.parametrize("seed", seeds(__file__, 1))
def test_kafka_leaves_the_same_of_random_topics(
    seed: int, options: list[str], kafka_jars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own, as `make fuzz-spark` is: hundreds of rounds fill a JVM."""
    command = [sys.executable, "-m", "tests.nights.fuzz"]
    command += ["--topics", str(TOPICS), "--seed", str(seed), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if not line.startswith("\t")]
    assert done.returncode == 0, "\n".join([*told[-40:], done.stdout[-4000:], *told[-5:]])
    with capsys.disabled():
        print(f"\nseed {seed}: {done.stdout.splitlines()[-1]}")


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
    assert tally.plain_differences == {}
    assert tally.differences == {}
    assert tally.picked.total() == len(described["rounds"])


def subjects() -> dict[int, Subject]:
    topic = random_topic(1, 3, merges_by_size=False)
    return dict(enumerate(Subject(topic, partition) for partition in topic.partitions))


def test_a_log_that_only_kafka_refuses_is_a_difference_and_no_refusal() -> None:
    tally = Tally(logs=3, picked=Counter(dirty=1))
    assert expect(subjects(), dict.fromkeys(range(3), OracleError("Kafka failed")), tally) == {}
    assert tally.refused == 0
    assert set(tally.plain_differences) == {0, 1, 2}
    assert not tally.is_proof


def test_a_log_that_both_refuse_is_a_refusal_and_too_many_are_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_replay, "replay", lambda *_: Replay(is_refused=True))
    tally = Tally(logs=100, picked=Counter(dirty=1))
    assert expect(subjects(), dict.fromkeys(range(3), OracleError("Kafka failed")), tally) == {}
    assert tally.refused == 3
    assert tally.plain_differences == {}
    assert tally.is_proof
    tally.refused = tally.logs
    assert not tally.is_proof


def test_tallies_of_topics_add_up() -> None:
    total = Tally()
    for _ in range(2):
        total.add(Tally(logs=2, refused=1, plain_differences={1: ["x"]}, differences={0: ["y"]}))
    assert (total.logs, total.refused) == (4, 2)
    assert set(total.plain_differences) == {1, 3}
    assert set(total.differences) == {0, 2}
