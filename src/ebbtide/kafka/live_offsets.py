"""The offsets of a live topic to copy, from the broker's offsets and the table's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from ebbtide.errors import ForeignLogError
from ebbtide.kafka.continuation import check_not_appended, check_not_lost
from ebbtide.numbers import MAX_INT, parse_whole, whole
from ebbtide.state.topic_state import NEVER, SLICE, PartitionState, parse_property

# Offsets in a slice. About 50 bytes per offset pass through the driver.
MAX_OFFSETS = 1_000_000


class Isolation(StrEnum):
    """A consumer's isolation level."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class BrokerOffsets(NamedTuple):
    """A partition's offsets on its leader."""

    log_start_offset: int
    high_watermark: int
    readable_end: int  # the last stable offset with read_committed, else the high watermark


class Range(NamedTuple):
    """Offsets of one partition, [start, end)."""

    start: int
    end: int

    @property
    def offsets(self) -> int:
        """Number of offsets; some may have no record."""
        return self.end - self.start


Ranges = Mapping[int, Range]


def range_to_take(
    where: str, state: PartitionState | None, offered: BrokerOffsets, *, accepts_gap: bool
) -> Range:
    """Return the offsets that the table lacks.

    Raise ForeignLogError if the broker's log ends before the table's. Raise OffsetGapError if it
    starts after the table's end, unless the request accepts that.
    """
    if state is None:
        return Range(offered.log_start_offset, max(offered.log_start_offset, offered.readable_end))
    held = state.log_end_offset
    if state.first_appended_offset != NEVER:
        check_not_appended(where, state.first_appended_offset, offered.high_watermark)
        return Range(held, held)
    if offered.high_watermark < held:
        raise ForeignLogError(
            f"expected {where} to reach offset {held}, the table's log end offset, found its end "
            f"at {offered.high_watermark}: the log was truncated, or is another one. Ingest it "
            "under another cluster name, or drop the topic's tables and ingest it again"
        )
    check_not_lost(where, held, offered.log_start_offset, is_accepted=accepts_gap)
    start = max(held, offered.log_start_offset)
    return Range(start, max(start, offered.readable_end))


def next_slice(left: Ranges, held: Mapping[int, int], most: int) -> dict[int, Range]:
    """Return each partition's next range above the offsets in the table, about `most` in all.

    A range may be empty. It records a partition that has no record yet, or has none any more.
    """
    waiting = {p: offsets for p, offsets in left.items() if held.get(p, -1) < offsets.end}
    share = max(1, most // max(1, len(waiting)))
    return {p: Range(start, min(end, start + share)) for p, (start, end) in waiting.items()}


def rest(left: Ranges, taken: Ranges) -> dict[int, Range]:
    """Return the ranges that are left after a slice."""
    return {
        partition: Range(taken[partition].end, offsets.end) if partition in taken else offsets
        for partition, offsets in left.items()
    }


class Slice(NamedTuple):
    """A slice of a topic's source: the offsets copied together, and the run that copies them.

    The slice in the state is its run's claim. If another run replaces it, this run can no longer
    change the state.
    """

    ranges: dict[int, Range]
    now: datetime
    id: str = ""  # "" in slices of older versions
    run_id: str = ""
    since: datetime | None = None  # by the machine clock

    def to_property(self) -> str:
        """Format the slice as the state's property."""
        ranges = {str(partition): list(offsets) for partition, offsets in self.ranges.items()}
        values: dict[str, Any] = {"now": self.now.isoformat(), "ranges": ranges}
        if self.since is not None:
            values |= {"id": self.id, "run_id": self.run_id, "since": self.since.isoformat()}
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, name: str = SLICE) -> Self:
        """Read the slice from the property. Raise ConfigurationError if the text is not a slice."""
        return parse_property(name, text, "a slice's clock and ranges", cls._built)

    @classmethod
    def _built(cls, values: Any) -> Self:
        ranges = {
            parse_whole(partition, MAX_INT): Range(*map(whole, ends))
            for partition, ends in values["ranges"].items()
        }
        now = datetime.fromisoformat(values["now"])
        if "id" not in values:
            return cls(ranges, now)
        by = str(values["id"]), str(values["run_id"])
        return cls(ranges, now, *by, datetime.fromisoformat(values["since"]))

    def continues(self, states: Mapping[int, PartitionState]) -> bool:
        """Return whether the slice begins at the table's end: no other ingest has run since."""
        return all(
            states[partition].log_end_offset <= offsets.start
            for partition, offsets in self.ranges.items()
            if partition in states
        )
