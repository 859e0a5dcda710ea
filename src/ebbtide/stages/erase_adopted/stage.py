"""erase_keys on an adopted table: the rows of keys leave, and the files that hold them with them.

Nobody but the writer gives offsets, so no tombstone is logged. Order: what arrived and the keys'
rows are noted, then one commit writes the files anew without them, then the report. A killed run is
run again, and says what it had found before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyroaring import BitMap64

from ebbtide.errors import HoldError, RequestError
from ebbtide.iceberg.adopted.leaving_files import files_of
from ebbtide.iceberg.adopted.rewritten_files import prepare_rewrite
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import java_table, open_table
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.erasures_table import (
    LOGGED,
    REPORTED,
    KeyRow,
    append_erasures,
    hash_of,
    logged_before,
)
from ebbtide.iceberg.topics import Topic, compare_and_set
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.plans.summary import LeavingRows, PartitionSummary, RuleNumbers, partition_summary
from ebbtide.log.requests.erase_request import Erasure, Way
from ebbtide.runs.held.keeping import holds_on_keys
from ebbtide.runs.held.sources import check_has_key_bytes
from ebbtide.runs.proposals import Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.erase_adopted.found import FoundKeys, find_keys
from ebbtide.stages.erase_keys.plan import ERASED, keys_of
from ebbtide.stages.table_layout import AdoptedTable, ObservedLog, counted_less

# What an erasure from a table of others cannot promise.
LEFT = (
    "no data file of the newest snapshot holds their rows any more; older snapshots, branches and "
    "tags do until the table's owner expires them, and delete files of other writers may name a key"
)


@dataclass(frozen=True, slots=True)
class AdoptedErasePlan:
    """The rows that an adopted table holds of the keys, and what an earlier try has found."""

    topic: Topic
    erasure: Erasure
    keys: tuple[bytes, ...]
    look: ObservedLog | None
    found: FoundKeys
    logged: Mapping[tuple[int, str], KeyRow] = field(default_factory=dict)

    @property
    def rows(self) -> dict[tuple[int, str], KeyRow]:
        """A row for each key and partition, also those of an earlier try."""
        rows = {
            (partition, hash_of(key)): KeyRow(hash_of(key), partition, count, Way.DELETED)
            for (partition, key), count in self.found.counts.items()
        }
        return rows | dict(self.logged)

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome, rows = JobOutcome(), self.rows
        for partition in self.topic.partitions:
            mine = [row for row in rows.values() if row.partition == partition]
            outcome.partitions[partition] = self.topic.offsets_of(partition) | {
                "keys": len(mine),
                "found": sum(row.found for row in mine),
                "tombstones": 0,
            }
        known = {of_key for _, of_key in rows}
        outcome.topic = {
            "keys": len(self.keys),
            "not_found": sum(hash_of(key) not in known for key in self.keys),
            "way": Way.DELETED,
            "requested_by": self.erasure.requested_by,
            "reason": self.erasure.reason,
        }
        return outcome

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the keys' rows."""
        return {p: BitMap64(offsets) for p, offsets in self.found.live.offsets.items()}

    def touches(self) -> Touched:
        """Return the keys' partitions: no run before an erasure is undone."""
        snapshot = None if self.look is None else self.look.snapshot
        return Touched(set(self.found.live.offsets), records_snapshot=snapshot)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return each partition's log end offset."""
        states = self.topic.partitions
        return {p: {"log_end_offset": state.log_end_offset} for p, state in states.items()}

    def summary(self) -> dict[int, PartitionSummary]:
        """Return how many rows leave."""
        return {
            partition: partition_summary(
                LeavingRows(records=records), {ERASED: RuleNumbers(records=records)}
            )
            for partition, records in self.found.live.rows.items()
        }


def plan_erase_adopted(
    topic: Topic, erasure: Erasure, bounds: Bounds | None = None
) -> AdoptedErasePlan:
    """Find the keys' rows, those of a kept plan's bounds if any; RequestError for other ways.

    HoldError where a hold is on one of the keys or on rows of them.
    """
    if erasure.appends or erasure.connection:
        raise RequestError(
            f"expected neither `append` nor a connection for {topic.name}, whose table others "
            "write, found one: rows are deleted there; produce a tombstone to the live topic "
            "yourself, if that is to forget the key too"
        )
    check_has_key_bytes(topic)
    keys, rows = keys_of(topic.spark, erasure), AdoptedRows.of(topic)
    if holds := holds_on_keys(topic, [hash_of(key) for key in keys]):
        raise HoldError(
            f"expected keys of {topic.name} that nothing holds, found rows of them under "
            f"{', '.join(map(str, holds))}; nothing was erased: leave these keys out, or end the "
            "hold with hold_records first"
        )
    look = AdoptedTable(topic).observe(erasure.now_ms)
    if look is None or look.snapshot is None:
        return AdoptedErasePlan(topic, erasure, keys, None, FoundKeys())
    ends = {p: state.log_end_offset for p, state in look.states.items()}
    if bounds is not None:
        ends = {p: min(ends.get(p, 0), of["log_end_offset"]) for p, of in bounds.items()}
    found = find_keys(rows, look.snapshot, keys, ends)
    logged = logged_before(topic.spark, topic.name, erasure.run_id)
    return AdoptedErasePlan(look.observed, erasure, keys, look, found, logged)


def execute_erase_adopted(plan: AdoptedErasePlan) -> JobOutcome:
    """Note the keys, write their files anew without them, and report."""
    topic, found, outcome = plan.topic, plan.found, plan.outcome()
    if plan.look is None or plan.look.snapshot is None:
        return outcome
    topic = plan.look.write_down()
    new = [row for place, row in plan.rows.items() if place not in plan.logged]
    append_erasures(topic.spark, topic.name, plan.erasure, LOGGED, new)
    if found.live.positions or found.files_of_dead:
        snapshot = _without(plan, plan.look.snapshot)
        outcome.snapshot_ids.append(snapshot)
        outcome.rows_removed = found.live.rows.total()
        compare_and_set(topic, Step.ROWS_COUNTED, partial(counted_less, found.live))
    return _reported(plan, outcome)


def _without(plan: AdoptedErasePlan, snapshot: int) -> int:
    """Commit the table without the keys' rows; return the snapshot."""
    topic, found = plan.topic, plan.found
    loaded = java_table(topic.spark, topic.name.records_table)
    positions = {path: BitMap64() for path in found.files_of_dead} | found.live.positions
    files = files_of(topic.spark, loaded, snapshot, positions)
    properties = {ROWS: str(found.live.rows.total()), TOPIC: str(topic.name)}
    prepared = prepare_rewrite(topic.spark, loaded, snapshot, files, properties)
    return commit(Step.ERASE_RECORDS, prepared)


def _reported(plan: AdoptedErasePlan, outcome: JobOutcome) -> JobOutcome:
    """Report each key: its rows are out of the table; when off the disk, only its owner knows."""
    topic = plan.topic
    made = open_table(topic.spark, topic.name.records_table).current
    assert made is not None
    reported = [
        row._replace(superseded=row.found, left=0, out_of_table_at=made.at_ms)
        for row in plan.rows.values()
    ]
    known = {row.key_sha256 for row in reported}
    missing = [KeyRow(of) for of in map(hash_of, plan.keys) if of not in known]
    append_erasures(topic.spark, topic.name, plan.erasure, REPORTED, [*reported, *missing])
    gone = Counter[int]()
    for row in reported:
        assert row.partition is not None
        gone[row.partition] += row.found
    for partition, numbers in outcome.partitions.items():
        numbers |= _numbers(gone[partition], made.at_ms)
    outcome.topic |= _numbers(gone.total(), made.at_ms) | {"note": _in_words(plan, gone.total())}
    return outcome


def _numbers(rows: int, at_ms: int) -> dict[str, Any]:
    return {
        "superseded": rows,
        "left": 0,
        "last_horizon_ms": None,
        "out_of_table_ms": at_ms if rows else None,
        "off_disk_from_ms": None,
    }


def _in_words(plan: AdoptedErasePlan, rows: int) -> str:
    numbers = plan.outcome().topic
    return (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; {rows} rows have left "
        f"the table: {LEFT}. Key by key: lake.ebbtide.erasures"
    )
