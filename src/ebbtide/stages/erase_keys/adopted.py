"""erase_keys on an adopted table: the rows of keys leave, and the files that hold them with them.

Nobody but the writer gives offsets, so no tombstone is logged. Order: what arrived and the keys'
rows are noted, then one commit writes the files anew without them, then the report. A killed run is
run again, and says what it had found before.
"""

from __future__ import annotations

from functools import partial

from pyroaring import BitMap64

from ebbtide.errors import RequestError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures_table import append_erasures, logged_before
from ebbtide.iceberg.topics import Topic, compare_and_set
from ebbtide.log.erasures import LOGGED
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.requests.erase_request import Erasure, Way
from ebbtide.runs.held.sources import check_has_key_bytes
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.erase_keys.adopted_rows import erase_rows, find_rows
from ebbtide.stages.erase_keys.held_keys import HeldKey
from ebbtide.stages.erase_keys.plan import ErasePlan, check_not_held, keys_of
from ebbtide.stages.erase_keys.report import report_rows
from ebbtide.stages.planned_rows import PlannedRows
from ebbtide.stages.table_layout import AdoptedTable, counted_less

# What an erasure from a table of others cannot promise.
LEFT = (
    "no data file of the newest snapshot holds their rows any more; older snapshots, branches and "
    "tags do until the table's owner expires them, and delete files of other writers may name a key"
)


def plan_erase_adopted(topic: Topic, erasure: Erasure, bounds: Bounds | None = None) -> ErasePlan:
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
    check_not_held(topic, keys, "rows")
    log = AdoptedTable(topic).observe(erasure.now_ms)
    if log is None or log.snapshot is None:
        return ErasePlan(topic, erasure, Way.DELETED, keys, {})
    ends = {p: state.log_end_offset for p, state in log.states.items()}
    if bounds is not None:
        ends = {p: min(ends.get(p, 0), of["log_end_offset"]) for p, of in bounds.items()}
    found = find_rows(rows, log, keys, ends)
    return ErasePlan(
        log.observed,
        erasure,
        Way.DELETED,
        keys,
        {place: HeldKey(count, None) for place, count in found.counts.items()},
        logged_before(topic.spark, topic.name, erasure.run_id),
        {p: PlannedRows(BitMap64(offsets)) for p, offsets in found.live.offsets.items()},
        adopted=found,
    )


def execute_erase_adopted(plan: ErasePlan) -> JobOutcome:
    """Note the keys, write their files anew without them, and report."""
    found, outcome = plan.adopted, plan.outcome()
    if found is None:
        return outcome
    topic = found.log.write_down()
    new = [row for place, row in plan.rows.items() if place not in plan.logged]
    append_erasures(topic.spark, topic.name, plan.erasure, LOGGED, new)
    if found.live.positions or found.files_of_dead:
        outcome.snapshot_ids.append(erase_rows(topic, found))
        outcome.rows_removed = found.live.rows.total()
        compare_and_set(topic, Step.ROWS_COUNTED, partial(counted_less, found.live))
    # Its rows are out of the table; when they are off the disk, only its owner knows.
    made = open_table(topic.spark, topic.name.records_table).current
    assert made is not None
    reported = [
        row._replace(superseded=row.found, left=0, out_of_table_at=made.at_ms)
        for row in plan.rows.values()
    ]
    report_rows(plan, outcome, reported)
    numbers = outcome.topic
    outcome.topic["note"] = (
        f"{numbers['keys']} keys, {numbers['not_found']} of them not found; "
        f"{numbers['superseded']} rows have left the table: {LEFT}. Key by key: "
        "lake.ebbtide.erasures"
    )
    return outcome
