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


@pytest.mark.parametrize(
    ("is_clean", "hours"),
    [
        pytest.param(True, 24, id="rounds-by-the-deadline", marks=pytest.mark.long),
        pytest.param(False, 8, id="a-round-each-night"),
    ],
)
def test_a_deleted_key_goes_between_its_window_and_its_deadline(
    world: World, is_clean: bool, hours: int
) -> None:
    world.begin(0, undoes=False, is_copied=False, is_clean=is_clean)
    world.delete(PEOPLE[0])
    while not world.slack_ms:
        world.night(hours, [])
        world.check()
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
