"""Each topic's history as rows of `runs` tell it, kept between requests and read on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from threading import Lock

from ebbtide.lake.erasures import OpenErasures
from ebbtide.lake.reader import Lake
from ebbtide.lake.run_log import RunLog
from ebbtide.log.attempts import RUNS, Attempt
from ebbtide.log.state.topic_summary import TopicSummary
from ebbtide.orchestration.deletions import HISTORY, NIGHTLY

# Numbers that only some jobs know: the newest that is known counts.
_SOMETIMES_KNOWN = ("waiting", "low_watermark_lag", "drifted_settings", "oldest_event_ms")


@dataclass(slots=True)
class TopicHistory:
    """A topic's newest rows; they may come in any order, and more than once."""

    name: str
    summarized: Attempt | None = None  # the newest with a summary
    of_days: dict[date, Attempt] = field(default_factory=dict)  # the same, of each day
    of_jobs: dict[tuple[str | None, str], Attempt] = field(default_factory=dict)
    night: dict[str, Attempt] = field(default_factory=dict)  # of the newest night, by job
    known: dict[str, tuple[datetime, int]] = field(default_factory=dict)
    open_erasures: int = 0  # keys that are being erased

    def add(self, attempt: Attempt) -> None:
        """Take a row into account."""
        job = (attempt.dag, attempt.job)
        self.of_jobs[job] = _newer(self.of_jobs.get(job), attempt)
        if attempt.dag == NIGHTLY:
            self._add_to_night(attempt)
        if attempt.summary is not None:
            self.summarized = _newer(self.summarized, attempt)
            day = attempt.ended.date()
            self.of_days[day] = _newer(self.of_days.get(day), attempt)
            for name in _SOMETIMES_KNOWN:
                self._add_known(name, getattr(attempt.summary, name), attempt.ended)

    def _add_to_night(self, attempt: Attempt) -> None:
        newest = max(self.night.values(), key=_end, default=attempt)
        if attempt.run_id != newest.run_id:
            if _end(attempt) < _end(newest):
                return
            self.night = {}
        self.night[attempt.job] = _newer(self.night.get(attempt.job), attempt)

    def _add_known(self, name: str, value: int | None, at: datetime) -> None:
        if value is not None and (name not in self.known or self.known[name][0] <= at):
            self.known[name] = (at, value)

    @property
    def summary(self) -> TopicSummary | None:
        """The topic at the end of its newest job."""
        return None if self.summarized is None else self.summarized.summary

    @property
    def failures(self) -> list[Attempt]:
        """Each job's newest attempt if it failed, whatever other jobs have done since."""
        failed = [attempt for attempt in self.of_jobs.values() if not attempt.succeeded]
        return sorted(failed, key=_end, reverse=True)

    @property
    def sizes(self) -> list[int]:
        """Bytes of its files at the end of each day with a job, oldest first."""
        days = sorted(self.of_days.items())
        return [of.summary.file_bytes for _, of in days if of.summary is not None]

    def known_number(self, name: str) -> int | None:
        """Return the newest of a number that only some jobs know."""
        return self.known[name][1] if name in self.known else None


def _end(attempt: Attempt) -> tuple[datetime, datetime]:
    return attempt.ended, attempt.started


def _newer(before: Attempt | None, attempt: Attempt) -> Attempt:
    return attempt if before is None or _end(attempt) >= _end(before) else before


@dataclass(slots=True)
class Histories:
    """The histories of all topics that had a job in the last `HISTORY`."""

    log: RunLog = field(default_factory=RunLog)
    erasures: OpenErasures = field(default_factory=OpenErasures)
    by_topic: dict[str, TopicHistory] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def read_on(self, lake: Lake) -> Mapping[str, TopicHistory]:
        """Take the rows into account that were written since the last time."""
        with self.lock:
            table = lake.own_table(RUNS)
            if not self.log.is_of(table):
                self.log, self.by_topic = RunLog(), {}
            since = datetime.now(UTC) - HISTORY
            if table is not None:
                for attempt in self.log.read_on(table, since):
                    self._of(attempt.topic).add(attempt)
            still_open = self.erasures.read_on(lake, since)
            for name, history in self.by_topic.items():
                history.open_erasures = still_open.get(name, 0)
            return self.by_topic

    def _of(self, topic: str) -> TopicHistory:
        return self.by_topic.setdefault(topic, TopicHistory(topic))
