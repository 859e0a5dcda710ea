from tests.slowest_files import SHOWN, slowest_files


def test_phases_and_tests_of_a_file_add_up() -> None:
    phases = [("a.py::one", 1.0), ("b.py::two[x::y]", 2.5), ("a.py::one", 0.5), ("a.py::C::z", 2.0)]
    assert slowest_files(phases) == [("a.py", 3.5), ("b.py", 2.5)]


def test_only_the_slowest_are_shown() -> None:
    shown = slowest_files((f"{number}.py::t", float(number)) for number in range(SHOWN + 5))
    assert [seconds for _, seconds in shown] == [14, 13, 12, 11, 10, 9, 8, 7, 6, 5]
