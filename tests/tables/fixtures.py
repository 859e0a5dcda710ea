from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from tests.commit_points import record_hit
from tests.kafka.conftest import kafka_jars as kafka_jars
from tests.lake_sandbox import LakeSandbox


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> LakeSandbox:
    """A lake that the tests of one file share; each takes a cluster of its own."""
    return LakeSandbox(tmp_path_factory.mktemp("lake") / "home")


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """A cluster name of the test's own."""
    return "".join(c if c.isalnum() else "_" for c in request.node.name.lower())[-60:]


@pytest.fixture(scope="session")
def sample() -> Path:
    """The committed sample log."""
    return Path(__file__).resolve().parents[2] / "sample" / "log"


class KilledError(Exception):
    """Stands for a process that ends at a commit point."""


def kill(step: Step) -> NoReturn:
    """End the job here, and note that it came here."""
    record_hit(step)
    raise KilledError(step)


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Step]]:
    """Steps at which the next commit raises, once each."""
    steps: list[Step] = []

    def before_commit(step: Step) -> None:
        if step in steps:
            steps.remove(step)
            kill(step)

    monkeypatch.setattr(commits, "before_commit", before_commit)
    yield steps
    assert not steps, "the job never came to this commit point"


Meanwhile = Callable[[Step, Callable[[], object]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meanwhile]:
    """Lets something happen just before the next commit of a step, once."""
    waiting: dict[Step, Callable[[], object]] = {}

    def before_commit(step: Step) -> None:
        waiting.pop(step, lambda: None)()

    monkeypatch.setattr(commits, "before_commit", before_commit)
    yield waiting.__setitem__
    assert not waiting, "the job never came to this commit point"
