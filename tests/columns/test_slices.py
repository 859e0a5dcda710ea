"""Tables cut into slices of equal values."""

from __future__ import annotations

import pyarrow as pa

from ebbtide.columns.slices import slices_by_value


def test_each_slice_has_its_rows_in_their_order() -> None:
    one = pa.table({"path": ["b", "b"], "row": [0, 1]})
    more = pa.table({"path": ["b", "a", "c"], "row": [2, 3, 4]})
    rows = pa.concat_tables([one, more])
    found = [(value, of["row"].to_pylist()) for value, of in slices_by_value(rows, "path")]
    assert found == [("b", [0, 1, 2]), ("a", [3]), ("c", [4])]


def test_numbers_are_cut_as_well_and_no_rows_are_no_slice() -> None:
    rows = pa.table({"partition": [1, 1, 0]})
    assert [(value, of.num_rows) for value, of in slices_by_value(rows, "partition")] == [
        (1, 2),
        (0, 1),
    ]
    assert list(slices_by_value(rows.slice(0, 0), "partition")) == []
