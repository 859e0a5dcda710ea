"""Ids that rows keep when their file is rewritten, so that readers can follow a row's changes.

Format: Iceberg table spec, row lineage. Where a file holds no ids, a row's id follows from its
position, and its last change from the commit that added the file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.iceberg.files.field_ids import field_of
from ebbtide.iceberg.metadata import TableColumn

_ROW_ID = TableColumn("_row_id", 2147483540)
_LAST_UPDATED = TableColumn("_last_updated_sequence_number", 2147483539)
LINEAGE = (_ROW_ID, _LAST_UPDATED)


class Lineage(NamedTuple):
    """The ids that a file's rows inherit where it holds none of its own."""

    first_row_id: int | None  # None in a file from before the table's format knew ids
    sequence_number: int


def with_lineage(
    rows: pa.Table, positions: npt.NDArray[np.int64], lineage: Lineage | None
) -> pa.Table:
    """Return the rows at these positions of their file with the two columns of LINEAGE."""
    if lineage is None or lineage.first_row_id is None:
        return rows
    inherited = {
        _ROW_ID: pa.array(lineage.first_row_id + positions),
        _LAST_UPDATED: pa.array(np.full(len(positions), lineage.sequence_number, np.int64)),
    }
    for column, values in inherited.items():
        at = rows.schema.get_field_index(column.name)
        if at < 0:
            rows = rows.append_column(field_of(column, pa.int64()), values)
        else:
            row_ids = pc.coalesce(rows.column(at), values)
            rows = rows.set_column(at, field_of(column, pa.int64()), row_ids)
    return rows
