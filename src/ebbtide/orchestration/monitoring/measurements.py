"""Measure a finished run: one number a topic and name, from its rows and from the lake's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

from ebbtide.lake.reader import LakeTopic
from ebbtide.lake.runs import count_removals
from ebbtide.log.adopted.missing import count_missing
from ebbtide.log.attempts import Run
from ebbtide.log.delete_answers import INVALID_LOW_WATERMARK
from ebbtide.log.reasons import Reason
from ebbtide.log.settings.names import TopicName
from ebbtide.orchestration.night import LowWatermark, nothing_to_do

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
HELD_BACK = f"{PREFIX}held_back"
UNCLEANABLE = f"{PREFIX}uncleanable_partitions"
SINCE_LAST_ROUND = f"{PREFIX}seconds_since_last_round"
OPEN_TRANSACTION = f"{PREFIX}open_transaction_seconds"
WAITING_APPROVALS = f"{PREFIX}waiting_approvals"
HOLDS_TO_REVIEW = f"{PREFIX}holds_to_review"
MISSING_OFFSETS = f"{PREFIX}missing_offsets"

_REASON_OF_BYTES = {"clean_log": "compaction", "expire_segments": "retention"}


class Measurement(NamedTuple):
    """A number with its tags; a counter is added to, any other stands for itself."""

    name: str
    value: float
    tags: Mapping[str, str]
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class TopicRun:
    """What a finished run left of one topic: its rows in `runs`, and its low watermarks."""

    topic: LakeTopic
    rows: Sequence[Run]
    answers: Sequence[LowWatermark]
    now_ms: int  # the run's clock
    waiting_approvals: int = 0
    holds_to_review: int | None = None  # None where holds cannot be read

    def measured(self) -> Iterator[Measurement]:
        """Yield what any run tells of a topic."""
        for reason, records in sorted(records_removed(self.rows).items()):
            yield self._counter(RECORDS_REMOVED, records, reason=reason)
        for reason, size_bytes in sorted(bytes_removed(self.rows).items()):
            yield self._counter(BYTES_REMOVED, size_bytes, reason=reason)
        if freed := sum(row.topic_result.get("bytes_freed", 0) for row in self.rows):
            yield self._counter(BYTES_FREED, freed)
        yield self._gauge(WAITING_APPROVALS, self.waiting_approvals)
        if self.holds_to_review is not None:
            yield self._gauge(HOLDS_TO_REVIEW, self.holds_to_review)
        known, unknown = _lags(self.answers)
        if known:
            yield self._gauge(LOW_WATERMARK_LAG, max(known))
        if self.answers:
            yield self._gauge(LOW_WATERMARK_UNKNOWN, unknown)

    def measured_at_night(self) -> Iterator[Measurement]:
        """Yield what only a night tells, whose rounds would have reached every horizon due."""
        yield self._gauge(NIGHT_RECORDS_REMOVED, records_removed(self.rows).total())
        ratio = self._dirty_ratio()
        if ratio is not None:
            yield self._gauge(DIRTY_RATIO, ratio)
        yield self._gauge(HORIZON_OVERDUE, self.horizon_overdue_seconds)
        yield self._gauge(HELD_BACK, sum(_of_partitions(self.rows, "held_back", _total)))
        yield self._gauge(UNCLEANABLE, sum(_of_partitions(self.rows, "uncleanable", int)))
        yield self._gauge(OPEN_TRANSACTION, self.open_transaction_seconds)
        if self.topic.is_adopted:
            missing = [state.missing for state in self.topic.partitions.values()]
            yield self._gauge(MISSING_OFFSETS, sum(map(count_missing, missing)))
        if self.topic.config.is_enabled and self.topic.config.is_compacted:
            yield self._gauge(SINCE_LAST_ROUND, self.seconds_since_last_round)

    @property
    def seconds_since_last_round(self) -> int:
        """How long before the run's clock the dirty partition that waits longest had a round.

        One that never had a round waits since its first segment was written; 0 if all are clean.
        """
        since = [
            state.cleaned_at_ms if state.cleaned_at_ms >= 0 else state.segments[0].modified_ms
            for state in self.topic.partitions.values()
            if state.has_dirty_segments
        ]
        return max(0, self.now_ms - min(since, default=self.now_ms)) // 1000

    @property
    def open_transaction_seconds(self) -> int:
        """How long before the run's clock the oldest transaction began that holds a log back."""
        begun = _of_partitions(self.rows, "open_transaction", itemgetter("since_ms"))
        return max((max(0, self.now_ms - ms) // 1000 for ms in begun if ms >= 0), default=0)

    @property
    def horizon_overdue_seconds(self) -> int:
        """How long before the run's clock the oldest horizon passed that is still there; or 0."""
        config = self.topic.config
        if not (config.is_enabled and config.is_compacted and config.cleans_idle):
            return 0
        horizons = [state.next_horizon_ms for state in self.topic.partitions.values()]
        oldest_ms = min((ms for ms in horizons if ms), default=self.now_ms)
        return max(0, (self.now_ms - oldest_ms) // 1000)

    def _dirty_ratio(self) -> float | None:
        """Return the largest of the partitions as the round found it; None where none looked."""
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
    """Return when a topic's last night succeeded, and how long that is ago."""
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
    """Count records that left the records table, and markers, by reason."""
    removed = Counter({removal.tag: count for removal, count in count_removals(rows).items()})
    removed["retention"] = sum(
        max(0, numbers.get("records_removed", 0) - numbers.get("records_expired", 0))
        for row in rows
        if row.job == "expire_segments"
        for numbers in row.partitions.values()
    )
    return +removed


def bytes_removed(rows: Iterable[Run]) -> Counter[str]:
    """Sum bytes of the log that left it, by reason."""
    removed: Counter[str] = Counter()
    for row in rows:
        removed[_REASON_OF_BYTES.get(row.job, row.job)] += row.bytes_removed
    return +removed


def _lags(answers: Iterable[LowWatermark]) -> tuple[list[int], int]:
    """Return how far each low watermark is behind the log start, and how many are not known."""
    lags, unknown = [], 0
    for answer in answers:
        if answer["low_watermark"] == INVALID_LOW_WATERMARK:
            unknown += 1
        else:
            lags.append(max(0, answer["log_start_offset"] - answer["low_watermark"]))
    return lags, unknown


def _of_partitions(rows: Iterable[Run], field: str, value: Any) -> Iterator[Any]:
    for row in rows:
        for numbers in row.partitions.values():
            if row.job == "clean_log" and field in numbers:
                yield value(numbers[field])


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())
