"""Where work on segments is done, and what comes back of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import pytest

from ebbtide.errors import OversizedBatchError, UnavailableError
from ebbtide.spark import tasks
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING, FOLDED, LITTLE_ROWS, map_segments, shared
from tests.lake_sandbox import ROOT, WORKER_PYTHON, LakeSandbox
from tests.waiting import PATIENCE_S, wait_until

MUCH = 10 * LITTLE_ROWS


SENDS_WORK = re.compile(r"\b(map_segments|mapInArrow|mapInPandas|udf)\(")


def _process(number: int) -> tuple[int, int]:
    return number, os.getpid()


def _fail(number: int) -> None:
    if number == 2:
        raise UnavailableError(f"expected segment {number}, found none")


def _list_of(number: int) -> list[int]:
    return [number]


def _joined(some: list[list[int]]) -> list[list[int]]:
    return [list(chain.from_iterable(some))]


class _Result:
    """A result that can be seen to be gone."""


def _search_path(_: int) -> list[str]:
    return sys.path


@pytest.fixture
def tasks_at(sandbox: LakeSandbox) -> Iterator[Callable[[int], None]]:
    """Say how many rows are more than the driver's."""
    yield lambda rows: sandbox.session.conf.set(DRIVER_ROWS_SETTING, rows)
    sandbox.session.conf.unset(DRIVER_ROWS_SETTING)


def test_where_spark_is_local_the_driver_does_all_of_it(sandbox: LakeSandbox) -> None:
    done = map_segments(sandbox.session, _process, range(30), MUCH, "works on")
    assert done == [(number, os.getpid()) for number in range(30)]
    cores = sandbox.session.sparkContext.defaultParallelism
    all_at_work = threading.Barrier(cores, timeout=PATIENCE_S)

    def thread_of(_: int) -> str:
        all_at_work.wait()
        return threading.current_thread().name

    units = range(15 * cores)
    assert len(set(map_segments(sandbox.session, thread_of, units, MUCH, "works on"))) == cores


def test_units_do_not_begin_far_ahead_of_the_first_result(
    sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "AHEAD", 3)
    begun: list[int] = []

    def work(number: int) -> list[int]:
        begun.append(number)
        if number == 0:
            wait_until(lambda: len(begun) == 3, "the units that begin ahead")
        return sorted(begun)

    done = map_segments(sandbox.session, work, range(30), 1, "works on")
    assert done[0] == [0, 1, 2]
    assert done[-1] == list(range(30))


def test_tasks_do_what_is_more_than_the_drivers_and_in_order(
    sandbox: LakeSandbox, tasks_at: Callable[[int], None]
) -> None:
    tasks_at(100)
    done = map_segments(sandbox.session, _process, range(40), 100, "works on")
    assert [number for number, _ in done] == list(range(40))
    assert os.getpid() not in {process for _, process in done}
    assert map_segments(sandbox.session, _process, [], 100, "works on") == []
    (done_here,) = map_segments(sandbox.session, _process, [7], 99, "works on")
    assert done_here == (7, os.getpid())


@pytest.mark.parametrize("driver_rows", [0, MUCH + 1])
def test_results_are_folded_in_order(
    sandbox: LakeSandbox, tasks_at: Callable[[int], None], driver_rows: int
) -> None:
    tasks_at(driver_rows)
    count = 3 * FOLDED + 1
    done = map_segments(sandbox.session, _list_of, range(count), MUCH, "works on", _joined)
    assert len(done) < count / 10
    assert list(chain.from_iterable(done)) == list(range(count))
    assert map_segments(sandbox.session, _list_of, [], MUCH, "works on", _joined) == []


def test_what_is_folded_is_not_kept(sandbox: LakeSandbox) -> None:
    results, left = weakref.WeakSet["_Result"](), list[int]()

    def work(number: int) -> _Result:
        results.add(result := _Result())
        return result

    def fold(some: list[_Result]) -> list[_Result]:
        left.append(len(results))
        return [_Result()]

    map_segments(sandbox.session, work, range(4 * FOLDED), MUCH, "works on", fold)
    assert left[-1] <= FOLDED + 2


@pytest.mark.parametrize("driver_rows", [0, MUCH + 1])
def test_an_error_of_ours_stays_what_it_is(
    sandbox: LakeSandbox, tasks_at: Callable[[int], None], driver_rows: int
) -> None:
    tasks_at(driver_rows)
    with pytest.raises(UnavailableError, match=r"^expected segment 2, found none$") as raised:
        map_segments(sandbox.session, _fail, range(4), MUCH, "works on")
    assert raised.value.transient


def _refuse(number: int) -> None:
    raise OversizedBatchError(f"/0.log: expected less\nfound {number}", "/0.log")


@pytest.mark.parametrize("driver_rows", [0, MUCH + 1])
def test_an_error_of_a_file_keeps_its_path_and_every_line(
    sandbox: LakeSandbox, tasks_at: Callable[[int], None], driver_rows: int
) -> None:
    tasks_at(driver_rows)
    with pytest.raises(OversizedBatchError, match=r"^/0.log: expected less\nfound 0$") as raised:
        map_segments(sandbox.session, _refuse, range(4), MUCH, "works on")
    assert raised.value.path == "/0.log"


def test_after_an_error_no_thread_works_on(sandbox: LakeSandbox) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        _fail(number)

    with pytest.raises(UnavailableError):
        map_segments(sandbox.session, work, range(500), MUCH, "works on")
    count = len(begun)
    # Later work of the same threads: whatever waited for them would have begun before.
    map_segments(sandbox.session, _list_of, range(20), MUCH, "works on")
    assert len(begun) == count < 500


@pytest.mark.parametrize("driver_rows", [0, MUCH + 1])
def test_what_is_shared_is_there_wherever_the_work_is_done(
    sandbox: LakeSandbox, tasks_at: Callable[[int], None], driver_rows: int
) -> None:
    tasks_at(driver_rows)
    with shared(sandbox.session, {"more": 5}, MUCH) as known:
        done = map_segments(sandbox.session, partial(_add, known), range(3), MUCH, "works on")
    assert done == [5, 6, 7]


def _add(known: Any, number: int) -> int:
    return int(known.value["more"] + number)


def test_a_worker_imports_nothing_from_sparks_own_archives(
    sandbox: LakeSandbox, tasks_at: Callable[[int], None]
) -> None:
    tasks_at(0)
    (paths,) = map_segments(sandbox.session, _search_path, range(1), MUCH, "works on")
    assert not [path for path in paths if path.endswith(("pyspark.zip", ".jar"))]


def test_executors_can_import_each_module_that_sends_work_to_tasks() -> None:
    """Where Spark is local, map_segments works in the driver, which has all packages."""
    sources = ROOT / "src"
    modules = [
        ".".join(path.relative_to(sources).with_suffix("").parts)
        for path in sorted(sources.glob("ebbtide/**/*.py"))
        if SENDS_WORK.search(path.read_text())
    ]
    assert "ebbtide.jobs.certify_erasure.search" in modules
    imports = "\n".join(f"import {module}" for module in modules)
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    done = subprocess.run(
        [WORKER_PYTHON, "-c", imports], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def _import_for(importer: str, name: str) -> str:
    """Import a package as a module of this name would, in a task; return what went wrong."""
    try:
        exec(f"import {name}", {"__name__": importer})
    except ModuleNotFoundError as error:
        return str(error)
    return ""


def test_tests_run_tasks_with_the_packages_of_executors_alone(sandbox: LakeSandbox) -> None:
    """So that a module that a cluster's executors lack fails here too."""
    asked = [("ebbtide.x", "numpy"), ("ebbtide.x", "packaging"), ("tests.x", "packaging")]
    answers = sandbox.session.sparkContext.parallelize(asked).map(lambda a: _import_for(*a))
    known, refused, of_tests = answers.collect()
    assert known == of_tests == ""
    assert refused == (
        "expected a package of requirements-executors.in, found an import of packaging by "
        "ebbtide.x in a task"
    )
