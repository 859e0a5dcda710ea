"""A live topic, its archive with a replica, and what must be gone from their bytes by when.

Each value is a text of its own, so that one search of the lake's files tells which of all records
that there ever were have a byte left in any of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Self
from unittest.mock import patch

from confluent_kafka import Producer

from ebbtide import moments
from ebbtide.errors import ExitCode
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.lake.own_tables import certificates_of, find_certificate, read_holds
from ebbtide.lake.reader import open_lake
from ebbtide.settings.config import DAY_MS, DEADLINE_MS, INTERVAL_MS, UNDO_MS
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import KEYS
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE
from ebbtide_verify.__main__ import HOLDS as IT_HOLDS
from ebbtide_verify.__main__ import main as verify
from ebbtide_verify.scan import Sought, search
from tests.jobs.ingest_topic.live import create
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError, kill
from tests.tables.job_words import ASKED, CONNECTION, hold, settings_of, topics
from tests.tables.nights import HOUR_MS, at
from tests.waiting import PATIENCE_S

PRIMARY, COPIES = "live", "copies"
PEOPLE = tuple(f"subject-{number}@people.example" for number in range(4))
WINDOW_MS = DAY_MS
# A night for each of three waits, beside the tombstone's window; a replica needs one more.
NEEDED_MS = WINDOW_MS + 3 * DAY_MS
SETTINGS = {
    "kafka.cleanup.policy": "compact",
    "kafka.segment.ms": str(HOUR_MS),
    "kafka.delete.retention.ms": str(WINDOW_MS),
    "ebbtide.max.delete.ratio": "1",
    INTERVAL_MS: str(DAY_MS),
}
DIRTY_RATIO = "kafka.min.cleanable.dirty.ratio"
# Once it is clean, no later record makes the log dirty enough for a round.
BALLAST = "0" * 100_000
# Longer than a schedule takes: snapshots have the machine's time, and must not be of the future.
AHEAD_MS = 6 * HOUR_MS
# What can be undone stays on the disk until the schedule's end.
UNDO_FOR_MS = 365 * DAY_MS


def _clock_at(now_ms: int) -> type[datetime]:
    """The machine's clock as jobs read it."""

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(now_ms / 1000, tz)

    return Stopped


@dataclass(slots=True)
class Written:
    """A record of the live topic; its offset is its place in the list of all."""

    key: str
    value: str | None  # None: a tombstone
    timestamp_ms: int
    arrived_ms: int | None = None  # when the archive got it
    ingest: int = 0  # by which of its ingests


class World:
    """One topic with all that is done to it, and the clock of its nights."""

    _tags = count()

    def __init__(self, sandbox: LakeSandbox, broker: KafkaBroker, scratch: Path) -> None:
        self.sandbox, self.spark, self.scratch = sandbox, sandbox.session, scratch
        self.name = TopicName(PRIMARY, f"people-{next(self._tags)}")
        self.copy = self.name._replace(cluster=COPIES)
        self.now_ms = time.time_ns() // 1_000_000 + AHEAD_MS
        self.log: list[Written] = []
        self.erased: list[tuple[str, int, int]] = []  # keys, when, and after which ingest
        self.erasures: dict[str, str] = {}  # keys by run
        self.holds, self.is_down, self.undoes = False, False, False
        self.free_since_ms = 0  # since when nothing keeps bytes that the deadline is about
        self.slack_ms: list[int] = []  # of each key that went, before its deadline
        self.removed_by = ""  # the last run that removed records
        self.happened: Counter[str] = Counter()
        self._broker = broker
        self._producer = Producer({**broker.client(), "log_level": 0})
        self._runs, self._values, self._ingests = count(), count(), 0
        self._kills: list[int] = []
        self._dirty_ratio = ""
        self._is_copied = True
        self._was_killed = False
        self._gone: dict[str, int] = {}  # offset of the tombstone of each key that went
        self._texts_in: dict[Path, frozenset[str]] = {}  # files do not change
        create(broker, self.name.topic)

    # What people and other machines do.

    def begin(
        self, spare_days: int, *, undoes: bool, is_copied: bool = True, is_clean: bool = True
    ) -> None:
        """Take the topic over, set its deadline, and clean it once.

        Only the deadline begins a round of a log that stays clean; else there is one each night.
        """
        self.undoes, self._is_copied = undoes, is_copied
        self._dirty_ratio = "0.9" if is_clean else "0"
        self.settings = self._settings(spare_days, UNDO_FOR_MS if undoes else 0)
        self.produce(PEOPLE[0])
        self._write(Written("ballast", BALLAST, self.now_ms))
        self._ingest()
        self.configure(self.settings, self.name)
        if is_copied:
            self._make_replica()
        self.night(24, [])

    def _settings(self, spare_days: int, snapshots_ms: int) -> dict[str, str]:
        self.deadline_ms = NEEDED_MS + snapshots_ms + (spare_days + self._is_copied) * DAY_MS
        return {
            **SETTINGS,
            DIRTY_RATIO: self._dirty_ratio,
            MAX_SNAPSHOT_AGE: str(snapshots_ms),
            UNDO_MS: str(snapshots_ms),
            DEADLINE_MS: str(self.deadline_ms),
        }

    def end(self) -> None:
        """Let nights go by until nothing that must go is left, or is overdue."""
        if self.holds:
            self.end_holds()
        if self.is_down:
            self.set_down(is_down=False)
        if self.undoes:
            self.undoes, self.settings = False, self._settings(0, 0)
            self.free_since_ms = self.now_ms  # the shorter deadline begins now
            for name in (self.copy, self.name):  # no shorter deadline than a replica can meet
                self.configure(self.settings, name)
        self.night(24, [])  # ingests the last records
        while self._texts_left() & self._due_ms().keys():
            self.check()
            self.night(24, [])
        self.check()

    def produce(self, key: str, *, ago_ms: int = 0) -> None:
        """Write a record; one from `ago_ms` before is a replayed one."""
        value = f"{self.name.topic}: value {next(self._values):06} of somebody"
        self.happened["replay" if ago_ms else "record"] += 1
        self._write(Written(key, value, self.now_ms - ago_ms))

    def delete(self, key: str) -> None:
        self.happened["delete"] += 1
        self._write(Written(key, None, self.now_ms))

    def _write(self, record: Written) -> None:
        value = None if record.value is None else record.value.encode()
        self._producer.produce(
            self.name.topic, value, record.key.encode(), timestamp=record.timestamp_ms
        )
        assert self._producer.flush(PATIENCE_S) == 0
        self.log.append(record)

    def erase(self, key: str) -> None:
        """Erase a key, whose tombstone goes to the live topic; by a request that waits for it."""
        run_id, before = self._run_id("erase"), len(self.log)
        words = [*topics([self.name]), *ASKED, "--connection", CONNECTION, "--timeout-ms", "1000"]
        with patch.dict("os.environ", {KEYS: key}):
            code, error = self._attempt("erase_keys", words, run_id)
            while "acknowledge" in error:  # of a busy machine
                code, error = self._attempt("erase_keys", words, run_id)
            if self.holds and code == ExitCode.FAILED:
                self.happened["refused for a hold"] += 1
                return
            assert not (self.holds and self._has(key)), "an erasure of a held key began"
            if code != ExitCode.DONE:  # it waits for its tombstone
                assert "log end offset" in error, error
                self._write_of_job(key, before)
                self._ingest()
                self._must("erase_keys", [*words, "--certify"], run_id)
        self.erased.append((key, self.now_ms, self._ingests))
        self.happened["erasure"] += 1
        self.erasures[run_id] = key
        self.removed_by = ""  # what was before an erasure can no longer be undone

    def _has(self, key: str) -> bool:
        """Whether the archive has a record of the key."""
        rows = self.spark.table(self.name.records_table)
        return bool(rows.where(f"decode(key, 'utf-8') = '{key}'").limit(1).count())

    def _attempt(self, job: str, words: Sequence[str], run_id: str) -> tuple[int, str]:
        """Run a job; return its exit code and what it failed with, if it did."""
        before = self._errors_of(run_id)
        code = self._call(job, words, run_id)
        return code, "".join((self._errors_of(run_id) - before).elements())

    def _errors_of(self, run_id: str) -> Counter[str]:
        """The errors of a run's attempts; the clock stands still, so no time orders them."""
        with open_lake() as lake:
            return Counter(str(row.error) for row in lake.runs(run_id=run_id) if row.error)

    def _write_of_job(self, key: str, before: int) -> None:
        """Note the tombstones that the job has produced: one an attempt that was acknowledged."""
        end = self._log_end()
        assert end > before, f"expected a tombstone from {before} on, found none"
        self.log += [Written(key, None, self.now_ms) for _ in range(before, end)]

    def _log_end(self) -> int:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._broker.client(), "group.id": "none"})
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(self.name.topic, 0), PATIENCE_S)
        finally:
            consumer.close()
        return int(end)

    def hold(self) -> None:
        self._must("hold_records", [*topics([self.name]), *hold(0)])
        self.happened["hold"] += 1
        self.holds = True

    def end_holds(self) -> None:
        """End the hold, or the pause that an undo has made."""
        with open_lake() as lake:
            standing = read_holds(lake, at(self.now_ms), str(self.name))
            held = [each.hold.hold_id for each in standing]
        for hold_id in held:
            words = ["--action", "end", "--hold", hold_id, *topics([self.name])]
            planned = self._must("hold_records", [*words, "--plan-only"])
            with open_lake() as lake:
                (plan,) = lake.plans(run_id=planned)
            self._must("hold_records", ["--plan", plan.plan_id, "--approved-by", "bob"])
        self.holds = False
        self.free_since_ms = self.now_ms

    def set_down(self, is_down: bool) -> None:
        """The replica's store is away, or is there again."""
        self.happened["replica goes or returns"] += 1
        self.is_down = is_down
        self.free_since_ms = self.now_ms

    def configure(self, settings: dict[str, str], name: TopicName) -> None:
        self._must("configure_topic", [*topics([name]), *settings_of(settings)])

    def undo(self) -> None:
        """Undo the last run that removed records, and end the pause that comes with it."""
        self.happened["undo"] += 1
        self._must("undo_run", [*topics([self.name]), "--run", self.removed_by])
        self.removed_by = ""
        self.end_holds()

    def restore(self) -> None:
        """Lose all tables of the topic, and fill them anew from the live topic, which has all."""
        self.happened["restore"] += 1
        for name in (self.copy, self.name):
            for view in (name.committed_view, name.null_tombstones_view, name.latest_view):
                self.spark.sql(f"DROP VIEW IF EXISTS {view}")
            tables = (name.records_table, name.batches_table, name.state_table)
            for table in (*tables, name.quarantine_table, name.held_table):
                self.spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")
        for record in self.log:
            record.arrived_ms = None
        self.removed_by = ""
        self._gone.clear()
        self._ingest()
        self.configure(self.settings, self.name)
        self._make_replica()

    def _make_replica(self) -> None:
        self.configure({"ebbtide.replicas": f"lake.{COPIES}"}, self.name)
        self._must("replicate_log", topics([self.name]))
        self.configure(self.settings, self.copy)

    def certify(self, run_id: str) -> None:
        """Certify an erasure; the certificate holds, and none of its bits can change."""
        self.happened["certificate"] += 1
        key = self.erasures[run_id]
        with patch.dict("os.environ", {KEYS: key}):
            self._must("certify_erasure", [*topics([self.name]), "--erasure", run_id])
        self.check_certificate(key)

    def check_certificate(self, key: str) -> None:
        """The newest certificate verifies, and does not with one bit changed."""
        with open_lake() as lake:
            newest = certificates_of(lake, topic=str(self.name))[0]
            envelope = find_certificate(lake, newest.certificate)
        self.scratch.mkdir(exist_ok=True)
        paths = {name: self.scratch / name for name in ("c.json", "public.pem", "keys")}
        paths["public.pem"].write_text(envelope.public_key)
        paths["keys"].write_text(key.encode().hex())
        words = [str(paths["c.json"]), "--public-key", str(paths["public.pem"])]
        words += ["--keys-file", str(paths["keys"])]
        paths["c.json"].write_text(envelope.envelope)
        assert verify(words) == IT_HOLDS
        text = bytearray(envelope.envelope.encode())
        place = text.index(b'"payload"') + 20 + self.now_ms % 200
        text[place] = ord("B") if text[place] == ord("A") else ord("A")
        paths["c.json"].write_bytes(text)
        assert verify(words) != IT_HOLDS

    # The archive's nights.

    def night(self, hours: int, kills: Sequence[int]) -> None:
        """A night so many hours after the last; each of `kills` ends a job before that commit."""
        self.happened["night"] += 1
        self.now_ms += hours * HOUR_MS
        self._kills = list(kills)
        self.produce("filler")  # so that the broker rolls the segment before
        self._ingest()
        is_copied = self._is_copied and not self.is_down
        both = [self.name, self.copy] if is_copied else [self.name]
        if is_copied:
            self._must("replicate_log", topics([self.name]))
        for job in ("mark_tombstones", "clean_log", "expire_segments", "expire_snapshots"):
            run_id = self._must(job, topics(both))
            if job == "clean_log" and self.undoes:
                self._note_removal(run_id)
        self._kills = []

    def _note_removal(self, run_id: str) -> None:
        with open_lake() as lake:
            rows = lake.runs(run_id=run_id, topic=str(self.name))
        if any(row.rows_removed for row in rows):
            self.removed_by = run_id

    def _ingest(self) -> None:
        words = [*topics([self.name]), "--connection", CONNECTION, "--cluster", PRIMARY]
        self._must("ingest_topic", words)
        self._ingests += 1
        for record in self.log:
            if record.arrived_ms is None:
                record.arrived_ms, record.ingest = self.now_ms, self._ingests

    def _run_id(self, job: str) -> str:
        return f"{job}-{self.name.topic}-{next(self._runs)}"

    def _must(self, job: str, words: Sequence[str], run_id: str = "") -> str:
        """Run a job until it is done; it fails only where it is killed."""
        run_id = run_id or self._run_id(job)
        while (code := self._call(job, words, run_id)) != ExitCode.DONE:
            with open_lake() as lake:
                errors = [str(row.error) for row in lake.runs(run_id=run_id) if row.error]
            assert self._was_killed, f"{job}: {errors}"
        assert code == ExitCode.DONE
        return run_id

    def _call(self, job: str, words: Sequence[str], run_id: str) -> int:
        main = import_module(f"jobs.{job}").main
        self._was_killed = False
        with (
            patch.object(commits, "before_commit", self._before_commit),
            patch.object(moments, "datetime", _clock_at(self.now_ms)),
        ):
            now = [] if "--plan" in words else ["--now", at(self.now_ms).isoformat()]
            try:
                code: int = main([*words, *now, "--run-id", run_id])
            except KilledError:  # once all topics are done, while ebbtide's own tables are tidied
                return ExitCode.FAILED
        return code

    def _before_commit(self, step: Step) -> None:
        self._kills = [left - 1 for left in self._kills]
        if -1 in self._kills:
            self._kills.remove(-1)
            self._was_killed = True
            self.happened["kill"] += 1
            kill(step)

    # What must hold after each step.

    def check(self) -> None:
        """Nothing is left past its deadline, gone before its window, or back after its erasure."""
        texts = self._texts_left()
        back = {
            r.value for r in self.log if self._is_refused(r) and r.value in texts and r.arrived_ms
        }
        assert not back, f"erased records are back: {sorted(map(str, back))}"
        self._check_windows()
        due_ms = self._due_ms()
        if not (self.holds or self.is_down or self.undoes):
            overdue = {text: due_ms[text] for text in texts & due_ms.keys()}
            overdue = {text: ms for text, ms in overdue.items() if ms < self.now_ms}
            assert not overdue, f"past their deadline at {self.now_ms}: {overdue}"
        for key, (offset, _) in self._deleted().items():
            if key not in texts and self._gone.get(key) != offset:
                self._gone[key] = offset
                self.slack_ms.append(due_ms[key] - self.now_ms)
                is_late = self.slack_ms[-1] < 0 and not (self.holds or self.is_down or self.undoes)
                assert not is_late, f"{key} went after its deadline {due_ms[key]}"

    def _texts_left(self) -> frozenset[str]:
        """The keys and values of the topic of which any file of the lake has the bytes."""
        texts = {t for r in self.log for t in (r.key, r.value) if t not in (None, BALLAST)}
        sought = sorted(map(str, texts))
        paths = [path for path in (self.sandbox.home / "lake").rglob("*") if path.is_file()]
        whole = Sought([text.encode() for text in sought])
        for path in paths:
            if path not in self._texts_in and path.suffix != ".db":
                hits = search(path.read_bytes(), whole)
                self._texts_in[path] = frozenset(sought[hit.sought] for hit in hits)
        return frozenset().union(*(self._texts_in.get(path, ()) for path in paths))

    def _is_refused(self, record: Written) -> bool:
        """Whether the archive got the record after its key's erasure, though it is older."""
        return any(
            key == record.key and record.timestamp_ms < at_ms and record.ingest > ingests
            for key, at_ms, ingests in self.erased
        )

    def _deleted(self) -> dict[str, tuple[int, Written]]:
        """The tombstone of each key whose last record it is, in the archive, with its offset."""
        last = {
            record.key: (offset, record)
            for offset, record in enumerate(self.log)
            if record.arrived_ms is not None and not self._is_refused(record)
        }
        return {key: found for key, found in last.items() if found[1].value is None}

    def _due_ms(self) -> dict[str, int]:
        """When each text must be gone that a tombstone is about."""
        due_ms: dict[str, int] = {}
        values: dict[str, list[str]] = {}
        for record in self.log:
            if record.arrived_ms is None or self._is_refused(record):
                continue
            if record.value is not None:
                values.setdefault(record.key, []).append(record.value)
                due_ms.pop(record.key, None)
                continue
            by_ms = max(record.arrived_ms, self.free_since_ms) + self.deadline_ms
            due_ms[record.key] = by_ms
            due_ms.update(dict.fromkeys(values.pop(record.key, ()), by_ms))
        return due_ms

    def _check_windows(self) -> None:
        """Each tombstone that a reader may still have to see is in the table."""
        rows = self.spark.table(self.name.records_table)
        there = {row[0] for row in rows.where("value IS NULL").select("offset").collect()}
        for key, (offset, tombstone) in self._deleted().items():
            ends_ms = (tombstone.arrived_ms or 0) + WINDOW_MS
            if self.now_ms < ends_ms:
                assert offset in there, f"{key}: its tombstone {offset} went before {ends_ms}"
