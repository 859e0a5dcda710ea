"""Surfaces that need no Spark are as their stored files say."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.lake_sandbox import LakeSandbox
from tests.surfaces import command_line, dags, digests, exit_codes, names, pages, results, state
from tests.surfaces.stored import check

SURFACES: dict[str, Callable[[], Any]] = {
    "cli": command_line.collect,
    "digests": digests.collect,
    "exit_codes": exit_codes.collect,
    "names": names.collect,
    "params": dags.collect,
    "result": results.collect,
    "state": state.collect,
}


@pytest.mark.parametrize("name", SURFACES)
def test_a_surface_is_as_stored(name: str) -> None:
    check(name, SURFACES[name]())


@pytest.mark.parametrize("name", ["routes"])
def test_the_pages_are_as_stored(lake: LakeSandbox, name: str) -> None:
    check(name, pages.collect(lake))
