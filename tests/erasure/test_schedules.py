"""Erasures and deadlines in schedules of what people, machines and nights do to a topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.erasure.__main__ import run_on
from tests.erasure.world import PEOPLE, WINDOW_MS, World
from tests.jobs.ingest_topic.live import broker as broker
from tests.jobs.ingest_topic.live import connect
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox

pytestmark = pytest.mark.broker


@pytest.fixture
def world(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> World:
    connect(monkeypatch, broker)
    sandbox.take_jobs(monkeypatch)
    return World(sandbox, broker, tmp_path)


def test_a_deleted_key_goes_between_its_window_and_its_deadline(world: World) -> None:
    world.begin(0, undoes=False, is_copied=False)
    world.delete(PEOPLE[0])
    nights = world.deadline_ms // WINDOW_MS
    for _ in range(nights):
        world.night(24, [])
        world.check()
    assert len(world.slack_ms) == 1
    assert world.slack_ms[0] >= 0


@pytest.mark.long
def test_a_record_from_before_an_erasure_does_not_come_back(world: World) -> None:
    world.begin(0, undoes=False)
    world.erase(PEOPLE[0])
    world.produce(PEOPLE[0], ago_ms=400 * WINDOW_MS)
    world.night(24, [])
    world.check()
    assert world.log[-2].ingest > world.erased[0][2], "it was not replayed after the erasure"
    world.restore()
    world.check()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_nothing_is_late_early_or_back(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    ended = run_on(broker, tmp_path, monkeypatch, seed, schedules=4, steps=10)
    assert all(slack_ms >= 0 for world in ended for slack_ms in world.slack_ms)
