"""Metrics and notices of a finished run, from its rows and from the lake's state."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from ebbtide.errors import ConfigurationError, EbbtideError, SafetyError
from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK
from ebbtide.kafka.reasons import Reason
from ebbtide.lake.own_tables import (
    AllHolds,
    HoldStanding,
    kept_records,
    read_all_holds,
    standing_plans,
)
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.lake.runs import count_removals, newest
from ebbtide.ledger.holds import Hold, pause_of, that_keep
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.plans import Standing
from ebbtide.moments import before
from ebbtide.orchestration.approval import removes_something
from ebbtide.orchestration.deletions import HISTORY, NIGHTLY
from ebbtide.orchestration.erasures import overdue_erasures
from ebbtide.orchestration.night import LowWatermark, nothing_to_do
from ebbtide.orchestration.outcome import cause_of
from ebbtide.settings.names import TopicName
from ebbtide.state.covered_offsets import count_missing
from ebbtide.state.deadline import erase_by_ms

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier

PREFIX = "ebbtide."
SECONDS_SINCE_LAST_SUCCESS = f"{PREFIX}seconds_since_last_success"
LAST_SUCCESS = f"{PREFIX}last_success_timestamp_seconds"
RECORDS_REMOVED = f"{PREFIX}records_removed"
NIGHT_RECORDS_REMOVED = f"{PREFIX}night_records_removed"
BYTES_REMOVED = f"{PREFIX}bytes_removed"
BYTES_FREED = f"{PREFIX}bytes_freed"
DIRTY_RATIO = f"{PREFIX}dirty_ratio"
HORIZON_OVERDUE = f"{PREFIX}horizon_overdue_seconds"
LOW_WATERMARK_LAG = f"{PREFIX}low_watermark_lag"
LOW_WATERMARK_UNKNOWN = f"{PREFIX}low_watermark_unknown"
WAITING_FOR_REPLICAS = f"{PREFIX}waiting_for_replicas"
SEGMENTS_HELD_BACK = f"{PREFIX}segments_held_back"
UNCLEANABLE = f"{PREFIX}uncleanable_partitions"
SINCE_LAST_ROUND = f"{PREFIX}seconds_since_last_round"
OPEN_TRANSACTION = f"{PREFIX}open_transaction_seconds"
WAITING_APPROVALS = f"{PREFIX}waiting_approvals"
HOLDS_TO_REVIEW = f"{PREFIX}holds_to_review"
HELD_RECORDS = f"{PREFIX}held_records"
PAUSED_RECORDS = f"{PREFIX}paused_records"
MISSING_OFFSETS = f"{PREFIX}missing_offsets"
ROWS_OF_ERASED_KEYS = f"{PREFIX}rows_of_erased_keys"
TO_ERASURE_DEADLINE = f"{PREFIX}seconds_to_erasure_deadline"
ERASURES_OVERDUE = f"{PREFIX}erasures_overdue"

_REASON_OF_BYTES = {"clean_log": "compaction", "expire_segments": "retention"}


class Measurement(NamedTuple):
    """A number with its tags: an increment of a counter, or the value of a gauge."""

    name: str
    value: float
    tags: Mapping[str, str]
    is_counter: bool = False


class KeptRecords(NamedTuple):
    """Counts of a topic's records that its holds protect."""

    held: int  # copies of removed records; a record that two holds cover counts twice
    paused: int  # records in partitions in which a pause blocks removals


@dataclass(frozen=True, slots=True)
class TopicRun:
    """One topic after a finished run: its rows in `runs`, its low watermarks and its holds."""

    topic: LakeTopic
    rows: Sequence[Run]
    answers: Sequence[LowWatermark]
    now_ms: int  # the run's `now`
    waiting_approvals: int = 0
    holds_to_review: int | None = None  # None if holds cannot be read
    kept_records: KeptRecords | None = None  # None if they cannot be counted

    def measured(self) -> Iterator[Measurement]:
        """Yield the measurements of any run."""
        for reason, records in sorted(records_removed(self.rows).items()):
            yield self._counter(RECORDS_REMOVED, records, reason=reason)
        for reason, size_bytes in sorted(bytes_removed(self.rows).items()):
            yield self._counter(BYTES_REMOVED, size_bytes, reason=reason)
        if freed := sum(row.topic_result.get("bytes_freed", 0) for row in self.rows):
            yield self._counter(BYTES_FREED, freed)
        if returned := sum(row.topic_result.get("rows_of_erased_keys", 0) for row in self.rows):
            yield self._counter(ROWS_OF_ERASED_KEYS, returned)
        yield self._gauge(WAITING_APPROVALS, self.waiting_approvals)
        if self.holds_to_review is not None:
            yield self._gauge(HOLDS_TO_REVIEW, self.holds_to_review)
        if self.kept_records is not None:
            yield self._gauge(HELD_RECORDS, self.kept_records.held)
            yield self._gauge(PAUSED_RECORDS, self.kept_records.paused)
        known, unknown = _lags(self.answers)
        if known:
            yield self._gauge(LOW_WATERMARK_LAG, max(known))
        if self.answers:
            yield self._gauge(LOW_WATERMARK_UNKNOWN, unknown)

    def measured_at_night(self) -> Iterator[Measurement]:
        """Yield the measurements of nightly runs, whose rounds cover all horizons that are due."""
        yield self._gauge(NIGHT_RECORDS_REMOVED, records_removed(self.rows).total())
        ratio = self._dirty_ratio()
        if ratio is not None:
            yield self._gauge(DIRTY_RATIO, ratio)
        yield self._gauge(HORIZON_OVERDUE, self.horizon_overdue_seconds)
        if self.topic.config.erase_deadline_ms is not None:
            yield self._gauge(TO_ERASURE_DEADLINE, self.seconds_to_erasure_deadline)
            overdue = overdue_erasures(self.topic, self.now_ms)
            yield self._gauge(ERASURES_OVERDUE, len(overdue.partitions) if overdue else 0)
        waiting = _of_partitions(self.rows, "waiting_for_replicas", _total)
        yield self._gauge(WAITING_FOR_REPLICAS, sum(waiting))
        behind = _of_partitions(self.rows, "segments_held_back", int, job="expire_segments")
        yield self._gauge(SEGMENTS_HELD_BACK, sum(behind))
        yield self._gauge(UNCLEANABLE, sum(_of_partitions(self.rows, "uncleanable", int)))
        yield self._gauge(OPEN_TRANSACTION, self.open_transaction_seconds)
        if self.topic.is_adopted:
            missing = [state.missing for state in self.topic.partitions.values()]
            yield self._gauge(MISSING_OFFSETS, sum(map(count_missing, missing)))
        if self.topic.config.is_enabled and self.topic.config.is_compacted:
            yield self._gauge(SINCE_LAST_ROUND, self.seconds_since_last_round)

    @property
    def seconds_since_last_round(self) -> int:
        """Seconds from the last round of the dirty partition that waits longest to the run's `now`.

        A partition without a round waits since its first segment was written. 0 if all are clean.
        """
        since = [
            state.cleaned_at_ms if state.cleaned_at_ms >= 0 else state.segments[0].modified_ms
            for state in self.topic.partitions.values()
            if state.has_dirty_segments
        ]
        return max(0, self.now_ms - min(since, default=self.now_ms)) // 1000

    @property
    def open_transaction_seconds(self) -> int:
        """Seconds from the start of the oldest open transaction to the run's `now`, or 0."""
        begun = _of_partitions(self.rows, "open_transaction", itemgetter("since_ms"))
        return max((max(0, self.now_ms - ms) // 1000 for ms in begun if ms >= 0), default=0)

    @property
    def horizon_overdue_seconds(self) -> int:
        """Seconds from the oldest delete horizon that is still set to the run's `now`, or 0."""
        config = self.topic.config
        if not (config.is_enabled and config.is_compacted and config.cleans_without_new_data):
            return 0
        horizons = [state.next_horizon_ms for state in self.topic.partitions.values()]
        oldest_ms = min((ms for ms in horizons if ms), default=self.now_ms)
        return max(0, (self.now_ms - oldest_ms) // 1000)

    @property
    def seconds_to_erasure_deadline(self) -> int:
        """Seconds from the run's `now` to the deadline of the oldest delete that is on the disk.

        Negative if the deadline has passed. Without such a delete: the whole deadline.
        """
        config = self.topic.config
        by_ms = erase_by_ms(config, self.topic.partitions.values())
        left_ms = config.erase_deadline_ms if by_ms is None else by_ms - self.now_ms
        return (left_ms or 0) // 1000

    def _dirty_ratio(self) -> float | None:
        """Return the largest dirty ratio of the partitions, or None if no round measured one."""
        ratios: list[float] = list(_of_partitions(self.rows, "dirty_ratio", float))
        if ratios:
            return max(ratios)
        is_clean = nothing_to_do("clean_log", self.topic, self.now_ms) is Reason.CLEAN
        return 0.0 if is_clean else None

    def _gauge(self, name: str, value: float) -> Measurement:
        return Measurement(name, value, tags_of(self.topic.name))

    def _counter(self, name: str, value: float, **tags: str) -> Measurement:
        return Measurement(name, value, {**tags_of(self.topic.name), **tags}, is_counter=True)


def since_success(topic: str, last: datetime, clock: datetime) -> list[Measurement]:
    """Return the time of a topic's last successful nightly run, and its age in seconds."""
    tags = tags_of(topic)
    return [
        Measurement(SECONDS_SINCE_LAST_SUCCESS, max(0, int((clock - last).total_seconds())), tags),
        Measurement(LAST_SUCCESS, int(last.timestamp()), tags),
    ]


def tags_of(topic: str) -> dict[str, str]:
    """Return the tags of a topic's metrics."""
    cluster, name, catalog = TopicName.parse(topic)
    return {"catalog": catalog, "cluster": cluster, "topic": name}


def records_removed(rows: Sequence[Run]) -> Counter[str]:
    """Count removed records and transaction markers by reason."""
    removed = Counter({removal.tag: count for removal, count in count_removals(rows).items()})
    removed["retention"] = sum(
        max(0, numbers.get("records_removed", 0) - numbers.get("records_expired", 0))
        for row in rows
        if row.job == "expire_segments"
        for numbers in row.partitions.values()
    )
    return +removed


def bytes_removed(rows: Iterable[Run]) -> Counter[str]:
    """Sum the removed bytes of the log by reason."""
    removed: Counter[str] = Counter()
    for row in rows:
        removed[_REASON_OF_BYTES.get(row.job, row.job)] += row.bytes_removed
    return +removed


def _lags(answers: Iterable[LowWatermark]) -> tuple[list[int], int]:
    """Return the distances of known low watermarks to their log starts, and count unknown ones."""
    lags, unknown = [], 0
    for answer in answers:
        if answer["low_watermark"] == INVALID_LOW_WATERMARK:
            unknown += 1
        else:
            lags.append(max(0, answer["log_start_offset"] - answer["low_watermark"]))
    return lags, unknown


def _of_partitions(
    rows: Iterable[Run], field: str, value: Any, job: str = "clean_log"
) -> Iterator[Any]:
    for row in rows:
        for numbers in row.partitions.values():
            if row.job == job and field in numbers:
                yield value(numbers[field])


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


log = logging.getLogger(__name__)

SECTION = "metrics"


def is_on() -> bool:
    """Return whether Airflow sends metrics with tags. Without tags, topics would be mixed up."""
    if conf.getboolean(SECTION, "statsd_datadog_enabled") or conf.getboolean(SECTION, "otel_on"):
        return True
    if not conf.getboolean(SECTION, "statsd_on"):
        return False
    if conf.getboolean(SECTION, "statsd_influxdb_enabled", fallback=False):
        return True
    log.warning(
        "ebbtide: expected tags in StatsD's metrics, found statsd_influxdb_enabled=False. No "
        "metrics are sent: without tags, each topic would overwrite the last. Set "
        "statsd_influxdb_enabled or statsd_datadog_enabled in [metrics]"
    )
    return False


def send(measurements: Iterable[Measurement]) -> None:
    """Send each measurement. Airflow drops metrics that its allow and block lists exclude."""
    for name, value, tags, is_counter in measurements:
        if is_counter:
            stats.incr(name, int(value), tags=dict(tags))
        else:
            stats.gauge(name, value, tags=dict(tags))


# Notices for an Airflow notifier: tripped guards, overdue delete horizons, holds whose review date
# has passed.


NOTIFIER = "EBBTIDE_NOTIFIER"


class NoticeKind(StrEnum):
    """The event that a notice reports."""

    GUARD_TRIPPED = "guard_tripped"
    HORIZON_OVERDUE = "horizon_overdue"
    HOLD_TO_REVIEW = "hold_to_review"


@dataclass(frozen=True, slots=True)
class Notice:
    """An event on a topic that needs attention."""

    event: NoticeKind
    topic: str
    text: str  # a whole sentence


def guards_tripped(runs: Iterable[Run]) -> list[Notice]:
    """Return a notice for each job that a guard stopped on a topic in its last attempt."""
    return [
        Notice(
            NoticeKind.GUARD_TRIPPED,
            run.topic,
            f"{run.topic}: a guard stopped {run.job}: {cause_of(run)}",
        )
        for run in newest(runs).values()
        # Another SafetyError stores no plan: the job itself found what must not be.
        if run.error_class == SafetyError.__name__ and "plan" in run.topic_result
    ]


def horizon_overdue(topic: str, seconds: int) -> Notice:
    """Return the notice of a delete horizon that a nightly run should have processed."""
    return Notice(
        NoticeKind.HORIZON_OVERDUE,
        topic,
        f"{topic}: a delete horizon was due {seconds / 3600:.1f} hours before this nightly run, "
        "but its tombstone or marker was not removed. The run's report says why",
    )


def holds_to_review(standings: Iterable[HoldStanding]) -> list[Notice]:
    """Return a notice for each hold whose review date has passed."""
    return [
        Notice(
            NoticeKind.HOLD_TO_REVIEW,
            standing.hold.topic,
            f"{standing.hold.topic}: {standing.hold.review_warning}",
        )
        for standing in standings
        if standing.is_to_be_reviewed
    ]


def is_asked_for() -> bool:
    """Return whether EBBTIDE_NOTIFIER names a notifier."""
    return bool(os.environ.get(NOTIFIER))


def notify(context: Any, notices: Sequence[Notice]) -> None:
    """Call the notifier once. Its templates get the notices as `ebbtide`."""
    told = {
        "notices": [asdict(notice) for notice in notices],
        "text": "\n".join(notice.text for notice in notices),
    }
    _notifier(os.environ[NOTIFIER])({**context, "ebbtide": told})


def _notifier(name: str) -> BaseNotifier:
    """Import a notifier by its dotted name: an instance, or a class that needs no arguments.

    Raise ConfigurationError if the name is neither.
    """
    from airflow.sdk import BaseNotifier

    module, _, attribute = name.rpartition(".")
    try:
        named = getattr(import_module(module), attribute)
        notifier = named() if isinstance(named, type) else named
    except Exception as error:
        raise ConfigurationError(
            f"expected a notifier that needs no arguments in {NOTIFIER}, found {name}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(notifier, BaseNotifier):
        raise ConfigurationError(
            f"expected a subclass or an instance of airflow.sdk.BaseNotifier in {NOTIFIER}, found "
            f"{name}, which is a {type(notifier).__name__}"
        )
    return notifier


# Read two days first: they have the last success unless the nightly run fails for longer.
LOOK_BACK = (timedelta(days=2), HISTORY)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A DAG run after all its stages have ended."""

    dag: str
    now: datetime
    topics: Sequence[str]
    healthy: Collection[str]  # the topics that passed the last stage
    answers: Sequence[LowWatermark]
    rows: Sequence[Run]  # without those from before the run was cleared

    @property
    def is_night(self) -> bool:
        """True if the run is one of nightly_retention."""
        return self.dag == NIGHTLY


def observe(context: Any, lake: Lake, run: FinishedRun, alias: Any) -> None:
    """Send metrics and notices. Log any error instead of raising it.

    `alias` is the alias of the topics' assets. Their events show earlier successes.
    """
    try:
        has_metrics, has_notifier = is_on(), is_asked_for()
        if not has_metrics and not has_notifier:
            return
        holds = _holds(lake)
        topics = list(_topic_runs(lake, run, holds))
        if has_metrics:
            send(_measured(run, topics))
            if run.is_night:
                send(_successes(context, run, alias))
        if has_notifier and (of_run := _notices(run, topics, holds.standings if holds else ())):
            notify(context, of_run)
    except Exception:
        log.exception("ebbtide: metrics or notices of this run were not sent")


def _holds(lake: Lake) -> AllHolds | None:
    """Return the holds, or None if they cannot be read (then no job removes records)."""
    try:
        holds = read_all_holds(lake, datetime.now(UTC))
    except EbbtideError as error:
        log.warning("ebbtide: no notices of holds to review, holds cannot be read: %s", error)
        return None
    for topic, problem in holds.problems.items():
        log.warning("ebbtide: %s: no notices of its holds to review: %s", topic, problem)
    return holds


def _topic_runs(lake: Lake, run: FinishedRun, holds: AllHolds | None) -> Iterator[TopicRun]:
    """Yield each topic of the run whose state can be read."""
    standings = () if holds is None else holds.standings
    due = Counter(standing.hold.topic for standing in standings if standing.is_to_be_reviewed)
    topics = list(_readable(lake, run.topics))
    waiting = count_waiting(lake, topics, datetime.now(UTC))
    for topic in topics:
        rows = [row for row in run.rows if row.topic == topic.name]
        answers = [answer for answer in run.answers if answer["topic"] == topic.name]
        now_ms = int(run.now.timestamp() * 1000)
        is_known = holds is not None and topic.name not in holds.problems
        on_topic = [standing.hold for standing in standings if standing.hold.topic == topic.name]
        yield TopicRun(
            topic,
            rows,
            answers,
            now_ms,
            waiting[topic.name],
            due[topic.name] if is_known else None,
            _count_kept(lake, topic, on_topic) if is_known else None,
        )


def _count_kept(lake: Lake, topic: LakeTopic, holds: Sequence[Hold]) -> KeptRecords | None:
    """Count the records that these holds protect, or return None if manifests cannot be read."""
    try:
        copying = {hold.hold_id for hold in that_keep(holds)}
        copies = kept_records(lake, topic.name) if copying else Counter[str]()
        paused = {p for p in topic.partitions if pause_of(holds, p) is not None}
        records = lake.live_rows(topic.name) if paused else {}
    except Exception:  # this must not hide the topic's other numbers
        log.exception("ebbtide: %s: cannot count the records that its holds protect", topic.name)
        return None
    return KeptRecords(
        sum(copies[hold_id] for hold_id in copying),
        sum(count for partition, count in records.items() if partition in paused),
    )


def count_waiting(lake: Lake, topics: Sequence[LakeTopic], clock: datetime) -> Counter[str]:
    """Count the open plans at `clock` that would remove something, by topic.

    Read only the days in which a plan that has not expired can have been made.
    """
    if not topics:
        return Counter()
    since = before(clock, max(topic.config.plan_expire_ms for topic in topics))
    made = lake.plans(since, topic=[topic.name for topic in topics])
    plans = [plan for plan in made if plan.expires_at > clock and removes_something(plan)]
    standing = standing_plans(lake, plans, clock, since)
    return Counter(s.plan.topic for s in standing if s.standing is Standing.OPEN)


def _readable(lake: Lake, names: Iterable[str]) -> Iterator[LakeTopic]:
    for name in names:
        try:
            topic = lake.topic(name)
            _ = topic.config, topic.partitions
        except EbbtideError:
            continue  # the run has failed with this error and reports it
        except Exception:  # one topic's state must not hide all other topics
            log.exception("ebbtide: %s: no metrics, cannot read its state", name)
            continue
        yield topic


def _measured(run: FinishedRun, topics: Iterable[TopicRun]) -> Iterator[Measurement]:
    for topic in topics:
        try:
            of_topic = list(topic.measured())
            of_topic += topic.measured_at_night() if run.is_night else ()
        except Exception:  # one topic's numbers must not hide all other numbers
            log.exception("ebbtide: %s: its metrics are not sent", topic.topic.name)
            continue
        yield from of_topic


def _notices(
    run: FinishedRun, topics: Iterable[TopicRun], holds: Iterable[HoldStanding]
) -> list[Notice]:
    """Return the notices of a run. A nightly run reports all holds, also of idle topics."""
    overdue = [
        horizon_overdue(topic.topic.name, topic.horizon_overdue_seconds)
        for topic in topics
        if run.is_night and topic.horizon_overdue_seconds
    ]
    return [*guards_tripped(run.rows), *overdue, *(holds_to_review(holds) if run.is_night else ())]


def _successes(context: Any, run: FinishedRun, alias: Any) -> Iterator[Measurement]:
    """Yield the last success of each topic that ever had a successful nightly run."""
    clock = datetime.now(UTC)
    failing = [name for name in run.topics if name not in run.healthy]
    last = dict.fromkeys(run.healthy, clock)
    if failing:
        last |= _last_successes(context, failing, clock, alias)
    for name, when in last.items():
        yield from since_success(name, when, clock)


def _last_successes(
    context: Any, names: Sequence[str], clock: datetime, alias: Any
) -> Mapping[str, datetime]:
    """Return the time of each topic's newest event of a nightly run in the last `HISTORY`."""
    last: dict[str, datetime] = {}
    for days in LOOK_BACK:
        events = context["inlet_events"][alias].after((clock - days).isoformat())
        for event in events:
            if event.source_dag_id == NIGHTLY and event.asset.name in names:
                name = event.asset.name
                last[name] = max(event.timestamp, last.get(name, event.timestamp))
        if len(last) == len(names):
            break
    return last
