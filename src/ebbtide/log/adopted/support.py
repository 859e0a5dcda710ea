"""Which of Kafka's rules hold for an adopted table: exactly, nearly, or not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from ebbtide.log.adopted.layout import Layout


class OnAdopted(StrEnum):
    """What a job does on a topic whose table others write."""

    WORKS = "works"
    PASSES_BY = "passes by"  # a job of the night: it says so in its row
    REFUSES = "refuses"


class JobOnAdopted(NamedTuple):
    """What a job does on an adopted topic, and why; docs/adopt.md has the same table."""

    does: OnAdopted
    why: str


_WORKS, _REFUSES = OnAdopted.WORKS, OnAdopted.REFUSES
JOBS: Mapping[str, JobOnAdopted] = {
    "adopt_table": JobOnAdopted(_WORKS, "again, to change the layout or settings"),
    "abandon_table": JobOnAdopted(_WORKS, "unless a hold stands"),
    "clean_log": JobOnAdopted(_WORKS, "looks at what has arrived, and compacts"),
    "expire_segments": JobOnAdopted(_WORKS, "looks at what has arrived; segments or single rows"),
    "delete_records": JobOnAdopted(_WORKS, "by offset, time, age or consumer groups"),
    "configure_topic": JobOnAdopted(_WORKS, "settings are properties of the table"),
    "hold_records": JobOnAdopted(_WORKS, "what ebbtide removes is copied before"),
    "undo_run": JobOnAdopted(_WORKS, "as long as the table's snapshots are there"),
    "expire_snapshots": JobOnAdopted(_WORKS, "frees kept records alone; snapshots are the owner's"),
    "mark_tombstones": JobOnAdopted(
        OnAdopted.PASSES_BY, "the table's own columns tell which rows are tombstones"
    ),
    "erase_keys": JobOnAdopted(
        _WORKS, "rows leave, and the files that held them; older snapshots are the owner's"
    ),
    "repair_state": JobOnAdopted(
        _REFUSES, "run abandon_table, then adopt_table, which reads the state from the table"
    ),
    "export_segments": JobOnAdopted(
        _REFUSES, "the table has no batches, and its columns need not be what the broker wrote"
    ),
    "replicate_log": JobOnAdopted(_REFUSES, "a replica has batches, which the table has not"),
    "ingest_segments": JobOnAdopted(_REFUSES, "others write the table"),
    "ingest_topic": JobOnAdopted(_REFUSES, "others write the table"),
    "ingest_table": JobOnAdopted(
        _REFUSES, "others write the table; a topic of its own takes a copy"
    ),
}


def works_on_adopted(job: str) -> bool:
    """Return whether a job works on topics whose tables others write."""
    return JOBS[job].does is OnAdopted.WORKS


class Exactness(StrEnum):
    """How a rule holds."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    REFUSED = "refused"


class Rule(NamedTuple):
    """A rule, how it holds, and why so."""

    name: str
    exactness: Exactness
    reason: str


def rules_of(layout: Layout) -> Iterator[Rule]:
    """Yield each rule as it holds for a table of this layout."""
    yield _supersede(layout)
    yield _tombstones(layout)
    yield Rule(
        "segments",
        Exactness.APPROXIMATE,
        "they are cut where a night found the log end, and bytes are mean bytes of a row",
    )
    yield Rule("transactions", Exactness.EXACT, "such writers deliver committed records only")
    yield Rule(
        "retention by size, time and event time",
        Exactness.APPROXIMATE,
        "by these segments, and a record's timestamp stands for the time of its append",
    )
    yield Rule("DeleteRecords", Exactness.EXACT, "up to the log end, which the request looks up")
    yield Rule("single records past the event-time limit", Exactness.EXACT, "by their timestamps")


def _supersede(layout: Layout) -> Rule:
    name = "supersede by key"
    if layout.key is None:
        return Rule(name, Exactness.REFUSED, "the table has no key column; name one")
    if not layout.has_tombstones:
        return Rule(
            name,
            Exactness.APPROXIMATE,
            "records without a value are not in the table: deleted keys keep their last row",
        )
    return Rule(name, Exactness.EXACT, "the newest record of each key stays")


def _tombstones(layout: Layout) -> Rule:
    name = "tombstones and delete horizons"
    if layout.key is None or not layout.has_tombstones:
        return Rule(name, Exactness.REFUSED, "no column tells a tombstone; name one")
    return Rule(
        name,
        Exactness.EXACT,
        "late rows are told by appends; where their snapshots are expired, tombstones stay longer",
    )
