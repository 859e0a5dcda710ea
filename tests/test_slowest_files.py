from pathlib import Path

from tests.slowest_files import BEGUN_FIRST, SHOWN, begun_at, slowest_files

ROOT = Path(__file__).resolve().parent.parent


def test_phases_and_tests_of_a_file_add_up() -> None:
    phases = [("a.py::one", 1.0), ("b.py::two[x::y]", 2.5), ("a.py::one", 0.5), ("a.py::C::z", 2.0)]
    assert slowest_files(phases) == [("a.py", 3.5), ("b.py", 2.5)]


def test_only_the_slowest_are_shown() -> None:
    shown = slowest_files((f"{number}.py::t", float(number)) for number in range(SHOWN + 5))
    assert [seconds for _, seconds in shown] == [14, 13, 12, 11, 10, 9, 8, 7, 6, 5]


def test_those_that_are_begun_first_are_there() -> None:
    assert [file for file in BEGUN_FIRST if not (ROOT / file).is_file()] == []
    tests = ["tests/log/test_a.py::x", f"{BEGUN_FIRST[1]}::y", f"{BEGUN_FIRST[0]}::z"]
    assert sorted(tests, key=begun_at) == [tests[2], tests[1], tests[0]]
