"""Count the live rows that ebbtide left in each data table: a difference is a foreign change.

Each table (`records`, `batches`) has one property that names the snapshot at which it was counted.
Each partition has one more with the rows of its physical segments.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ebbtide.log.state.properties import parse_property
from ebbtide.log.state.topic_state import ROWS_PREFIX, SEEN_PREFIX
from ebbtide.numbers import MAX_INT, parse_whole, whole

# Live rows by (partition, physical segment); none where there are none.
RowsBySegment = Mapping[tuple[int, int], int]


class Seen(NamedTuple):
    """The snapshot that rows were counted at, None before there is one.

    `sequence_number` is that of the table's newest commit then; every later commit has a larger.
    """

    snapshot: int | None = None
    sequence_number: int = 0


NOTHING_SEEN = Seen()


def seen_of(properties: Mapping[str, str], what: str) -> Seen | None:
    """Return when a table's rows were last counted; None in a state of an older version."""
    name = SEEN_PREFIX + what
    if name not in properties:
        return None
    return parse_property(name, properties[name], "a snapshot and its sequence number", _seen)


def seen_property(what: str, seen: Seen) -> dict[str, str]:
    """Return the property for `seen_of`."""
    return {SEEN_PREFIX + what: json.dumps([seen.snapshot, seen.sequence_number])}


def _seen(values: Any) -> Seen:
    snapshot, sequence_number = values
    return Seen(None if snapshot is None else whole(snapshot), whole(sequence_number))


def told_rows(
    properties: Mapping[str, str], what: str, partitions: Iterable[int] | None = None
) -> RowsBySegment:
    """Return the rows of a table that the state records, or those of some of its partitions."""
    if partitions is None:
        prefix = _name(what, "")
        names = [name for name in properties if name.startswith(prefix)]
    else:
        names = [name for p in partitions if (name := _name(what, p)) in properties]
    rows = {}
    for name in names:
        partition = parse_whole(name.rpartition(".")[2], MAX_INT)
        expected = "pairs of a segment and its rows"
        for segment, count in parse_property(name, properties[name], expected, _pairs):
            rows[partition, segment] = count
    return rows


def rows_properties(
    what: str, rows: RowsBySegment, partitions: Iterable[int]
) -> dict[str, str | None]:
    """Return the properties of these partitions for `told_rows`; None for one without rows."""
    of_partitions: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    for (partition, segment), count in sorted(rows.items()):
        of_partitions[partition].append((segment, count))
    return {
        _name(what, partition): json.dumps(pairs, separators=(",", ":")) if pairs else None
        for partition, pairs in of_partitions.items()
    }


def _name(what: str, partition: int | str) -> str:
    return f"{ROWS_PREFIX}{what}.{partition}"


def _pairs(values: Any) -> list[tuple[int, int]]:
    return [(whole(segment), whole(count)) for segment, count in values]


def partitions_of(*rows: RowsBySegment) -> set[int]:
    """Return the partitions that any of these have rows in."""
    return {partition for of in rows for partition, _ in of}


def added(rows: RowsBySegment, *changes: RowsBySegment) -> RowsBySegment:
    """Return the rows after changes to them, which may be negative."""
    total = Counter(dict(rows))
    for change in changes:
        total.update(change)
    return {place: count for place, count in total.items() if count}


def differences(told: RowsBySegment, held: RowsBySegment) -> dict[tuple[int, int], int]:
    """Return how many more rows were found than recorded, by place; negative for fewer."""
    both = {p: held.get(p, 0) - told.get(p, 0) for p in sorted({*told, *held})}
    return {place: count for place, count in both.items() if count}
