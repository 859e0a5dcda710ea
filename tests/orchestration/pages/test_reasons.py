"""Partitions with one reason share a line, in plans, reports and pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.plans import LeavingRows, Staying, partition_summary, stays_in_words
from ebbtide.orchestration.pages.topic import held_back
from ebbtide.orchestration.report import notes
from ebbtide.text import in_ranges
from tests.orchestration.test_outcome import run_of


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([1, 0], "0, 1"),
        ([0, 1, 2, 2], "0-2"),
        ([5, 3, 4, 9, 0, 10], "0, 3-5, 9, 10"),
    ],
)
def test_neighbours_are_told_as_a_range(numbers: list[int], text: str) -> None:
    assert in_ranges(numbers) == text


def summary(*stays: Staying) -> Any:
    return partition_summary(LeavingRows(), {}, stays)


def test_what_stays_is_a_line_for_each_reason() -> None:
    within = Staying(reason="within the limits", records=1)
    policy = Staying(reason="cleanup.policy has no compact")
    partitions = {str(p): summary(policy, within) for p in range(50)} | {"77": summary(within)}
    assert stays_in_words(partitions) == [
        "nothing is removed from partitions 0-49: cleanup.policy has no compact",
        "51 records are retained in partitions 0-49, 77: within the limits",
    ]
    assert stays_in_words({"3": summary(within)}) == [
        "1 record is retained in partition 3: within the limits"
    ]


def run_with(notes_by_partition: dict[int, str]) -> Run:
    partitions = {str(p): {"note": note} for p, note in notes_by_partition.items()}
    return replace(run_of("log.a"), result={"partitions": partitions, "topic": {}})


def test_a_note_that_several_partitions_have_is_told_once() -> None:
    run = run_with({0: "paused", 1: "paused", 2: "paused", 5: "an open transaction"})
    assert held_back([run]) == ["Partitions 0-2: paused.", "Partition 5: an open transaction."]
    assert notes([run]) == [
        "log.a partitions 0-2: paused.",
        "log.a partition 5: an open transaction.",
    ]
