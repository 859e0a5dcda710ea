"""Whatever stands in a request or in a property: it is parsed, or refused by an error of ours."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import ConfigurationError, EbbtideError, RequestError, StateError
from ebbtide.iceberg.in_flight import CleaningRound, Merge, Undo
from ebbtide.kafka.live_offsets import SLICE, Slice
from ebbtide.kafka.low_watermarks import REPLICATION, Replication
from ebbtide.settings import config
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import parse_connection
from ebbtide.specs.delete_request import OlderThan, parse_request
from ebbtide.specs.erase_request import parse_from_offset
from ebbtide.state.topic_state import (
    MAX_SNAPSHOT_AGE,
    MERGE,
    ROUND,
    UNDO,
    max_snapshot_age_ms,
    parse_states,
)

# 10,000 inputs a test, of ten from one draw: drawn piece by piece they take Hypothesis minutes.
EXAMPLES = settings(max_examples=400)
SEEDS = st.randoms(use_true_random=True)
INPUTS_A_DRAW = 10
LIMIT = 2**63
# How often the inputs of a test came to what it asks; each test begins anew.
happened: Counter[str] = Counter()
# Where numbers, nesting and text come to an end of what something can hold.
EDGES: list[Any] = [
    None, True, False, 0, -1, 1, LIMIT - 1, LIMIT, -LIMIT, -LIMIT - 1, 10**40, 1e308, float("inf"),
    float("nan"), 0.5, "", " ", "P", "PT", "P1D", "P99999999999999999D", "P1M", "PT0S", "-P1D", "T",
    "9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00+23:59", "2026-01-01T00:00:00Z", "2026",
    "\ud800", "\0", "log.a", "log..", "../x", "a:b.c", "0", "00", "١", "-0", "1_0", "nan", "1e400",
    [], {}, [[]], {"": {}}, [0, 0], [[0, 0]], [[0, 1], [5, 2]], {"0": [0, 5]}, {"0": [[1, 2]]},
]  # fmt: skip
NUMBER = "1" * 5_000
WRONG = ["", "{", "nul", "\ufeff{}", NUMBER, '{"a":1,"a":2}', "NaN", '"', "'"]
WRONG += ["[" * 100_000, '{"a":' * 100_000, "[" * 990 + "]" * 990]
WRONG += ['{"topics":' * 900 + "1" + "}" * 900]
KEYS = ["0", "1", "x", "-1", "", NUMBER]


def some(random: Random, names: str, value: Callable[[Random], Any] | None = None) -> Any:
    """An object of some of these fields, each of them an edge."""
    chosen = random.sample(names.split(), random.randint(0, 3))
    return {name: (value or edge)(random) for name in chosen}


def seldom(random: Random, names: str) -> Any:
    return some(random, names) if random.random() < 0.3 else {}


def edge(random: Random) -> Any:
    return random.choice(EDGES)


def text_of(random: Random, document: Callable[[Random], Any]) -> str:
    how = random.random()
    if how < 0.1:
        return random.choice(WRONG)
    return json.dumps(edge(random) if how < 0.2 else document(random))


def text(random: Random) -> str:
    value = random.choice([*WRONG, *EDGES])
    return value if isinstance(value, str) else json.dumps(value)


SELECTOR = "offset timestamp age groups connection"
AGES = ["PT0S", "PT0.001S", "P1D", "P20833D", "P999999999D", "P99999999999999999D", "-P1D", "P1M"]


def request(random: Random) -> Any:
    return {"topics": [topic(random)]} | seldom(random, "timeout_ms a b")


def topic(random: Random) -> Any:
    named = {"topic": "log.a"} if random.random() < 0.8 else some(random, "topic partitions x")
    how = random.random()
    if how < 0.1:
        return named | {"age": random.choice(AGES)}
    if how < 0.5:
        return named | some(random, SELECTOR)
    partitions = [
        {"partition": number} | some(random, "partition " + SELECTOR)
        for number in range(random.randint(0, 2))
    ]
    return named | {"partitions": partitions}


@EXAMPLES
@given(random=SEEDS)
def check_requests(random: Random) -> None:
    for _ in range(INPUTS_A_DRAW):
        check_request(random)


def check_request(random: Random) -> None:
    try:
        parsed = parse_request(text_of(random, request))
    except RequestError as error:
        str(error).encode()  # a log can be written
        happened["request refused"] += 1
        return
    happened["request taken"] += 1
    for asked in parsed.topics.values():
        for selector in asked.of([0]).values():
            if isinstance(selector, OlderThan):
                happened["age taken"] += 1
                assert selector.at(1_800_000_000_000).timestamp_ms >= 0


def test_requests() -> None:
    happened.clear()
    check_requests()
    assert (
        min(happened[outcome] for outcome in ("request taken", "request refused", "age taken")) > 20
    )


PART = "log_start_offset first_segment_offset first_dirty_offset first_uncleanable_offset"
ROUND_NUMBERS = (
    "now_ms delete_retention_ms producer_id_expiration_ms segment_bytes records_snapshot "
    "batches_snapshot"
)


def cleaner_round(random: Random) -> Any:
    parts = {
        random.choice(KEYS): dict.fromkeys(PART.split(), 1)
        | {"is_idle": True}
        | some(random, PART + " is_idle held_back_from other")
    }
    whole = dict.fromkeys(ROUND_NUMBERS.split(), 1) | {"id": "x", "partitions": parts}
    return whole | seldom(random, ROUND_NUMBERS + " id partitions other")


def merge(random: Random) -> Any:
    return {"id": "x", "groups": {random.choice(KEYS): edge(random)}} | seldom(
        random, "id groups other"
    )


def undo(random: Random) -> Any:
    whole = {"id": "x", "run_id": "r", "points": {random.choice(KEYS): ["p"]}, "paused_until_ms": 1}
    of_replica = {"paused": [0]} if random.random() < 0.5 else {}
    given = seldom(random, "id run_id points paused_until_ms paused other")
    return whole | of_replica | given


def live_slice(random: Random) -> Any:
    offsets = [0, 5] if random.random() < 0.2 else edge(random)
    whole = {"now": "2026-01-01T00:00:00+00:00", "ranges": {random.choice(KEYS): offsets}}
    return whole | seldom(random, "now ranges other")


def replication(random: Random) -> Any:
    whole = {"id": "x", "emptied": [0], "taken_over": False}
    return whole | some(random, "id emptied taken_over other")


@pytest.mark.parametrize(
    ("name", "parse", "document"),
    [
        (ROUND, CleaningRound.parse, cleaner_round),
        (MERGE, Merge.parse, merge),
        (UNDO, Undo.parse, undo),
        (SLICE, Slice.parse, live_slice),
        (REPLICATION, lambda text: Replication.of({REPLICATION: text}), replication),
    ],
    ids=["round", "merge", "undo", "slice", "replication"],
)
def test_properties_in_json(
    name: str, parse: Callable[[str], Any], document: Callable[[Random], Any]
) -> None:
    taken: list[Any] = []
    refused: list[str] = []

    @EXAMPLES
    @given(random=SEEDS)
    def run(random: Random) -> None:
        for _ in range(INPUTS_A_DRAW):
            try:
                taken.append(parse(text_of(random, document)))
            except StateError as error:
                refused.append(str(error))

    run()
    assert len(taken) > 20
    assert len(refused) > 20
    assert all(name in message and len(message) < 500 for message in refused)
    if name != SLICE:
        assert all(parse(value.to_json()) == value for value in taken)


STATE = (
    "log-start-offset log-end-offset first-dirty-offset first-unmarked-offset cleaned-at-ms "
    "cleaned-end-offset next-clean-ms max-event-time-ms expired-end-offset first-appended-offset "
    "horizon-ms next-expiry-ms expiry-basis"
)


@EXAMPLES
@given(random=SEEDS)
def check_states(random: Random) -> None:
    for _ in range(INPUTS_A_DRAW):
        check_state(random)


def test_states() -> None:
    happened.clear()
    check_states()
    assert happened["state taken"] > 20


def check_state(random: Random) -> None:
    key = "ebbtide.state.0."
    properties = {key + name: "1" for name in STATE.split()} | {key + "segments": "[[0,0]]"}
    changed = some(random, STATE + " segments", text)
    properties |= {key + name: value for name, value in changed.items()}
    if random.random() < 0.1:
        properties[f"ebbtide.state.{random.choice(KEYS)}.a"] = "1"
    with contextlib.suppress(StateError):
        for state in parse_states(properties).values():
            numbers = [number for segment in state.segments for number in segment]
            assert all(-LIMIT <= number < LIMIT for number in [*numbers, state.log_end_offset])
            happened["state taken"] += 1


@EXAMPLES
@given(random=SEEDS)
def check_all_settings(random: Random) -> None:
    for _ in range(INPUTS_A_DRAW):
        check_settings(random)


def test_settings() -> None:
    happened.clear()
    check_all_settings()
    assert happened["setting taken"] > 20


def check_settings(random: Random) -> None:
    names = random.sample([*config.settings(), "kafka.other", MAX_SNAPSHOT_AGE], 2)
    properties = {name: text(random) for name in names}
    for parse in (config.parse_config, max_snapshot_age_ms):
        with contextlib.suppress(ConfigurationError):
            parse(properties)
            happened["setting taken"] += 1


@EXAMPLES
@given(random=SEEDS)
@pytest.mark.parametrize(
    "parse",
    [TopicName.parse, parse_from_offset, lambda text: parse_connection("any", text)],
    ids=["name", "offset", "connections"],
)
def test_arguments(parse: Callable[[str], Any], random: Random) -> None:
    for _ in range(INPUTS_A_DRAW):
        with contextlib.suppress(EbbtideError):
            parse(random.choice(["", "1:", ":", "0:", f"{NUMBER}:"]) + text(random))
