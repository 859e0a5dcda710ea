"""What tests cost: within the budget, in order of their costs, and dealt to quarters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.cpu_time import tree_cpu_seconds
from tests.durations import (
    DEARER,
    LEFT_OUT,
    MOST_OF_A_TEST_S,
    MOST_OF_ALL_S,
    QUARTERS,
    SHOWN,
    FileCosts,
    dearest_files,
    dearest_first,
    is_left_out,
    is_short_case,
    over_budget,
    quarter_of,
    quarters,
    read_stored,
    store,
    without_short_case,
)


@dataclass
class _Item:
    """What is asked of a test that pytest has collected."""

    nodeid: str
    is_long: bool

    def get_closest_marker(self, _: str) -> bool | None:
        return self.is_long or None


ROOT = Path(__file__).resolve().parent.parent
BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_what_is_stored_is_within_the_budget() -> None:
    """Store it again with `make durations` once a test is dearer or cheaper."""
    assert over_budget(read_stored()) == []


def test_a_dear_test_and_too_many_are_over_the_budget() -> None:
    dear, many = FileCosts(), FileCosts()
    name, (most, _) = next(iter(DEARER.items()))
    file, _, test = name.partition("::")
    dear.add("test_a", MOST_OF_A_TEST_S + 1, is_long=False)
    dear.add("test_b", 500, is_long=True)
    for number in range(100):
        many.add(f"test_{number}", MOST_OF_ALL_S / 100, is_long=False)
    first, second = over_budget({"a.py": dear, "b.py": many})
    assert first.startswith("a.py::test_a costs 21.0 CPU s")
    assert over_budget({file: FileCosts(dearest=most, dearest_test=f"{test}[x]")}) == []
    (over,) = over_budget({file: FileCosts(dearest=most + 1, dearest_test=f"{test}[x]")})
    assert over.startswith(f"{file}::{test}[x] costs")
    assert second.startswith("the tests of `make test` cost 1,121 CPU s")
    starts_spark = FileCosts()
    starts_spark.add("test_c", 500, is_long=False, is_judged=False)
    assert over_budget({"c.py": starts_spark}) == []
    assert over_budget({"b.py": FileCosts(short=1000, dearest=20)}) == []


def test_tests_that_make_test_leaves_out_have_no_budget() -> None:
    def item(mark: str) -> Any:
        return SimpleNamespace(get_closest_marker=lambda name: True if name == mark else None)

    assert all(is_left_out(item(mark)) for mark in LEFT_OUT)
    assert not is_left_out(item("broker"))
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert re.findall(r"not (\w+)", options["addopts"]) == list(LEFT_OUT)


def test_a_long_test_may_have_one_short_case() -> None:
    one, none = pytest.mark.long(but="a").mark, pytest.mark.long.mark
    assert is_short_case("test_it[a]", one)
    assert not is_short_case("test_it[b]", one)
    assert not is_short_case("test_it[None]", none)
    assert not is_short_case("test_it[a]", pytest.mark.broker.mark)


def test_a_short_case_that_no_test_has_is_named() -> None:
    def item(name: str, mark: pytest.MarkDecorator | None) -> Any:
        marked = None if mark is None else mark.mark
        return SimpleNamespace(nodeid=f"a.py::{name}", get_closest_marker=lambda _: marked)

    case_b = pytest.mark.long(but="b")
    items = [item("test_it[a]", case_b), item("test_it[b]", None), item("test_c", pytest.mark.long)]
    assert without_short_case(items) == []
    wrong = without_short_case([*items, item("test_d[a]", case_b)])
    assert wrong == ["a.py::test_d has no case 'b'"]


def test_costs_are_stored_by_file(tmp_path: Path) -> None:
    costs = {"b.py": FileCosts(1.25, 1.0, "test_x", 7.0), "a.py": FileCosts(long=3.0)}
    store(costs, tmp_path / "durations.json")
    stored = read_stored(tmp_path / "durations.json")
    assert list(stored) == ["a.py", "b.py"]
    assert stored["b.py"] == FileCosts(1.2, 1.0, "test_x", 7.0)
    assert read_stored(tmp_path / "none.json") == {}


def test_the_dearest_begin_and_one_that_is_not_stored_is_no_cheap_one() -> None:
    stored = {"cheap.py": FileCosts(1.0), "dear.py": FileCosts(2.0, long=100.0)}
    names = ("cheap.py::a", "new.py::b", "dear.py::c", "dear.py::d", "cheap.py::e")
    long = {"dear.py::d"}

    def ordered(names: Iterable[str]) -> list[str]:
        items = [cast(Any, _Item(name, is_long=name in long)) for name in names]
        dearest_first(items, stored)
        return [item.nodeid for item in items]

    new, cheap = "new.py::b", ("cheap.py::a", "cheap.py::e")
    assert ordered(names) == ["dear.py::c", "dear.py::d", new, *cheap]
    assert ordered(name for name in names if name not in long) == [new, "dear.py::c", *cheap]


def test_quarters_hold_each_file_once_and_cost_about_the_same() -> None:
    stored = {f"{number}.py": FileCosts(long=float(number)) for number in range(40)}
    dealt = quarters([*stored, "new.py"], stored)
    assert dealt.keys() == {*stored, "new.py"}
    loads = [0.0] * QUARTERS
    for file, quarter in dealt.items():
        loads[quarter] += stored.get(file, FileCosts(long=30.0)).long
    assert max(loads) - min(loads) < 10
    assert quarters(reversed(list(stored)), stored) == quarters(stored, stored)


def test_a_quarter_is_chosen_by_the_number_of_commits() -> None:
    assert [quarter_of(str(number)) for number in range(5)] == [0, 1, 2, 3, 0]
    assert quarter_of("git") in range(QUARTERS)


def test_only_the_dearest_files_are_shown() -> None:
    shown = dearest_files({f"{n}.py": FileCosts(float(n)) for n in range(SHOWN + 5)})
    assert len(shown) == SHOWN
    assert shown[0].split() == ["14.0", "CPU", "s", "14.py"]


def test_cpu_seconds_are_those_of_children_too_which_ended_or_not() -> None:
    before = tree_cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    ended = tree_cpu_seconds(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", f"{BUSY}\nprint(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        at_work = tree_cpu_seconds(os.getpid())
        child.communicate(b"\n")
    assert ended - before > 0.2
    assert at_work - ended > 0.2
