"""What Kafka's compaction leaves of records, told in plain Python (KIP-534)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.writers.producing import Produced


class Night(NamedTuple):
    """A night's clock, and the offset up to which it has compacted each partition."""

    now_ms: int
    ends: Mapping[int, int]


def fold(
    records: Iterable[Produced], nights: Sequence[Night], delete_retention_ms: int
) -> list[Produced]:
    """The records that live after these nights, by partition and offset."""
    live = {(record.partition, record.offset): record for record in sorted(records)}
    horizons: dict[tuple[int, int], int] = {}
    for night in nights:
        covered = [
            produced
            for produced in live.values()
            if produced.offset < night.ends.get(produced.partition, 0)
        ]
        newest = {(record.partition, record.key): record.offset for record in covered}
        for record in covered:
            place = (record.partition, record.offset)
            is_newest = newest[record.partition, record.key] == record.offset
            is_due = record.number is None and horizons.get(place, math.inf) <= night.now_ms
            if record.key is None or not is_newest or is_due:
                del live[place]
            elif record.number is None:
                horizons.setdefault(place, night.now_ms + delete_retention_ms)
    return list(live.values())
