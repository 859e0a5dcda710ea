"""Two jobs on one topic at one moment: the end is that of one job after the other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.log.settings.connections import CONNECTIONS
from tests.kafka.broker import KafkaBroker
from tests.kafka.delete_broker import SETTINGS
from tests.lake_sandbox import LakeSandbox
from tests.pairs.cases import OWN_JOBS, OwnTopics
from tests.pairs.pairs import NEITHER, Outcomes, Pairs
from tests.pairs.two_processes import OtherProcess
from tests.stages.ingest_topic.live import CONNECTION

CHOSEN_B = os.environ.get("PAIRS_B", "").split()


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker"), **SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def pairs(
    sandbox: LakeSandbox, broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pairs]:
    folder = tmp_path_factory.mktemp("pairs")
    session = sandbox.session
    topics = OwnTopics(sandbox, folder, lambda: broker)
    more = topics.environment() | {CONNECTIONS: json.dumps({CONNECTION: broker.client()})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "newSession", lambda: session)
        patch.setattr(SparkSession.Builder, "getOrCreate", lambda _: session)
        for name, value in {**sandbox.environment(), **more}.items():
            patch.setenv(name, value)
        with OtherProcess(sandbox, folder / "other.log", more) as other:
            yield Pairs(topics, other)


@pytest.mark.pairs
@pytest.mark.parametrize("a", OWN_JOBS)
def test_own(pairs: Pairs, a: str) -> None:
    found = pairs.meet(a, CHOSEN_B or OWN_JOBS)
    Path(f"/tmp/pairs-{a}.json").write_text(json.dumps(found, indent=1))
    assert [b for b in found for of in found[b].values() if of.word == NEITHER] == []
