from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import ConfigurationError, NotCoveredError, StateError
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import (
    CHECKSUM,
    CLOCKS,
    LAYOUT,
    LAYOUT_VERSION,
    NEVER,
    PartitionState,
    parse_states,
    readable_states,
    sealed,
    to_properties,
    unsealed,
)

STATE = PartitionState(
    log_start_offset=5,
    log_end_offset=40,
    first_dirty_offset=20,
    first_unmarked_offset=30,
    segments=(SegmentStart(0, 1_000), SegmentStart(20, 2_000)),
    max_event_time_ms=900,
    cleaned_at_ms=3_000,
    cleaned_end_offset=40,
    next_clean_ms=4_000,
    expired_end_offset=30,
    first_appended_offset=35,
    horizon_ms=4_500,
    next_expiry_ms=5_500,
    expiry_basis=77,
)
PROPERTIES = {
    "ebbtide.state.3.log-start-offset": "5",
    "ebbtide.state.3.log-end-offset": "40",
    "ebbtide.state.3.first-dirty-offset": "20",
    "ebbtide.state.3.first-unmarked-offset": "30",
    "ebbtide.state.3.max-event-time-ms": "900",
    "ebbtide.state.3.cleaned-at-ms": "3000",
    "ebbtide.state.3.cleaned-end-offset": "40",
    "ebbtide.state.3.next-clean-ms": "4000",
    "ebbtide.state.3.expired-end-offset": "30",
    "ebbtide.state.3.first-appended-offset": "35",
    "ebbtide.state.3.horizon-ms": "4500",
    "ebbtide.state.3.next-expiry-ms": "5500",
    "ebbtide.state.3.expiry-basis": "77",
    "ebbtide.state.3.segments": "[[0,1000],[20,2000]]",
}


def test_a_state_is_these_properties() -> None:
    assert to_properties(3, STATE) == PROPERTIES
    assert parse_states(PROPERTIES) == {3: STATE}


def test_other_properties_are_no_state() -> None:
    others = {"kafka.cleanup.policy": "compact", "ebbtide.round": "{}", "ebbtide.enabled": "true"}
    assert parse_states(others) == {}


@pytest.mark.parametrize(
    ("next_clean_ms", "horizon_ms", "next_horizon_ms"),
    [
        pytest.param(NEVER, NEVER, None, id="nothing waits"),
        pytest.param(7, NEVER, 7, id="what waits is what comes next"),
        pytest.param(7, 7, 7, id="what waits has a date"),
        pytest.param(0, NEVER, None, id="what waits has none"),
        pytest.param(0, 7, 7, id="something waits without a date, something else with one"),
    ],
)
def test_the_next_horizon(next_clean_ms: int, horizon_ms: int, next_horizon_ms: int | None) -> None:
    state = replace(STATE, next_clean_ms=next_clean_ms, horizon_ms=horizon_ms)
    assert state.next_horizon_ms == next_horizon_ms


def test_the_last_segment_is_active() -> None:
    assert STATE.active_segment == 20


NUMBERS = st.integers(-1, 2**63 - 1)
STATES = st.builds(
    PartitionState,
    log_start_offset=NUMBERS,
    log_end_offset=NUMBERS,
    first_dirty_offset=NUMBERS,
    first_unmarked_offset=NUMBERS,
    segments=st.lists(st.builds(SegmentStart, NUMBERS, NUMBERS), min_size=1, max_size=3).map(tuple),
    max_event_time_ms=NUMBERS,
    cleaned_at_ms=NUMBERS,
    cleaned_end_offset=NUMBERS,
    next_clean_ms=NUMBERS,
    expired_end_offset=NUMBERS,
    first_appended_offset=NUMBERS,
    horizon_ms=NUMBERS,
    next_expiry_ms=NUMBERS,
    expiry_basis=NUMBERS,
)


@given(states=st.dictionaries(st.integers(0, 12), STATES, max_size=3))
def test_what_is_written_is_read_back_partition_by_partition(
    states: dict[int, PartitionState],
) -> None:
    properties = {"write.format.default": "parquet"}
    for partition, state in states.items():
        properties |= to_properties(partition, state)
    assert parse_states(properties) == states
    assert list(parse_states(properties)) == sorted(states)


@pytest.mark.parametrize("missing", PROPERTIES)
def test_a_missing_property_is_named(missing: str) -> None:
    properties = {name: value for name, value in PROPERTIES.items() if name != missing}
    with pytest.raises(StateError) as refused:
        parse_states(properties)
    assert str(refused.value) == (
        f"expected the whole state of partition 3, found no '{missing}' in it. "
        "repair_state rebuilds the state from the topic's tables"
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        pytest.param("log-end-offset", "forty", "an integer", id="no integer"),
        pytest.param("segments", "[[0,1", "one or more [base offset, modified ms]", id="no JSON"),
        pytest.param("segments", "[7]", "one or more [base offset, modified ms]", id="no pairs"),
        pytest.param("segments", "[]", "one or more [base offset, modified ms]", id="no segment"),
    ],
)
def test_an_unreadable_property_is_named(name: str, value: str, expected: str) -> None:
    name = f"ebbtide.state.3.{name}"
    with pytest.raises(StateError) as refused:
        parse_states({**PROPERTIES, name: value})
    assert str(refused.value) == (
        f"expected {expected} in {name}, found {value!r}. "
        "repair_state rebuilds the state from the topic's tables"
    )


def test_a_property_of_no_partition_is_named() -> None:
    with pytest.raises(StateError) as refused:
        parse_states({"ebbtide.state.log-end-offset": "1"})
    assert str(refused.value) == (
        "expected a partition number after ebbtide.state., found "
        "ebbtide.state.log-end-offset. repair_state rebuilds the state from the topic's tables"
    )


def test_a_next_expiry_beyond_64_bits_is_named() -> None:
    """As version 33418e1 wrote it for `retention.ms` of 2^63-1."""
    with pytest.raises(StateError, match="repair_state") as refused:
        parse_states({**PROPERTIES, "ebbtide.state.3.next-expiry-ms": str(2**63)})
    assert "ebbtide.state.3.next-expiry-ms, found '9223372036854775808'" in str(refused.value)


@pytest.mark.parametrize("damage", [str(2**63), "x", None])
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_repair_forgets_clocks_alone(name: str, damage: str | None) -> None:
    """A partition without its offsets or segments is left out: the tables tell those."""
    whole = to_properties(4, STATE)
    properties = {**PROPERTIES, **whole, name: damage}
    if damage is None:
        del properties[name]
    told: dict[str, str] = {n: text for n, text in properties.items() if text is not None}
    of_clock = name.rpartition(".")[2].replace("-", "_")
    states = {4: STATE}
    if of_clock in CLOCKS:
        states[3] = replace(STATE, **{of_clock: CLOCKS[of_clock]})
    assert readable_states(told) == states


def test_a_repair_leaves_out_what_is_of_no_partition() -> None:
    assert readable_states({**PROPERTIES, "ebbtide.state.x.segments": "[]"}) == {3: STATE}


@pytest.mark.parametrize("name", ["log_start_offset", "log_end_offset", "max_event_time_ms"])
def test_what_only_grows_does_not_move_backwards(name: str) -> None:
    now = getattr(STATE, name)
    assert getattr(STATE.moved(**{name: now}), name) == now
    assert getattr(STATE.moved(**{name: now + 1}), name) == now + 1
    with pytest.raises(StateError) as refused:
        STATE.moved(**{name: now - 1})
    assert str(refused.value) == (f"expected {name} at or above {now}, found a change to {now - 1}")
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_one_that_was_read_names_its_partition() -> None:
    (state,) = parse_states(PROPERTIES).values()
    with pytest.raises(StateError, match=r"^partition 3: expected log_end_offset at or above"):
        state.moved(log_end_offset=0)


def test_the_rest_moves_either_way() -> None:
    changes: dict[str, Any] = {
        "first_dirty_offset": 1,
        "first_unmarked_offset": 1,
        "cleaned_at_ms": 1,
        "segments": ((0, 0),),
    }
    assert STATE.moved(**changes) == replace(STATE, **changes)


@pytest.mark.parametrize(
    ("changes", "now_ms", "is_clean"),
    [
        pytest.param({}, 3_999, True, id="before the next horizon"),
        pytest.param({}, 4_000, False, id="at the next horizon"),
        pytest.param({"next_clean_ms": NEVER}, 10**12, True, id="nothing waits"),
        pytest.param({"log_end_offset": 41}, 3_999, False, id="a record has arrived since"),
        pytest.param({"next_clean_ms": 0}, 3_001, False, id="something waits already"),
        pytest.param({"next_clean_ms": 0}, 3_000, True, id="now is the last round's: always"),
        pytest.param({"next_clean_ms": 0, "cleaned_at_ms": NEVER}, 0, False, id="never cleaned"),
        pytest.param({"first_dirty_offset": 19}, 3_999, False, id="a dirty segment is closed"),
        pytest.param(
            {"first_dirty_offset": 19, "log_start_offset": 20}, 3_999, True, id="it is deleted"
        ),
    ],
)
def test_when_a_round_finds_nothing_to_do(
    changes: dict[str, int], now_ms: int, is_clean: bool
) -> None:
    assert STATE.moved(**changes).is_clean_at(now_ms) == is_clean


def test_a_state_says_its_layout() -> None:
    written = sealed(PROPERTIES)
    assert written[LAYOUT] == str(LAYOUT_VERSION)
    assert unsealed("log.t", written) == PROPERTIES


@pytest.mark.parametrize("missing", [CHECKSUM, LAYOUT])
def test_a_state_without_its_seal_is_no_job_s(missing: str) -> None:
    left = {name: value for name, value in sealed(PROPERTIES).items() if name != missing}
    with pytest.raises(StateError, match=f"{CHECKSUM} does not match: "):
        unsealed("log.t", left)


def test_a_layout_that_no_release_had_is_refused_before_its_checksum() -> None:
    with pytest.raises(ConfigurationError, match=r"log\.t in layout 2, found 1, which no release"):
        unsealed("log.t", {**PROPERTIES, LAYOUT: "1"})


@pytest.mark.parametrize("version", [str(LAYOUT_VERSION + 1), "2.5", ""])
def test_a_layout_of_a_newer_version_is_refused_before_its_checksum(version: str) -> None:
    newer = {**sealed(PROPERTIES), LAYOUT: version}
    with pytest.raises(NotCoveredError, match=r"log.t .* a newer ebbtide has changed them"):
        unsealed("log.t", newer)


def test_a_state_with_another_value_is_no_job_s() -> None:
    edited = {**sealed(PROPERTIES), "ebbtide.state.3.log-end-offset": "9"}
    with pytest.raises(StateError, match=f"{CHECKSUM} does not match: "):
        unsealed("log.t", edited)
