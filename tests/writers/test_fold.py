"""The fold itself, on a log that one can follow by hand."""

from tests.writers.fold import Night, fold
from tests.writers.producing import Produced

LOG = [
    Produced(0, 0, "a", 1),
    Produced(0, 1, "b", 2),
    Produced(0, 2, None, 3),
    Produced(0, 3, "a", None),
    Produced(0, 4, "b", 4),
    Produced(0, 5, "b", 5),
    Produced(1, 0, "a", 6),
]


def offsets(*nights: Night) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in fold(LOG, nights, 100)]


def test_a_record_lives_until_a_night_covers_a_newer_one_of_its_key() -> None:
    assert offsets() == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0)]
    assert offsets(Night(0, {0: 3})) == [(0, 0), (0, 1), (0, 3), (0, 4), (0, 5), (1, 0)]
    assert offsets(Night(0, {0: 5, 1: 1})) == [(0, 3), (0, 4), (0, 5), (1, 0)]


def test_a_tombstone_waits_for_the_horizon_of_the_first_night_that_covers_it() -> None:
    first = Night(10, {0: 4})
    assert (0, 3) in offsets(first, Night(109, {0: 6}))
    assert (0, 3) not in offsets(first, Night(110, {0: 6}))
