"""Another process with jobs of its own on the topic of a schedule, while a job is at work there.

It comes at a commit point of the job, and does its work whole before the job goes on, or it begins
with the job and works beside it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from ebbtide.iceberg import commits
from ebbtide.iceberg.topics import exists
from ebbtide.ledger.holds import HoldEvent, holds_of
from ebbtide.runner.holds import append_hold, read_holds
from ebbtide.settings.names import TopicName
from tests.pairs.two_processes import OtherProcess
from tests.tables.nights import at

COMES = 0.25  # at a commit point
BESIDE = 0.3  # with a job
MOST_A_NIGHT = 3
# The jobs of a night that it may run as well.
JOBS = {
    "ingest": "ingest_segments",
    "mark": "mark_tombstones",
    "delete": "delete_records",
    "clean": "clean_log",
    "expire": "expire_segments",
}
COMPANY = "company: "  # begins the name of what happened
BESIDE_IT, THAT_FAILED = " beside it", " that failed"  # end it
INGEST, SAME, HOLD, UNDO = "an ingest", "the same job", "a hold", "an undo"
# Beyond the end of each log, so that it keeps nothing: a person makes it, and ends it.
HELD = ("--partition", "0", "--first-offset", str(10**12))
WHY = ("--case-id", "7", "--reason", "asked", "--owner", "ann")


@dataclass(slots=True)
class Company:
    """What another process does to the topic in one schedule."""

    other: OtherProcess
    spark: SparkSession
    name: TopicName
    log: Path
    rng: random.Random
    happened: Counter[str]
    _now: str = ""
    _requested: Mapping[int, int] = field(default_factory=dict)
    _job: str = ""
    _is_first: bool = False
    _runs: int = 0
    _left: int = 0
    _beside: str | None = None
    _is_at_work: bool = False

    def begin_night(self, now_ms: int, requested: Mapping[int, int]) -> None:
        """Take the clock of the night and what is to be deleted in it."""
        self._now = at(now_ms).isoformat()
        self._requested = requested
        self._left = MOST_A_NIGHT

    def begin_job(self, what: str) -> None:
        """A job of the night begins: now and then another one begins beside it."""
        self._job, self._is_first = what, True
        if self._may_come(BESIDE):
            self._beside = self.rng.choice([INGEST, SAME])
            job = "ingest_segments" if self._beside == INGEST else JOBS.get(what, "clean_log")
            self.other.begin(job, self._words(job))

    def at_commit(self) -> None:
        """Come now and then, and do something whole before the job's commit."""
        is_first, self._is_first = self._is_first, False
        if self._beside is not None or not self._may_come(COMES):
            return
        self._is_at_work = True
        try:
            # A job of a person's is undone where the night's own has nothing in flight.
            self._do(self.rng.choice([INGEST, SAME, HOLD, UNDO if is_first else SAME]))
        finally:
            self._is_at_work = False

    def end_job(self) -> None:
        """Wait for what has begun beside the job, and end the holds that came by."""
        if self._beside is not None:
            self.other.end()
            self._tell(f"{self._beside}{BESIDE_IT}")
            self._beside = None
        self._end_holds()

    def _may_come(self, share: float) -> bool:
        if self._is_at_work or not self._left or not exists(self.spark, self.name):
            return False
        if self.rng.random() >= share:
            return False
        self._left -= 1
        return True

    def _do(self, what: str) -> None:
        if what == INGEST:
            self._run("ingest_segments")
        elif what == SAME:
            self._run(JOBS.get(self._job, "clean_log"))
        elif what == HOLD:
            self._run("hold_records", "--action", "make", *HELD, *WHY)
        else:
            job = "delete_records" if self._requested else "clean_log"
            self._run(job)
            self._run("undo_run", "--run", self._run_id)
            self._end_holds()
        self._tell(what)

    def _run(self, job: str, *more: str) -> None:
        self.other.run(job, self._words(job, *more))

    @property
    def _run_id(self) -> str:
        """The id of the last run."""
        return f"{self.name.cluster}-company-{self._runs}"

    def _words(self, job: str, *more: str) -> list[str]:
        words = ["--topic", str(self.name), *more]
        if job == "ingest_segments":
            where = ("--source", str(self.log), "--cluster", self.name.cluster)
            words += [*where, "--accept-gap"]
        if job == "delete_records":
            partitions = [{"partition": p, "offset": o} for p, o in self._requested.items()]
            topics = [{"topic": str(self.name), "partitions": partitions}]
            words = ["--request", json.dumps({"topics": topics})]
        self._runs += 1
        return [*words, "--now", self._now, "--run-id", self._run_id]

    def _tell(self, what: str) -> None:
        failed = THAT_FAILED if self.other.exit_code else ""
        self.happened[f"{COMPANY}{what}{failed}"] += 1

    def _end_holds(self) -> None:
        clock = datetime.now(UTC)
        with patch.object(commits, "before_commit"):  # a person does it, whom nobody kills
            for hold in holds_of(read_holds(self.spark, self.name), clock):
                ended = replace(hold, event=HoldEvent.ENDED, at=clock, by="ann")
                append_hold(self.spark, self.name, ended)
