"""A run that compared too little fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.log.proof import Compared


def compared(**changes: Any) -> Compared:
    """A hundred logs of three rounds each, all compared, a third of the rounds dirty."""
    usual = {"logs": 100, "refused": 0, "picked": {"dirty": 100, "none": 200}}
    return Compared(**{**usual, "markers_kept_longer": 0, **changes})


def test_a_run_that_compared_everything_has_no_gap() -> None:
    assert compared().gaps() == []


def test_few_refused_logs_and_few_markers_are_no_gap() -> None:
    assert compared(refused=5, markers_kept_longer=30).gaps() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refused": 100}, "refused by Kafka and by the plain rules, found 100 of 100"),
        ({"refused": 6}, "found 6 of 100"),
        ({"markers_kept_longer": 31}, "found 31 of 300"),
        ({"picked": {"none": 300}}, "expected a dirty round, found none among 300 rounds"),
        ({"picked": {}}, "expected a dirty round, found none among 0 rounds"),
    ],
)
def test_each_gap_is_told(changes: dict[str, Any], message: str) -> None:
    (line,) = compared(**changes).gaps()
    assert message in line


def test_a_run_without_a_log_has_a_gap() -> None:
    assert compared(logs=0, picked={}).gaps() != []
