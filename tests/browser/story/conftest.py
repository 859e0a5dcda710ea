"""One running Airflow for the whole story, people who log in to it, and names for pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.running_airflow import Person, airflow_with_people
from tests.lake_sandbox import LakeSandbox


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, LakeSandbox]]:
    """The address of an Airflow whose lake holds the sample log, and that lake."""
    with airflow_with_people(tmp_path_factory.mktemp("airflow")) as (airflow, lake):
        yield f"http://127.0.0.1:{airflow.port}", lake


@pytest.fixture(scope="package")
def logins() -> dict[str, Any]:
    """What the browser of each person has kept of the first login."""
    return {}


@pytest.fixture
def person(
    chromium: Any, running: tuple[str, LakeSandbox], logins: dict[str, Any]
) -> Iterator[Callable[[str], Person]]:
    """Makes people who are logged in."""
    people: list[Person] = []

    def somebody(name: str) -> Person:
        people.append(Person(chromium, running[0], name, logins.get(name)))
        if name not in logins:
            logins[name] = people[-1].log_in().context.storage_state()
        return people[-1]

    yield somebody
    for one in people:
        print(f"{one.name} is at {one.page.url}:\n{one.page.inner_text('body')}")  # of a failure
        one.context.close()


@pytest.fixture
def picture(pictures: Path) -> Callable[[str], Callable[[str], Path]]:
    """Names pictures by page and theme."""
    return lambda name: lambda theme: pictures / f"{name}-{theme}.png"
