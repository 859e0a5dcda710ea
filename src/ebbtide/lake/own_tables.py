"""ebbtide's own tables as Airflow's side reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ebbtide.errors import HoldError, MissingPageError, PlanError, UnknownTopicError
from ebbtide.lake.reader import Lake, chosen, files_of, of_a_store
from ebbtide.ledger.certificates import CERTIFICATES, CertificateRow
from ebbtide.ledger.holds import HOLDS, Hold, newest_events
from ebbtide.ledger.own_tables import ATTEMPT_COLUMNS, ERASURES, NAMES, RUNS, Attempt, name_of
from ebbtide.ledger.plans import Plan, PlanEvent, PlanStep, Standing, standing_of
from ebbtide.ledger.undo_points import UNDO_POINTS, UndoPoint, can_be_undone, points_to_undo
from ebbtide.moments import after, before

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import FileScanTask, Table

_KEY = ["topic", "name", "partition"]
_OF_OPEN = ("topic", *NAMES, "partition", "status", "requested_at", "out_of_table_at")


@dataclass(slots=True)
class OpenErasures:
    """The number of keys that are being erased, by topic. Cached per snapshot of the table."""

    snapshot: tuple[str, int | None] | None = None
    by_topic: Mapping[str, int] = field(default_factory=dict)

    def read_on(self, lake: Lake, since: datetime) -> Mapping[str, int]:
        """Return the numbers by topic, for requests at or after `since`."""
        with of_a_store(".".join(ERASURES.place)):
            table = lake.own_table(ERASURES)
            if table is None:
                return {}
            snapshot = str(table.metadata.table_uuid), table.metadata.current_snapshot_id
            if snapshot != self.snapshot:
                known = set(table.schema().column_names)
                fields = tuple(name for name in _OF_OPEN if name in known)
                requested = chosen(ERASURES.day, since, {})
                rows = table.scan(row_filter=requested, selected_fields=fields).to_arrow()
                self.by_topic, self.snapshot = _open(rows), snapshot
        return self.by_topic


def _open(rows: Any) -> Mapping[str, int]:
    """Count by topic the keys of which a partition's newest row has no `out_of_table_at`.

    Of a request's two rows, `logged` is older than `reported`, and sorts before it.
    """
    import pyarrow.compute as pc

    rows = rows.filter(pc.is_valid(rows["partition"]))
    names = [rows[name] for name in NAMES if name in rows.column_names]
    rows = rows.append_column("name", pc.coalesce(*names))
    rows = rows.sort_by([("requested_at", "ascending"), ("status", "ascending")])
    rows = rows.append_column("is_open", pc.is_null(rows["out_of_table_at"]))
    newest = rows.group_by(_KEY, use_threads=False).aggregate([("is_open", "last")])
    still_open = newest.filter(newest["is_open_last"]).select(["topic", "name"])
    keys = still_open.group_by(["topic", "name"]).aggregate([])
    return Counter(keys["topic"].to_pylist())


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedErasure:
    """A request to erase keys of a topic: the sums of its newest rows, and its certificates."""

    run_id: str
    topic: str
    requested_at: datetime
    requested_by: str
    reason: str
    keys: int
    not_found: int
    found: int
    left: int | None  # at the end of the run; None: it has not ended
    out_of_table_at: datetime | None
    off_disk_from: datetime | None
    tombstones: Mapping[int, int]  # the last offset by partition; empty without any
    certificates: Sequence[CertificateRow]  # newest first, without envelopes


_OF_REQUEST = (
    *("run_id", "topic", "status", "requested_at", "requested_by", "reason"),
    *(*NAMES, "partition", "found", "left", "out_of_table_at", "off_disk_from"),
    "tombstone_offset",
)
_OF_CERTIFICATE = ("envelope", "public_key")


def requested_erasures(
    lake: Lake, since: datetime | None, topic: str | None = None
) -> list[RequestedErasure]:
    """Return the requests of erase_keys at or after `since`, newest first."""
    of_topic: dict[str, Any] = {} if topic is None else {"topic": topic}
    requests: dict[tuple[str, str], dict[tuple[str, int | None], Mapping[str, Any]]] = {}
    cells = lake.own_cells(ERASURES, _OF_REQUEST, since, **of_topic)
    for row in sorted(cells, key=lambda row: (row["requested_at"], row["status"])):
        of_run = requests.setdefault((row["run_id"], row["topic"]), {})
        of_run[name_of(row), row["partition"]] = row
    certificates: dict[tuple[str | None, str], list[CertificateRow]] = {}
    for certificate in certificates_of(lake, since, topic):
        certificates.setdefault((certificate.erasure, certificate.topic), []).append(certificate)
    erasures = [
        _request(list(rows.values()), certificates.get(place, ()))
        for place, rows in requests.items()
    ]
    return sorted(erasures, key=lambda erasure: erasure.requested_at, reverse=True)


def _request(
    rows: Sequence[Mapping[str, Any]], certificates: Sequence[CertificateRow]
) -> RequestedErasure:
    first = rows[0]
    found = [row for row in rows if row["partition"] is not None]
    keys, with_records = (set(map(name_of, some)) for some in (rows, found))
    return RequestedErasure(
        **{name: first[name] for name in _OF_REQUEST[:6] if name != "status"},
        keys=len(keys),
        not_found=len(keys - with_records),
        found=sum(row["found"] or 0 for row in found),
        left=sum(row["left"] for row in found) if _all(found, "left") else None,
        out_of_table_at=_latest(found, "out_of_table_at"),
        off_disk_from=_latest(found, "off_disk_from"),
        tombstones=_last_tombstones(found),
        certificates=certificates,
    )


def _last_tombstones(rows: Sequence[Mapping[str, Any]]) -> Mapping[int, int]:
    last: dict[int, int] = {}
    for row in rows:
        if row["tombstone_offset"] is not None:
            partition = row["partition"]
            last[partition] = max(last.get(partition, -1), row["tombstone_offset"])
    return last


def _all(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return all(row[column] is not None for row in rows)


def _latest(rows: Sequence[Mapping[str, Any]], column: str) -> datetime | None:
    """Return the latest time of a column, or None if a row has none."""
    return max(row[column] for row in rows) if rows and _all(rows, column) else None


def certificates_of(
    lake: Lake, since: datetime | None = None, topic: str | None = None
) -> list[CertificateRow]:
    """Return the certificates of erasures without their envelopes, newest first."""
    of_topic: dict[str, Any] = {} if topic is None else {"topic": topic}
    rows = lake.own_rows(CERTIFICATES, since, without=_OF_CERTIFICATE, **of_topic)
    return sorted(rows, key=lambda row: row.number, reverse=True)


def find_certificate(lake: Lake, certificate: str) -> CertificateRow:
    """Return the certificate with this id. Raise MissingPageError if there is none."""
    for row in lake.own_rows(CERTIFICATES, certificate=certificate):
        return row
    raise MissingPageError(
        f"expected a certificate in lake.ebbtide.certificates, found none with the id {certificate}"
    )


@dataclass(frozen=True, slots=True)
class HoldStanding:
    """A hold after its newest event."""

    hold: Hold
    made_at: datetime
    stands: bool  # False once it has ended
    is_to_be_reviewed: bool
    kept_records: int = 0  # the copies made for it so far


def read_holds(
    lake: Lake, now: datetime, topic: str | None = None, *, with_ended: bool = False
) -> list[HoldStanding]:
    """Return the holds on a topic, or on all topics, oldest first.

    Copied records are counted from manifests, and only if `topic` names one. Raise HoldError if a
    row cannot be read.
    """
    events = [HOLDS.to_row(cells) for cells in _cells(lake, topic)]
    kept = Counter[str]() if topic is None or not events else kept_records(lake, topic)
    standings = _standings(events, kept, now)
    return [standing for standing in standings if with_ended or standing.stands]


class AllHolds(NamedTuple):
    """The open holds on all topics, and an error for each topic whose holds cannot be read."""

    standings: list[HoldStanding]
    problems: dict[str, HoldError]


def read_all_holds(lake: Lake, now: datetime) -> AllHolds:
    """Return the open holds on all topics. A row that cannot be read affects only its topic."""
    events: dict[str, list[Hold]] = {}
    problems: dict[str, HoldError] = {}
    for cells in _cells(lake, None):
        topic = str(cells.get("topic"))
        try:
            events.setdefault(topic, []).append(HOLDS.to_row(cells))
        except HoldError as error:
            problems.setdefault(topic, error)
    of_readable = (hold for topic in sorted(events.keys() - problems) for hold in events[topic])
    standings = _standings(list(of_readable), Counter(), now)
    return AllHolds([standing for standing in standings if standing.stands], problems)


def _cells(lake: Lake, topic: str | None) -> Iterable[Mapping[str, Any]]:
    of_topic: dict[str, Any] = {} if topic is None else {"topic": topic}
    return lake.own_cells(HOLDS, HOLDS.types, **of_topic)


def _standings(
    events: Sequence[Hold], kept: Mapping[str, int], now: datetime
) -> list[HoldStanding]:
    made_at: dict[tuple[str, str], datetime] = {}
    for event in sorted(events, key=lambda event: event.at):
        made_at.setdefault((event.topic, event.hold_id), event.at)
    return [
        HoldStanding(
            hold,
            made_at[hold.topic, hold.hold_id],
            hold.stands_at(now),
            hold.stands_at(now) and hold.is_to_be_reviewed(now),
            kept.get(hold.hold_id, 0),
        )
        for hold in newest_events(events)
    ]


def kept_records(lake: Lake, topic: str) -> Counter[str]:
    """Count the records of a topic that were copied for each hold, from manifests alone."""
    kept = Counter[str]()
    try:
        table = lake.held(topic)
    except UnknownTopicError:
        return kept
    for file in files_of(table):
        kept[file.partition[0]] += file.record_count
    return kept


def review_warnings(standings: Iterable[HoldStanding]) -> list[str]:
    """Return a sentence for each hold whose review date has passed."""
    due = [standing for standing in standings if standing.is_to_be_reviewed]
    return [f"{standing.hold.topic}: {standing.hold.review_warning}" for standing in due]


FILES_AT_ONCE = 8


@dataclass(slots=True)
class RunLog:
    """The files of `runs` that were read already.

    Compaction of the table rewrites rows into new files, so `read_on` can yield the same row twice.
    """

    table_id: str = ""  # the UUID of the table
    snapshot_id: int | None = None  # the newest snapshot that was read
    files: set[str] = field(default_factory=set)

    def is_of(self, table: Table | None) -> bool:
        """Return whether the files are of this table, and not of one that was dropped since."""
        return self.table_id == ("" if table is None else str(table.metadata.table_uuid))

    def read_on(self, table: Table, since: datetime) -> Iterator[Attempt]:
        """Yield the rows of new files that started at or after `since`, newest file last."""
        self.table_id = str(table.metadata.table_uuid)
        snapshot_id = table.metadata.current_snapshot_id
        if snapshot_id == self.snapshot_id:
            return
        with of_a_store(".".join(RUNS.place)):
            planned = list(table.scan(row_filter=chosen(RUNS.day, since, {})).plan_files())
            fresh = [task for task in planned if task.file.file_path not in self.files]
            for rows in _read(table, fresh):
                yield from map(RUNS.to_row, rows.to_pylist())
        # Only now, so that the next call reads the files again if this one failed.
        self.files = {task.file.file_path for task in planned}
        self.snapshot_id = snapshot_id


def _read(table: Table, tasks: Iterable[FileScanTask]) -> Iterator[pa.Table]:
    """Yield each file's rows without results. pyiceberg's own scan takes five times as long."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        yield from pool.map(lambda task: _rows_of(table, task), tasks)


def _rows_of(table: Table, task: FileScanTask) -> Any:
    import pyarrow.parquet as pq

    if task.delete_files:
        return _rows_without_deleted(table, task)
    with table.io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as file:
        names = [name for name in ATTEMPT_COLUMNS if name in file.schema_arrow.names]
        return file.read(columns=names)


def _rows_without_deleted(table: Table, task: FileScanTask) -> Any:
    """Read a file that has deleted rows."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema()
    names = [name for name in ATTEMPT_COLUMNS if name in schema.column_names]
    scan = ArrowScan(table.metadata, table.io, schema.select(*names), AlwaysTrue())
    return scan.to_table([task])


@dataclass(frozen=True, slots=True)
class UndoableRun:
    """A run that removed records from a topic and can be undone.

    Only a plan shows whether its snapshots still exist and whether an erased key would return.
    """

    run_id: str
    at: datetime
    until: datetime  # it can be undone until then
    jobs: tuple[str, ...]
    partitions: tuple[int, ...]  # in which it can be undone
    later_runs: tuple[str, ...]  # undone together with it, newest first


def undoable_runs(lake: Lake, topic: str, clock: datetime) -> list[UndoableRun]:
    """Return the runs of a topic that can be undone at `clock`, newest first."""
    undo_ms = lake.topic(topic).config.undo_retention_ms
    points = lake.own_rows(UNDO_POINTS, before(clock, undo_ms), topic=topic)
    run_ids = dict.fromkeys(point.run_id for point in reversed(points) if point.states)
    runs = (_undoable(points, run_id, undo_ms) for run_id in run_ids)
    return [run for run in runs if run is not None]


def _undoable(points: Sequence[UndoPoint], run_id: str, undo_ms: int) -> UndoableRun | None:
    """Return a run as undoable, or None if no partition can be undone."""
    going = {
        p: partition_points
        for p, partition_points in points_to_undo(points, run_id).items()
        if can_be_undone(partition_points)
    }
    if not going:
        return None
    together = {point for partition_points in going.values() for point in partition_points}
    own = sorted((p for p in together if p.run_id == run_id), key=lambda point: point.at)
    later = sorted(together - set(own), key=lambda point: point.at, reverse=True)
    return UndoableRun(
        run_id=run_id,
        at=own[0].at,
        until=after(own[0].at, undo_ms),
        jobs=tuple(dict.fromkeys(point.job for point in own)),
        partitions=tuple(sorted(going)),
        later_runs=tuple(dict.fromkeys(point.run_id for point in later)),
    )


ERASE_KEYS = "erase_keys"  # its plans store no keys, so only the run that planned can execute them
PLANS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingPlan:
    """A plan, without its offsets, and its status."""

    plan: Plan
    standing: Standing
    events: Sequence[PlanEvent]  # oldest first
    newer: str | None = None  # a later plan of the same run that replaces it

    @property
    def waits(self) -> bool:
        """True if the plan can be executed."""
        return self.standing in (Standing.OPEN, Standing.APPROVED)

    @property
    def may_be_asked_for(self) -> bool:
        """True if approve_plan can execute the plan."""
        return self.waits and self.newer is None and self.plan.job != ERASE_KEYS

    @property
    def answer(self) -> PlanEvent | None:
        """The last approval or rejection of the plan."""
        answers = [e for e in self.events if e.event in (PlanStep.APPROVED, PlanStep.REJECTED)]
        return answers[-1] if answers else None


def standing_plans(
    lake: Lake, plans: Sequence[Plan], clock: datetime, since: datetime | None = None
) -> list[StandingPlan]:
    """Return each plan with its status at `clock`. All plans were made at or after `since`."""
    ids = [plan.plan_id for plan in plans]
    events: dict[str, list[PlanEvent]] = {plan_id: [] for plan_id in ids}
    for event in lake.plan_events(since, plan_id=ids) if ids else ():
        events[event.plan_id].append(event)
    by_age = sorted(plans, key=lambda plan: plan.made_at)
    newest = {_place(plan): plan.plan_id for plan in by_age}
    return [
        StandingPlan(
            plan=plan,
            standing=standing_of(plan, events[plan.plan_id], clock),
            events=events[plan.plan_id],
            newer=None if (last := newest[_place(plan)]) == plan.plan_id else last,
        )
        for plan in plans
    ]


def find_plan(lake: Lake, plan_id: str, clock: datetime) -> StandingPlan:
    """Return the plan with this id. Raise PlanError if there is none."""
    plans = lake.plans(plan_id=plan_id)
    if not plans:
        raise PlanError(
            f"expected a plan in lake.ebbtide.plans, found none with the id {plan_id}. The log of "
            "the task that makes a plan shows its id"
        )
    return standing_plans(lake, plans, clock)[0]


def open_plans(lake: Lake, clock: datetime, span: timedelta) -> list[Plan]:
    """Return the plans of the last `span` that approve_plan can execute, newest first."""
    since = clock - span
    plans = [plan for plan in lake.plans(since) if clock < plan.expires_at]
    standing = standing_plans(lake, plans, clock, since)
    return [plan.plan for plan in reversed(standing) if plan.may_be_asked_for]


def plans_of_run(
    lake: Lake, run_id: str, dag: str | None, named: Sequence[str], clock: datetime
) -> list[StandingPlan]:
    """Return the first plans that a run has made, and the plans that were `named` in its conf."""
    plans = [p for p in lake.plans(run_id=run_id) if dag is None or p.dag in (dag, None)]
    if named:
        plans += lake.plans(plan_id=list(named))
    return standing_plans(lake, plans, clock)[:PLANS_SHOWN]


def _place(plan: Plan) -> tuple[str, str, str]:
    """Return the run, job and topic of a plan. A retry makes another plan for them."""
    return plan.run_id, plan.job, plan.topic
