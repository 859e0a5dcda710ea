"""Two jobs on one topic at one moment: the end is that of one job after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox
from tests.pairs.cases import ADOPTED_JOBS, OWN_JOBS, OWNER, AdoptedTopics, OwnTopics, Topics
from tests.pairs.outcomes import read_stored, store
from tests.pairs.pairs import NEITHER, Pairs
from tests.pairs.two_processes import OtherProcess

KINDS: dict[str, type[Topics]] = {
    topics_class.kind: topics_class for topics_class in (OwnTopics, AdoptedTopics)
}
# `make test-pairs` sets these: the others that A meets, and whether to store what they came to.
CHOSEN = tuple(os.environ.get("PAIRS_B", "").split())
STORES = bool(os.environ.get("PAIRS_STORE"))
# In `make test-all` beside the whole matrix, and in each quarter of the long tests.
SAMPLE = [
    ("ingest_segments", "ingest_segments"),
    ("clean_log", "delete_records"),
    ("undo_run", "clean_log"),
    ("hold_records", "clean_log"),
    ("repair_state", "ingest_segments"),
]

# An outcome by B and commit point of A.
Words = dict[str, dict[str, str]]
Meet = Callable[[str, str, Sequence[str]], Words]


@pytest.fixture
def meet(
    sandbox: LakeSandbox,
    other: OtherProcess,
    start_broker: Callable[[], KafkaBroker],
    tmp_path: Path,
) -> Meet:
    """Lets jobs run at each commit point of another; what each came to."""

    def meet(kind: str, a: str, others: Sequence[str]) -> Words:
        topics = KINDS[kind](sandbox.session, tmp_path, start_broker)
        found = Pairs(topics, other).meet(a, others)
        words = {b: {step: outcome.word for step, outcome in found[b].items()} for b in found}
        if STORES:
            store(
                kind,
                a,
                {b: by_step for b, by_step in words.items() if NEITHER not in by_step.values()},
            )
        wrong = [
            (b, step, outcome.why)
            for b in found
            for step, outcome in found[b].items()
            if outcome.why
        ]
        assert not wrong, "\n".join(map(str, wrong))
        return words

    return meet


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("kind", "a"),
    [*(("own", job) for job in OWN_JOBS), *(("adopted", job) for job in ADOPTED_JOBS)],
)
def test_each_other_job_at_each_commit_point(kind: str, a: str, meet: Meet) -> None:
    jobs = OWN_JOBS if kind == "own" else (*ADOPTED_JOBS, OWNER)
    found = meet(kind, a, [b for b in jobs if not CHOSEN or b in CHOSEN])
    assert found == as_stored(kind, a, found)


@pytest.mark.long
@pytest.mark.parametrize(("a", "b"), SAMPLE)
def test_a_pair_at_each_commit_point(a: str, b: str, meet: Meet) -> None:
    found = meet("own", a, [b])
    assert found == as_stored("own", a, found)


def as_stored(kind: str, a: str, found: Words) -> Words:
    """What is stored of these pairs; a pair that is not stored yet is as it was found."""
    stored = read_stored().get(kind, {}).get(a, {})
    return {b: stored.get(b, of_b) for b, of_b in found.items()}


def test_what_is_stored_is_right() -> None:
    words = [
        word
        for of_kind in read_stored().values()
        for of_a in of_kind.values()
        for of_b in of_a.values()
        for word in of_b.values()
    ]
    assert words
    assert NEITHER not in words
