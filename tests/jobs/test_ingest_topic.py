"""The job against brokers that want a login: what it takes, and what it never shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from ebbtide.log.live import SLICE
from ebbtide.log.names import TopicName
from ebbtide.tables.commits import Step
from ebbtide.tables.topics import load
from tests.jobs.submit import submit
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import QUIET
from tests.lake_sandbox import LakeSandbox
from tests.tables.live import CONNECTION, NOW_MS, Writer, connect, create, records_of
from tests.tables.nights import at

pytestmark = pytest.mark.broker

# What a shell, JSON, a regular expression or Java's login configuration could stumble over.
PASSWORD = 'se"cr\\et;=$1 {}'
USERS = {"admin": PASSWORD}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> LakeSandbox:
    return LakeSandbox(tmp_path_factory.mktemp("lake") / "home")


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker"), users=USERS, **QUIET) as broker:
        yield broker


def run(
    sandbox: LakeSandbox, name: TopicName, kill_at: Step | None = None
) -> CompletedProcess[str]:
    arguments = ["--connection", CONNECTION, "--topic", str(name)]
    arguments += ["--now", at(NOW_MS).isoformat()]
    return submit(sandbox, "ingest_topic", *arguments, kill_at=kill_at)


@pytest.mark.parametrize("step", [Step.LIVE_SLICE, Step.INGEST_BATCHES])
def test_a_killed_run_is_finished_by_the_next(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    name = TopicName("killed", step)
    connect(monkeypatch, broker)
    create(broker, name.topic)
    writer = Writer(broker, name.topic).write(4)

    killed = run(sandbox, name, kill_at=step)
    assert killed.returncode not in (0, 1, 2), killed.stderr[-2000:]
    writer.write(2)
    done = run(sandbox, name)

    assert done.returncode == 0, done.stderr[-2000:]
    assert [record.offset for record in records_of(sandbox.session, name)] == list(range(6))
    assert load(sandbox.session, name).partitions[0].log_end_offset == 6
    assert SLICE not in load(sandbox.session, name).properties
