"""Where work on segments is done, and what comes back of it."""

from __future__ import annotations

import os
import sys

import pytest

from ebbtide.errors import UnavailableError
from ebbtide.spark.tasks import LOCAL_ROWS, map_segments
from tests.lake_sandbox import LakeSandbox

LITTLE, MUCH = LOCAL_ROWS - 1, LOCAL_ROWS


def _process(number: int) -> tuple[int, int]:
    return number, os.getpid()


def _fail(number: int) -> None:
    if number == 2:
        raise UnavailableError(f"expected segment {number}, found none")


def _search_path(_: int) -> list[str]:
    return sys.path


def test_little_is_done_on_the_driver(sandbox: LakeSandbox) -> None:
    done = map_segments(sandbox.session, _process, range(3), LITTLE, "works on")
    assert done == [(number, os.getpid()) for number in range(3)]


def test_much_is_done_in_tasks_and_comes_back_in_order(sandbox: LakeSandbox) -> None:
    done = map_segments(sandbox.session, _process, range(40), MUCH, "works on")
    assert [number for number, _ in done] == list(range(40))
    assert os.getpid() not in {process for _, process in done}
    assert map_segments(sandbox.session, _process, [], MUCH, "works on") == []


@pytest.mark.parametrize("rows", [LITTLE, MUCH])
def test_an_error_of_ours_stays_what_it_is(sandbox: LakeSandbox, rows: int) -> None:
    with pytest.raises(UnavailableError, match=r"^expected segment 2, found none$") as raised:
        map_segments(sandbox.session, _fail, range(4), rows, "works on")
    assert raised.value.transient


def test_a_worker_imports_nothing_from_sparks_own_archives(sandbox: LakeSandbox) -> None:
    (paths,) = map_segments(sandbox.session, _search_path, range(1), MUCH, "works on")
    assert not [path for path in paths if path.endswith(("pyspark.zip", ".jar"))]
