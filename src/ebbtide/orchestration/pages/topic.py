"""A topic's page: partitions, delete horizons, trends, holds, settings, runs and queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from ebbtide.errors import EbbtideError
from ebbtide.kafka.low_watermarks import is_behind
from ebbtide.lake.own_tables import HoldStanding, read_holds
from ebbtide.lake.reader import Lake, LakeTopic, PartitionContents, read_replica, summarize_contents
from ebbtide.lake.runs import count_removals, low_watermarks
from ebbtide.layouts.layout import LAYOUT, Layout
from ebbtide.layouts.recognition import EXPLICIT, profile_named
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.topic_summary import TopicSummary
from ebbtide.ledger.undo_points import UNDO_POINTS
from ebbtide.moments import to_datetime, to_ms
from ebbtide.orchestration.deletions import HISTORY, newest_deletion
from ebbtide.orchestration.erasures import late_replicas, overdue_erasures
from ebbtide.orchestration.pages.charts import Chart, Point, bar, chart
from ebbtide.orchestration.pages.holds import held_offsets
from ebbtide.orchestration.report import notes_of_partitions
from ebbtide.settings.config import SETTINGS, default_text
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.settings_changes import EFFECTS
from ebbtide.specs.support import AdoptedRule, rules_of
from ebbtide.state.covered_offsets import in_words
from ebbtide.state.topic_state import DEFAULT_MAX_SNAPSHOT_AGE_MS, MAX_SNAPSHOT_AGE, PartitionState
from ebbtide.text import number, size


class Query(NamedTuple):
    """A SQL statement for an engine, and the records that it reads."""

    engine: str
    reads: str
    sql: str


def queries(name: str, metadata_location: str, *, is_adopted: bool) -> list[Query]:
    """Return SQL statements for each engine. DuckDB reads the table by its newest metadata file.

    An adopted table has no views.
    """
    topic = TopicName.parse(name)
    if is_adopted:
        raw = "all live rows"
        raw += "" if topic.in_table is None else ", of all topics in the table"
        of_spark = {topic.records_table: raw}
    else:
        raw = "all records of the log, including aborted transactions"
        of_spark = {
            topic.latest_view: "the latest value of each key",
            topic.committed_view: "the records that a read_committed consumer reads",
        }
    in_trino = f"{topic.catalog}.{_quoted(topic.cluster)}.{_quoted(topic.table)}"
    scan = f"INSTALL iceberg; LOAD iceberg;\nSELECT * FROM {_iceberg_scan(metadata_location)}"
    return [
        *(
            Query("Spark", what, f"SELECT * FROM {table} LIMIT 20")
            for table, what in of_spark.items()
        ),
        Query("DuckDB", raw, f"{scan} LIMIT 20"),
        Query("Trino", raw, f"SELECT * FROM {in_trino} LIMIT 20"),
    ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _iceberg_scan(metadata_location: str) -> str:
    path = metadata_location.removeprefix("file:").replace("'", "''")
    options = ", metadata_compression_codec => 'gzip'" if ".gz." in path else ""
    return f"iceberg_scan('{path}'{options})"


_SNAPSHOT_AGE = "How long a snapshot, with the removed records that it shows, stays on the disk."


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting of a topic, as the page's table shows it."""

    name: str
    value: str | None  # None if it is not set, so that the default applies
    default: str
    effect: str
    broker: str | None = None  # the brokers' value, if it differs


def setting_names() -> list[str]:
    """Return the names of all settings."""
    return [*SETTINGS, MAX_SNAPSHOT_AGE]


def default_of(name: str) -> str:
    """Return a setting's default as text."""
    if name == MAX_SNAPSHOT_AGE:
        return str(DEFAULT_MAX_SNAPSHOT_AGE_MS)
    return default_text(SETTINGS[name].field)


def setting_rows(topic: LakeTopic, runs: Sequence[Run]) -> list[SettingRow]:
    """Return all settings. Settings that are set or differ from the brokers' come first."""
    drift = newest_drift(runs)
    rows = [
        SettingRow(
            name=name,
            value=topic.properties.get(name),
            default=default_of(name),
            effect=EFFECTS.get(name, _SNAPSHOT_AGE),
            broker=drift.get(name),
        )
        for name in setting_names()
    ]
    return sorted(rows, key=lambda row: row.value is None and row.broker is None)


def newest_drift(runs: Iterable[Run]) -> Mapping[str, str]:
    """Return the brokers' values of settings that differed at the newest ingest that compared."""
    compared = [run.topic_result["drift"] for run in runs if "drift" in run.topic_result]
    return {setting["name"]: setting["broker"] for setting in compared[-1]} if compared else {}


HOUR_MS = 3_600_000


def trends(runs: Sequence[Run]) -> list[Chart]:
    """Return the charts that these runs, oldest first, have at least two values for."""
    removed = [Point(_ms(run), run.rows_removed) for run in runs if run.rows_removed]
    charts = [
        chart("Size of the files", "bytes", _points(runs, lambda s, _: s.file_bytes), size),
        chart("Records", "records", _points(runs, lambda s, _: s.records), number),
        chart("Records removed per run", "records", removed, number, has_columns=True),
        chart("Horizon overdue", "hours", _points(runs, _horizon_age), lambda v: f"{v:,} h"),
        chart("Dirty share", "percent", _points(runs, _dirty), lambda v: f"{v} %"),
    ]
    return [made for made in charts if made is not None]


def _dirty(summary: TopicSummary, _now_ms: int) -> float | None:
    return None if summary.dirty_share is None else round(100 * summary.dirty_share, 1)


def _horizon_age(summary: TopicSummary, now_ms: int) -> float | None:
    """Return for how many hours the next horizon had been due at the run's `now`, or 0."""
    horizon = summary.next_horizon_ms
    return None if horizon is None else round(max(now_ms - horizon, 0) / HOUR_MS, 1)


def _points(runs: Sequence[Run], value: Callable[[TopicSummary, int], float | None]) -> list[Point]:
    """Return a point for each run whose summary has the value."""
    points = []
    for run in runs:
        now_ms = int(run.now.timestamp() * 1000)
        if run.summary is not None and (of_run := value(run.summary, now_ms)) is not None:
            points.append(Point(_ms(run), of_run))
    return points


def _ms(run: Run) -> int:
    return int(run.ended.timestamp() * 1000)


class Adopted(NamedTuple):
    """An adopted table: its layout, how exactly each of Kafka's rules applies, its settings."""

    layout: str  # as the end of a sentence
    rules: Sequence[AdoptedRule]
    settings: str  # one NAME=VALUE per line, as the form of adopt_table takes them


def adopted(topic: LakeTopic) -> Adopted | None:
    """Return an adopted table's layout, rules and settings, or None for an own topic."""
    if not topic.is_adopted:
        return None
    settings = "\n".join(f"{n}={v}" for n, v in topic.properties.items() if n in SETTINGS)
    try:
        layout = Layout.parse(topic.properties[LAYOUT])
        profile, rules = profile_named(layout.profile), list(rules_of(layout))
    except EbbtideError:  # damaged: the next job reports it
        return Adopted("a layout that this version does not know", (), "")
    is_named = profile.name == EXPLICIT
    whose = "columns that were named by hand" if is_named else f"the layout of {profile.writer}"
    return Adopted(whose, rules, settings)


def refuses(topic: LakeTopic | None, dag: str) -> bool:
    """Return whether a DAG refuses this topic because it is adopted."""
    if topic is None or not topic.is_adopted or dag not in SPECS:
        return False
    return not SPECS[dag].works_on_adopted


def possible(topic: LakeTopic, dags: Iterable[str]) -> list[str]:
    """Return the DAGs that do not refuse a topic."""
    return [dag for dag in dags if not refuses(topic, dag)]


PARTITIONS_A_PAGE = 50
RUNS_SHOWN = 20
DAYS = 14  # days in the table of due horizons
NOTES_SHOWN = 10
# The jobs whose notes on partitions say why records are not removed yet.
HOLDING_BACK = ("clean_log", "expire_segments")
# The forms that a topic's page links to, and the text of each link.
FORMS: Mapping[str, str] = {
    "delete_records": "Delete records",
    "configure_topic": "Change settings",
    "erase_keys": "Erase keys",
    "hold_records": "Hold records",
}


class ReplicaRow(NamedTuple):
    """A replica of the topic, as the page shows it."""

    name: str
    topic: LakeTopic | None  # None if this side cannot read it
    is_behind: bool | None  # None if this side cannot read it


class DueHorizon(NamedTuple):
    """A time from which a round removes tombstones or markers, and its partitions."""

    at_ms: int
    partitions: Sequence[int]


def topic_page(lake: Lake, name: str, page: int) -> dict[str, Any]:
    """Return the values of a topic's page; `page` selects the partitions that are shown."""
    topic, clock = lake.topic(name), datetime.now(UTC)
    runs = lake.runs(clock - HISTORY, topic=name)
    contents = lake.contents(name)
    replicas = [
        _replica(topic, str(replica), read_replica(topic, replica))
        for replica in topic.config.replicas
    ]
    settings = setting_rows(topic, runs)
    holds = read_holds(lake, clock, name)
    points = lake.own_rows(UNDO_POINTS, clock - HISTORY, topic=name)
    deletion = newest_deletion(topic, runs, clock, points)
    pages = max(-(-len(topic.partitions) // PARTITIONS_A_PAGE), 1)
    page = min(max(page, 1), pages)
    horizons, forms = due_horizons(topic.partitions), possible(topic, FORMS)
    missing = [
        in_words(state.missing, partition)
        for partition, state in topic.partitions.items()
        if state.missing
    ]
    return {
        "topic": topic,
        "summary": summarize_contents(topic.config, topic.partitions, contents),
        "partitions": _partitions(topic, contents, replicas, holds, runs, page),
        "page": page,
        "pages": pages,
        "late_erasures": _late_erasures(topic, runs, clock),
        "late_replicas": [
            late._replace(text=_sentence(late.text)) for late in late_replicas(topic, to_ms(clock))
        ],
        "horizons": horizons,
        "days": due_days(horizons, clock.date()),
        "deletion": deletion.in_words()
        if deletion
        else f"No records were removed in the last {HISTORY.days} days.",
        "held_back": held_back(runs),
        "missing": [_sentence(text) for text in missing[:NOTES_SHOWN]],
        "charts": trends(runs),
        "removals": count_removals(runs).most_common(),
        "settings": settings,
        "has_drift": any(row.broker is not None for row in settings),
        "runs": runs[: -RUNS_SHOWN - 1 : -1],
        "replicas": replicas,
        "holds": holds,
        "queries": queries(name, lake.records(name).metadata_location, is_adopted=topic.is_adopted),
        "adopted": adopted(topic),
        "forms": {dag: FORMS[dag] for dag in forms},
        "can_configure": "configure_topic" in forms,
        "is_compacted": topic.config.is_compacted,
    }


def _late_erasures(topic: LakeTopic, runs: Sequence[Run], clock: datetime) -> str | None:
    """Return a sentence about deletes that are not off the disk by their deadline, or None."""
    now_ms = to_ms(clock)
    overdue = overdue_erasures(topic, now_ms)
    if overdue is None:
        return None
    return _sentence(overdue.in_words(runs, now_ms))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def held_back(runs: Sequence[Run]) -> list[str]:
    """Return why records are not removed yet, by the newest clean_log and expire_segments.

    Each reason is one sentence with its partitions.
    """
    newest = {run.job: run for run in runs if run.succeeded and run.job in HOLDING_BACK}
    lines = [
        f"{where.capitalize()}: {note}."
        for job in HOLDING_BACK
        if job in newest
        for where, note in notes_of_partitions(newest[job])
    ]
    return lines[:NOTES_SHOWN]


def due_horizons(states: Mapping[int, PartitionState]) -> list[DueHorizon]:
    """Return the partitions' next horizons by minute, soonest first."""
    by_minute: dict[int, DueHorizon] = {}
    for partition, state in states.items():
        if (at_ms := state.next_horizon_ms) is not None:
            due = by_minute.get(at_ms // 60_000, DueHorizon(at_ms, ()))
            by_minute[at_ms // 60_000] = DueHorizon(
                max(at_ms, due.at_ms), (*due.partitions, partition)
            )
    return [due for _, due in sorted(by_minute.items())]


def due_days(horizons: Sequence[DueHorizon], today: date) -> list[tuple[date, int]]:
    """Count the partitions due on each of the next `DAYS` days. Today includes overdue ones."""
    counts: Counter[date] = Counter()
    for due in horizons:
        counts[max(to_datetime(due.at_ms).date(), today)] += len(due.partitions)
    days = (today + timedelta(days=number) for number in range(DAYS))
    return [(day, counts[day]) for day in days]


def _partitions(
    topic: LakeTopic,
    contents: Mapping[int, PartitionContents],
    replicas: Sequence[ReplicaRow],
    holds: Sequence[HoldStanding],
    runs: Sequence[Run],
    page: int,
) -> list[dict[str, Any]]:
    """Return the rows of one page. A low watermark is None until a job has asked the replicas."""
    watermarks, is_compacted = low_watermarks(runs), topic.config.is_compacted
    start = (page - 1) * PARTITIONS_A_PAGE
    return [
        {
            "partition": partition,
            "state": state,
            "contents": contents.get(partition, PartitionContents()),
            "low_watermark": watermarks.get(
                partition, None if topic.has_replicas else state.log_start_offset
            ),
            "waits_for_round": is_compacted and state.next_clean_ms == 0,
            "bar": bar(
                state,
                _starts(replicas, partition),
                _held(holds, partition, state),
                is_compacted=is_compacted,
            ),
        }
        for partition, state in list(topic.partitions.items())[start : start + PARTITIONS_A_PAGE]
    ]


def _held(
    holds: Sequence[HoldStanding], partition: int, state: PartitionState
) -> list[tuple[int, int, str]]:
    """Return the held ranges of a partition's log: first offset, end offset and label."""
    first = min(state.log_start_offset, state.first_segment)
    ranges = held_offsets(holds, partition, first, state.log_end_offset)
    return [(a, b, f"{hold} from {number(a)} to {number(b)}") for hold, a, b in ranges]


def _starts(replicas: Sequence[ReplicaRow], partition: int) -> dict[str, int]:
    return {
        replica.name: replica.topic.partitions[partition].log_start_offset
        for replica in replicas
        if replica.topic is not None and partition in replica.topic.partitions
    }


def _replica(topic: LakeTopic, name: str, replica: LakeTopic | None) -> ReplicaRow:
    behind = None if replica is None else is_behind(topic.properties, replica.properties)
    return ReplicaRow(name, replica, behind)
