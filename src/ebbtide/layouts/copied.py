"""A topic that is copied from a table: how far it is copied, and the slices of the next copy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ebbtide.kafka.live_offsets import Range
from ebbtide.layouts.layout import Layout
from ebbtide.numbers import MAX_INT, parse_whole, whole
from ebbtide.state.topic_state import COPIED, parse_property

# Rows are counted in parts of this fraction of a slice; a slice ends with a part.
PARTS_OF_SLICE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTable:
    """A topic's source: the table's id, its layout, and the snapshot up to which it is copied."""

    table_id: str
    layout: Layout
    seen: int | None = None  # all rows up to this snapshot are copied
    until: int | None = None  # a run is copying rows up to this snapshot
    ends: Mapping[int, int] = field(default_factory=dict)  # log end offsets before that run

    def to_property(self) -> str:
        """Return the value of the property `ebbtide.copied`."""
        values: dict[str, Any] = {"table_id": self.table_id, "layout": self.layout.to_values()}
        numbers = {"seen": self.seen, "until": self.until}
        values |= {name: number for name, number in numbers.items() if number is not None}
        if self.ends:
            values["ends"] = {str(partition): end for partition, end in self.ends.items()}
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> CopiedTable | None:
        """Return a topic's source, or None if it is not copied from a table."""
        text = properties.get(COPIED)
        return None if text is None else parse_property(COPIED, text, "a copied table", cls._built)

    @classmethod
    def _built(cls, values: Any) -> CopiedTable:
        return cls(
            table_id=str(values["table_id"]),
            layout=Layout.of_values(values["layout"]),
            seen=whole(values["seen"]) if "seen" in values else None,
            until=whole(values["until"]) if "until" in values else None,
            ends={
                parse_whole(partition, MAX_INT): whole(end)
                for partition, end in values.get("ends", {}).items()
            },
        )


class RowsOfOffsets(NamedTuple):
    """The number of rows in a range of offsets, and the offset after the range."""

    rows: int
    end_offset: int


def slices_of(
    rows: Mapping[int, Sequence[RowsOfOffsets]], starts: Mapping[int, int], most: int
) -> Iterator[dict[int, Range]]:
    """Yield one dict of ranges per slice, of about `most` rows in all.

    Partitions that still have rows share a slice evenly. `rows` has the parts of each partition in
    order. A part is not split, so a slice may exceed `most` by one part.
    """
    waiting = {partition: list(parts) for partition, parts in rows.items() if parts}
    at = dict(starts)
    while waiting:
        share, taken, in_all = max(1, most // len(waiting)), dict[int, Range](), 0
        for partition in list(waiting):
            if in_all >= most:
                break
            count, end = _next_of(waiting[partition], share)
            taken[partition] = Range(at[partition], end)
            at[partition] = end
            in_all += count
            if not waiting[partition]:
                del waiting[partition]
        yield taken


def _next_of(parts: list[RowsOfOffsets], most: int) -> tuple[int, int]:
    """Remove parts from the list, at least one; return their number of rows and end offset."""
    first = parts.pop(0)
    count, end = first
    while parts and count + parts[0].rows <= most:
        more = parts.pop(0)
        count, end = count + more.rows, more.end_offset
    return count, end
