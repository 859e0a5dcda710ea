"""Kafka's rules on an adopted table: exact, approximate or refused, and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from ebbtide.layouts.layout import Layout


class Exactness(StrEnum):
    """The exactness of a rule on an adopted table."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    REFUSED = "refused"


class AdoptedRule(NamedTuple):
    """A rule, how far it holds, and the reason."""

    name: str
    exactness: Exactness
    reason: str


def rules_of(layout: Layout) -> Iterator[AdoptedRule]:
    """Yield each rule, and how far it holds for a table of this layout."""
    yield _supersede(layout)
    yield _tombstones(layout)
    yield AdoptedRule(
        "segments",
        Exactness.APPROXIMATE,
        "a nightly run begins a segment at the log end, and bytes are estimated from the mean row",
    )
    yield AdoptedRule(
        "transactions", Exactness.EXACT, "the table's writer delivers only committed records"
    )
    yield AdoptedRule(
        "retention by size, time and event time",
        Exactness.APPROXIMATE,
        "by the approximate segments; a record's timestamp counts as its append time",
    )
    yield AdoptedRule(
        "DeleteRecords", Exactness.EXACT, "up to the log end, which the request reads"
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
            "the table lacks records without a value: the last row of a deleted key is retained",
        )
    return AdoptedRule(name, Exactness.EXACT, "the newest record of each key is retained")


def _tombstones(layout: Layout) -> AdoptedRule:
    name = "tombstones and delete horizons"
    if layout.key is None or not layout.has_tombstones:
        return AdoptedRule(name, Exactness.REFUSED, "no column marks a tombstone; name one")
    return AdoptedRule(
        name,
        Exactness.EXACT,
        "late rows are detected by their snapshots; if these are expired, tombstones are retained "
        "longer",
    )
