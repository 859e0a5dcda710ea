"""What two jobs came to is named by the order that has the same end, or by who failed."""

from __future__ import annotations

import pytest

from tests.pairs.pairs import COPY, EITHER, FIRST_A, FIRST_B, NEITHER, NO_ROW, Met, judged


def end(*offsets: int) -> Met:
    return Met(None, None, {"topic": {"records": list(offsets)}})


SERIAL = end(1, 2), end(2)


@pytest.mark.parametrize(
    ("met", "again", "word"),
    [
        (end(1, 2), None, FIRST_A),
        (end(2), None, FIRST_B),
        (end(1, 2, 2), None, NEITHER),
        (end(2)._replace(a="CommitConflictError"), end(2), "A fails (CommitConflictError), again"),
        (end(1, 2)._replace(a="HoldError"), end(1), "A, B, and A fails (HoldError)"),
        (end(1)._replace(b="HoldError"), end(1, 2), "B fails (HoldError), again: A, B"),
        (end(1)._replace(b="HoldError"), end(1), NEITHER),
        (end(1)._replace(b="AssertionError"), end(1, 2), NEITHER),
        (end(1)._replace(a="HoldError", b="HoldError"), end(1, 2), NEITHER),
        (end(2)._replace(b=NO_ROW), end(2), NEITHER),
    ],
)
def test_an_end_is_that_of_an_order(met: Met, again: Met | None, word: str) -> None:
    found = judged(met, again, SERIAL)
    assert found.word.startswith(word)
    assert bool(found.why) == (word == NEITHER)


def test_orders_of_one_end_are_either() -> None:
    assert judged(end(2), None, (end(2), end(2))).word == EITHER
    failed = end(2)._replace(b="HoldError")
    assert judged(failed, None, (end(2), failed)).word == FIRST_B


@pytest.mark.parametrize(
    ("topic", "replica", "word"),
    [([2], [1, 2], COPY), ([2], [1], NEITHER), ([2], [], NEITHER), ([1, 2], [1, 2], NEITHER)],
)
def test_a_replica_may_be_a_copy_of_the_log_as_it_was(
    topic: list[int], replica: list[int], word: str
) -> None:
    def met(topic: list[int], replica: list[int]) -> Met:
        return Met(None, None, {"topic": {"records": topic}, "replica": {"records": replica}})

    serial = met([2], [2]), met([2], [1, 2, 3])
    assert judged(met(topic, replica), None, serial, {"records": [1, 2]}).word == word
