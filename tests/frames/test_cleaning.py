"""The offset map's share of one segment."""

from __future__ import annotations

import pyarrow as pa

from ebbtide.frames.cleaning import dirty_keys

ROWS = pa.table(
    {
        "offset": [0, 1, 2, 3, 4, 5],
        "batch": [0, 0, 2, 2, 4, 4],
        "key": pa.array([b"a", b"b", b"a", None, b"b", b"c"], pa.binary()),
    }
)


def latest(discarded: list[int], first_dirty_offset: int) -> dict[bytes, int]:
    """Each key with its last dirty offset."""
    found = dirty_keys(ROWS, discarded, first_dirty_offset)
    return dict(zip(found["key"].to_pylist(), found["offset"].to_pylist(), strict=True))


def test_each_key_is_known_by_its_last_dirty_record() -> None:
    assert latest([], 0) == {b"a": 2, b"b": 4, b"c": 5}


def test_what_lies_before_the_first_dirty_offset_supersedes_nothing() -> None:
    assert latest([], 3) == {b"b": 4, b"c": 5}


def test_aborted_data_supersedes_nothing() -> None:
    assert latest([4], 0) == {b"a": 2, b"b": 1}
