"""Two processes in one lake, and a broker that starts when a pair needs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebbtide.settings.upstream import CONNECTIONS
from ebbtide.specs.erase_request import KEYS
from tests.jobs.ingest_topic.live import CONNECTION
from tests.kafka.broker import KafkaBroker
from tests.kafka.delete_broker import SETTINGS
from tests.lake_sandbox import LakeSandbox
from tests.pairs.cases import ERASED
from tests.pairs.two_processes import OtherProcess


@pytest.fixture(scope="module")
def other(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherProcess]:
    """The process of A; that of B is the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        sandbox.take_jobs(patch, **{KEYS: ERASED})
        with OtherProcess(sandbox, tmp_path_factory.mktemp("other") / "log") as other:
            yield other


@pytest.fixture(scope="module")
def start_broker(
    kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory, other: OtherProcess
) -> Iterator[Callable[[], KafkaBroker]]:
    """Starts a broker, the first time, and tells both processes of it."""
    started: list[KafkaBroker] = []

    with pytest.MonkeyPatch.context() as patch:

        def start() -> KafkaBroker:
            if not started:
                started.append(KafkaBroker(kafka_jars, tmp_path_factory.mktemp("b"), **SETTINGS))
                started[0].start()
                connections = json.dumps({CONNECTION: started[0].client()})
                patch.setenv(CONNECTIONS, connections)
                other.environment[CONNECTIONS] = connections
            return started[0]

        yield start
        for broker in started:
            broker.stop()
