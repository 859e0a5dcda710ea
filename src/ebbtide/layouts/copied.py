"""How far the rows of a table that others write have been copied to a topic, and in what slices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ebbtide.kafka.live_offsets import Range
from ebbtide.layouts.layout import Layout
from ebbtide.numbers import MAX_INT, parse_whole, whole
from ebbtide.state.topic_state import COPIED, parse_property

# A slice ends with one of so many parts of what it may hold at most.
PARTS_OF_SLICE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTable:
    """A topic's source: Iceberg's id of the table, its layout, and how far its rows are here.

    All rows up to the snapshot `seen` are. While a run copies those up to `until`, `ends` are the
    log end offsets from before.
    """

    table_id: str
    layout: Layout
    seen: int | None = None
    until: int | None = None
    ends: Mapping[int, int] = field(default_factory=dict)

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
        """Return a topic's source; None where it is not copied from a table."""
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
    """How many rows of one partition lie in neighbouring offsets, and the offset after the last."""

    rows: int
    end_offset: int


def slices_of(
    rows: Mapping[int, Sequence[RowsOfOffsets]], starts: Mapping[int, int], most: int
) -> Iterator[dict[int, Range]]:
    """Yield the ranges of each slice: about `most` rows, shared among the partitions left.

    `rows` has each partition's in order. A part of it is taken as a whole, so a slice may hold a
    part more than that.
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
    """Take parts off, at least one; return how many rows they have, and the offset after them."""
    first = parts.pop(0)
    count, end = first
    while parts and count + parts[0].rows <= most:
        more = parts.pop(0)
        count, end = count + more.rows, more.end_offset
    return count, end
