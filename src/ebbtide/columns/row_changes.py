"""Changes that a round makes to batch rows, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

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
_PLACE = pa.schema([("partition", pa.int32()), ("segment", pa.int64())])

Place = tuple[int, int]  # partition and segment


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


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes to rows of a batches table, in any of its segments.

    A round may remove millions of rows and has the driver hold all of it, so that of these only the
    base offsets are kept.
    """

    removed: Mapping[Place, BitMap64]
    changed: pa.Table  # CHANGES, behind the `partition` and `segment` of their rows

    @classmethod
    def of(cls, partition: int, segment: int, changes: pa.Table) -> RowChanges:
        """Return the changes of a segment's rows, given as CHANGES."""
        is_removed = changes["is_removed"]
        removed = BitMap64(changes.filter(is_removed)["base_offset"].to_numpy())
        changed = changes.filter(pc.invert(is_removed))
        places = [partition] * changed.num_rows, [segment] * changed.num_rows
        columns = [pa.array(of, field.type) for of, field in zip(places, _PLACE, strict=True)]
        return cls(
            {(partition, segment): removed} if removed else {},
            pa.table([*columns, *changed.columns], names=[*_PLACE.names, *CHANGES.names]),
        )

    @classmethod
    def together(cls, parts: Iterable[RowChanges]) -> RowChanges:
        """Return all of the changes; no two are of the same row."""
        removed, changed = dict[Place, BitMap64](), [_NOTHING.changed]
        for part in parts:
            for place, bases in part.removed.items():
                removed[place] = removed[place] | bases if place in removed else bases
            changed.append(part.changed)
        return cls(removed, pa.concat_tables(changed).combine_chunks())

    @property
    def count(self) -> int:
        """How many rows change or go."""
        return int(self.changed.num_rows) + sum(map(len, self.removed.values()))

    def without(self, base_offsets: BitMap64) -> RowChanges:
        """Return the changes of other rows than these; all are of one partition."""
        removed = {place: bases - base_offsets for place, bases in self.removed.items()}
        changed_bases = self.changed["base_offset"].to_numpy()
        stays = ~np.isin(changed_bases, np.array(list(base_offsets), np.int64))
        return RowChanges(
            {place: bases for place, bases in removed.items() if bases},
            self.changed.filter(pa.array(stays)),
        )

    def base_offsets(self) -> BitMap64:
        """Return the rows that change or go; all are of one partition."""
        return BitMap64.union(
            BitMap64(self.changed["base_offset"].to_numpy()), *self.removed.values()
        )


_NOTHING = RowChanges.of(0, 0, CHANGES.empty_table())


def no_changes() -> RowChanges:
    """Return changes of no row."""
    return _NOTHING


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
