"""Which of Kafka's rules hold for an adopted table: exactly, nearly, or not, and why."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from ebbtide.layouts.layout import Layout


class Exactness(StrEnum):
    """How a rule holds."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    REFUSED = "refused"


class AdoptedRule(NamedTuple):
    """A rule, how it holds, and why so."""

    name: str
    exactness: Exactness
    reason: str


def rules_of(layout: Layout) -> Iterator[AdoptedRule]:
    """Yield each rule as it holds for a table of this layout."""
    yield _supersede(layout)
    yield _tombstones(layout)
    yield AdoptedRule(
        "segments",
        Exactness.APPROXIMATE,
        "they are cut where a night found the log end, and bytes are mean bytes of a row",
    )
    yield AdoptedRule(
        "transactions", Exactness.EXACT, "such writers deliver committed records only"
    )
    yield AdoptedRule(
        "retention by size, time and event time",
        Exactness.APPROXIMATE,
        "by these segments, and a record's timestamp stands for the time of its append",
    )
    yield AdoptedRule(
        "DeleteRecords", Exactness.EXACT, "up to the log end, which the request looks up"
    )
    yield AdoptedRule(
        "single records past the event-time limit", Exactness.EXACT, "by their timestamps"
    )


def _supersede(layout: Layout) -> AdoptedRule:
    name = "supersede by key"
    if layout.key is None:
        return AdoptedRule(name, Exactness.REFUSED, "the table has no key column; name one")
    if not layout.has_tombstones:
        return AdoptedRule(
            name,
            Exactness.APPROXIMATE,
            "records without a value are not in the table: deleted keys keep their last row",
        )
    return AdoptedRule(name, Exactness.EXACT, "the newest record of each key stays")


def _tombstones(layout: Layout) -> AdoptedRule:
    name = "tombstones and delete horizons"
    if layout.key is None or not layout.has_tombstones:
        return AdoptedRule(name, Exactness.REFUSED, "no column tells a tombstone; name one")
    return AdoptedRule(
        name,
        Exactness.EXACT,
        "late rows are told by appends; where their snapshots are expired, tombstones stay longer",
    )
