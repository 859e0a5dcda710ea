"""Changes that a round makes to batch rows, as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.log.batch_header import Batch
from ebbtide.records.arrays import Bools

# In a removed row, the columns after `is_removed` have no meaning.
CHANGES = pa.schema(
    [
        ("base_offset", pa.int64()),
        ("is_removed", pa.bool_()),
        ("max_event_time_ms", pa.int64()),
        ("last_offset", pa.int64()),
        ("magic", pa.int32()),
        ("attributes", pa.int32()),
        ("base_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("record_count", pa.int32()),
        ("size_bytes", pa.int32()),
        ("header_base_offset", pa.int64()),
        ("producer_timestamp_ms", pa.int64()),
    ]
)
# The columns of a batch that a round may change, beside its event time; its CRC goes.
CHANGED = tuple(CHANGES.names[3:])
_SEGMENT = pa.schema([("partition", pa.int32()), ("segment", pa.int64())])


def changes_of(changes: Sequence[tuple[Batch, Batch | None, int]]) -> pa.Table:
    """Return batches' changes, (before, after or None, max event time in ms), as CHANGES."""
    left = [after or before for before, after, _ in changes]
    return pa.table(
        {
            "base_offset": [before.base_offset for before, _, _ in changes],
            "is_removed": [after is None for _, after, _ in changes],
            "max_event_time_ms": [newest for _, _, newest in changes],
            **{name: [getattr(batch, name) for batch in left] for name in CHANGED},
        },
        schema=CHANGES,
    )


def in_segment(partition: int, segment: int, changes: pa.Table) -> pa.Table:
    """Return the changes with the `partition` and `segment` of their rows."""
    places = [partition] * changes.num_rows, [segment] * changes.num_rows
    columns = [pa.array(of, field.type) for of, field in zip(places, _SEGMENT, strict=True)]
    return pa.table([*columns, *changes.columns], names=[*_SEGMENT.names, *CHANGES.names])


def no_changes() -> pa.Table:
    """Return an empty table of changes."""
    return in_segment(0, 0, CHANGES.empty_table())


def with_changes(rows: pa.Table, is_changed: Bools, changes: pa.Table) -> pa.Table:
    """Return the rows with their changes, in the same order; `changes` removes none of them."""
    mask = pa.array(is_changed)
    for name in (*CHANGED, "max_event_time_ms"):
        changed = changes[name].combine_chunks().cast(rows[name].type)
        column = pc.replace_with_mask(rows[name], mask, changed)
        rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), column)
    return rows


def after_changes(rows: pa.Table, changes: pa.Table) -> pa.Table:
    """Return the rows that `changes` leaves, changed; both are in offset order."""
    bases = rows["base_offset"].to_numpy()
    removes = changes["is_removed"].to_numpy()
    removed = changes["base_offset"].to_numpy()[removes]
    stays = ~np.isin(bases, removed)
    changes = changes.filter(pa.array(~removes & np.isin(changes["base_offset"], bases)))
    rows, bases = rows.filter(pa.array(stays)), bases[stays]
    return with_changes(rows.combine_chunks(), np.isin(bases, changes["base_offset"]), changes)
