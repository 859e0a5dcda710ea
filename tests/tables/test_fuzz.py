"""Random topics, and logs that once differed, through Kafka's own classes and the Spark stages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh_seed import FRESH_SEED
from tests.kafka.scenarios import from_json
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.tables.fuzz import REGRESSIONS
from tests.tables.spark_replay import replay_topic

TOPICS = 5


@pytest.mark.parametrize(
    ("seed", "options"),
    [(1, ["--in-tasks"]), (FRESH_SEED, ["--sent-records", "60"])],
    ids=["fixed seed, in tasks", "fresh seed, on the driver, offset maps in shares"],
)
def test_kafka_leaves_the_same_of_random_topics(
    seed: int, options: list[str], kafka_jars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own, as `make fuzz-spark` is: hundreds of rounds fill a JVM."""
    command = [sys.executable, "-m", "tests.tables.fuzz"]
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
    assert tally.differences == {}
