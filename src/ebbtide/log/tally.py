"""How many live rows a data table has where, as ebbtide left it: what others add or take shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.log.properties import parse_property
from ebbtide.records.json_text import MAX_INT, parse_whole, whole

# Live rows by (partition, physical segment); none where there are none.
Rows = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Tally:
    """Live rows as of a snapshot; `snapshot` is None for a table that has none yet.

    `sequence_number` is that of the snapshot: a later commit has a larger one.
    """

    snapshot: int | None
    sequence_number: int
    rows: Rows

    def to_json(self) -> str:
        """The value of its property."""
        of_partitions: dict[int, list[list[int]]] = {}
        for (partition, segment), count in sorted(self.rows.items()):
            of_partitions.setdefault(partition, []).append([segment, count])
        values = {"snapshot": self.snapshot, "sequence": self.sequence_number}
        return json.dumps(values | {"rows": of_partitions}, separators=(",", ":"))

    @classmethod
    def parse(cls, name: str, text: str) -> Tally:
        """The tally that the property `name` holds; ConfigurationError where it is malformed."""
        return parse_property(name, text, "a count of rows by partition and segment", cls._built)

    @classmethod
    def _built(cls, values: Any) -> Tally:
        snapshot = values["snapshot"]
        rows = {
            (parse_whole(partition, MAX_INT), whole(segment)): whole(count)
            for partition, of_segments in values["rows"].items()
            for segment, count in of_segments
        }
        return cls(None if snapshot is None else whole(snapshot), whole(values["sequence"]), rows)


EMPTY = Tally(None, 0, {})


def added(rows: Rows, *changes: Rows) -> Rows:
    """The rows after changes to them, which may be negative."""
    total = Counter(dict(rows))
    for change in changes:
        total.update(change)
    return {place: count for place, count in total.items() if count}


def differences(told: Rows, found: Rows) -> dict[tuple[int, int], int]:
    """How many more rows were found than told, by place; negative for fewer."""
    places = {*told, *found}
    both = {place: found.get(place, 0) - told.get(place, 0) for place in sorted(places)}
    return {place: count for place, count in both.items() if count}
