from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import StateError
from ebbtide.state.topic_state import (
    NOTHING_SEEN,
    Seen,
    added,
    differences,
    partitions_of,
    rows_properties,
    seen_of,
    seen_property,
    told_rows,
)

PLACES = st.tuples(st.integers(0, 20), st.integers(0, 2**63 - 1))
ROWS = st.dictionaries(PLACES, st.integers(1, 2**40))


@given(ROWS)
def test_rows_are_told_as_they_were(rows: dict[tuple[int, int], int]) -> None:
    told = rows_properties("records", rows, partitions_of(rows))
    assert told_rows(told, "records") == rows  # type: ignore[arg-type]
    assert told_rows(told, "batches") == {}  # type: ignore[arg-type]


def test_only_the_partitions_asked_for_are_read() -> None:
    told = {"ebbtide.rows.records.1": "[[0,2],[7,1]]", "ebbtide.rows.records.11": "broken"}
    assert told_rows(told, "records", [1, 2]) == {(1, 0): 2, (1, 7): 1}


def test_a_partition_without_rows_is_told_of_no_more() -> None:
    assert rows_properties("records", {(1, 0): 2}, {0, 1}) == {
        "ebbtide.rows.records.0": None,
        "ebbtide.rows.records.1": "[[0,2]]",
    }


@pytest.mark.parametrize("seen", [NOTHING_SEEN, Seen(2**62, 17)])
def test_a_snapshot_is_told_as_it_was(seen: Seen) -> None:
    assert seen_of(seen_property("records", seen), "records") == seen
    assert seen_of(seen_property("records", seen), "batches") is None


@pytest.mark.parametrize("text", ["", "7", "[1]", "[1, 2, 3]", '["1", 2]', "[null, null]"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="a snapshot and its sequence number"):
        seen_of({"ebbtide.seen.records": text}, "records")


@given(ROWS, ROWS)
def test_what_was_added_is_the_difference(
    rows: dict[tuple[int, int], int], more: dict[tuple[int, int], int]
) -> None:
    fewer = {place: -count for place, count in more.items()}
    assert differences(rows, added(rows, more)) == more
    assert added(rows, more, fewer) == rows
    assert differences(added(rows, more), rows) == fewer
