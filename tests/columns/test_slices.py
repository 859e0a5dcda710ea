"""Tables cut into slices of equal values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebbtide.columns.headers import is_ascending, slices_by_value, sorted_by


def test_each_slice_has_its_rows_in_their_order() -> None:
    one = pa.table({"path": ["b", "b"], "row": [0, 1]})
    more = pa.table({"path": ["b", "a", "c"], "row": [2, 3, 4]})
    rows = pa.concat_tables([one, more])
    slices = [(value, part["row"].to_pylist()) for value, part in slices_by_value(rows, "path")]
    assert slices == [("b", [0, 1, 2]), ("a", [3]), ("c", [4])]


def test_numbers_are_cut_as_well_and_no_rows_are_no_slice() -> None:
    rows = pa.table({"partition": [1, 1, 0]})
    assert [(value, part.num_rows) for value, part in slices_by_value(rows, "partition")] == [
        (1, 2),
        (0, 1),
    ]
    assert list(slices_by_value(rows.slice(0, 0), "partition")) == []


@pytest.mark.parametrize(
    ("places", "is_sorted"),
    [
        ([], True),
        ([(1, 5)], True),
        ([(0, 5), (0, 6), (1, 0), (1, 9)], True),
        ([(0, 5), (1, 6), (0, 7)], False),
        ([(0, 5), (1, 6), (1, 6)], False),
        ([(0, 6), (0, 5), (1, 7)], False),
        ([(0, 5), (0, None), (1, 7)], False),
    ],
)
def test_rows_that_ascend_are_left_as_they_are(
    places: list[tuple[int, int | None]], is_sorted: bool
) -> None:
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    rows = pa.Table.from_pylist(
        [dict(zip(schema.names, place, strict=True)) for place in places], schema
    )
    assert is_ascending(rows, schema.names) is is_sorted
    in_order = sorted_by(rows, schema.names)
    assert (in_order is rows) is is_sorted
    assert in_order == rows.sort_by([(name, "ascending") for name in schema.names])
