"""The jobs that meet, what they are asked, and topics on which each of them has work to do."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from tests.jobs.ingest_topic.live import Writer, create
from tests.kafka.broker import KafkaBroker
from tests.tables.adopted import Record, append, spark_table
from tests.tables.job_words import ASKED, asked, deletion, hold, settings_of, topics
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, at

COPIES = "copies"  # the cluster of replicas
NOW = at(FIRST_MS + 10 * DAY_MS).isoformat()
# A job that has run at NOW would have nothing to do there again.
FILLED = at(FIRST_MS + 9 * DAY_MS).isoformat()
# On topics whose tables ebbtide writes; the two others refuse such, or pass by.
OWN_JOBS = tuple(job for job, spec in SPECS.items() if spec.duties is not None)
# The owner of an adopted table appends to it at any moment; this is no job of ebbtide's.
OWNER = "its owner appends"
ADOPTED_JOBS = tuple(job for job, spec in SPECS.items() if spec.works_on_adopted)
SETTINGS = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.segment.ms": str(HOUR_MS),
    "kafka.min.cleanable.dirty.ratio": "0.01",
    # Ends two segments.
    "kafka.retention.ms": str(10 * DAY_MS - 3 * HOUR_MS),
    "ebbtide.max.delete.ratio": "1",
}
ADOPTED_SETTINGS = SETTINGS | {
    # Each look closes a segment.
    "kafka.segment.ms": "1",
    "kafka.min.cleanable.dirty.ratio": "0",
}
ADOPTED_AGAIN = "kafka.delete.retention.ms=1000"
# Two hours apart. A round removes offsets 0, 4 and 5.
SEGMENTS = (
    (("k0", "a"), ("k1", "a")),
    (("k2", "a"), ("k3", "a")),
    (("k4", "a"), ("k5", "a")),
    (("k0", "b"), ("k4", "b")),
    (("k5", None), ("k7", "a")),
    (("k8", "a"), ("k6", "a")),
    # So many small segments are merged.
    *(((f"k{n}", "a"), (f"k{n + 1}", "a")) for n in range(20, 28, 2)),
)
FIRST_NEW = 2 * len(SEGMENTS)  # the offset that the topic lacks
# The source grows by these, twice.
MORE = (
    ((("k9", "a"), ("k2", "b")), (("k10", "a"), ("k6", "b"))),
    ((("k11", "a"), ("k7", "b")), (("k12", "a"), ("k9", "b"))),
)
ERASED = "k8"
HELD = hold(0, "--end-offset", "6")
DELETED_BEFORE, DELETED = 2, 3
CHANGED_BY_OTHERS = 6
BEFORE = "before"  # the run to undo


def log_of(segments: Sequence[Sequence[tuple[str, str | None]]]) -> list[list[Message]]:
    return [
        [Message(key, value, 2 * HOUR_MS * i) for key, value in records]
        for i, records in enumerate(segments)
    ]


_tags = count()


class Topics(ABC):
    """Topics of one kind in a lake, and the jobs that work on them."""

    kind: str  # names their namespace too
    jobs: tuple[str, ...]

    def __init__(self, spark: SparkSession, folder: Path, broker: Callable[[], KafkaBroker]):
        self.spark = spark
        self._folder = folder
        self._broker = broker

    @abstractmethod
    def fill(self, pairs: Mapping[TopicName, tuple[str, str]]) -> None:
        """Create the topics, so that the jobs A and B of each have work to do on it."""

    @abstractmethod
    def calls(self, job: str, names: Sequence[TopicName]) -> list[list[str]]:
        """The arguments of each call by which the job works on all of the topics."""

    def run(self, job: str, names: Sequence[TopicName], run_id: str) -> None:
        """Run the job's main on the topics, as often as it takes; what it raises is printed."""
        main = import_module(f"jobs.{job}").main
        for call in self.calls(job, names):
            try:
                main([*call, *run_words(run_id)])
            except (Exception, SystemExit):  # then no row says how it ended
                traceback.print_exc()

    def _succeed(self, job: str, arguments: Sequence[str], run_id: str = "fill") -> None:
        code = import_module(f"jobs.{job}").main([*arguments, *run_words(run_id, FILLED)])
        assert code == ExitCode.DONE, job


def run_words(run_id: str, now: str = NOW) -> list[str]:
    """The clock and the id of a run."""
    return ["--now", now, "--run-id", run_id]


class OwnTopics(Topics):
    """Topics whose tables ebbtide writes, in one lake."""

    kind = "own"
    jobs = OWN_JOBS

    def __init__(self, spark: SparkSession, folder: Path, broker: Callable[[], KafkaBroker]):
        super().__init__(spark, folder, broker)
        self._log = folder / "log"

    def fill(self, pairs: Mapping[TopicName, tuple[str, str]]) -> None:
        names = list(pairs)
        for name in names:
            write_log(self._log, name.topic, log_of(SEGMENTS), {})
        self._ingest(names, *settings_of(SETTINGS))
        self._run_of("configure_topic", names, "--unset", "ebbtide.source")

        def of(*jobs: str) -> list[TopicName]:
            return [name for name in names if set(pairs[name]) & set(jobs)]

        unmarked = of("mark_tombstones")
        # A round needs marked records, so only what comes last is left to mark.
        in_part = [name for name in unmarked if "clean_log" in pairs[name]]
        unmarked = [name for name in unmarked if name not in in_part]
        self._mark(name for name in names if name not in unmarked)
        if undone := of("undo_run"):
            self._succeed("delete_records", deletion(undone, DELETED_BEFORE), BEFORE)
        if replicated := of("replicate_log"):
            self._run_of("configure_topic", replicated, "--set", f"ebbtide.replicas=lake.{COPIES}")
        if merged := of("expire_snapshots"):
            self._run_of("clean_log", merged)
        if grown := [*of("expire_snapshots"), *in_part]:
            self._grow(grown, 0)
            self._ingest(grown)
            self._run_of("configure_topic", grown, "--unset", "ebbtide.source")
            self._mark(name for name in grown if name not in (*unmarked, *in_part))
        self._grow(of("ingest_segments"), 0, 1)
        for name in of("ingest_topic"):
            create(self._broker(), name.topic)
            Writer(self._broker(), name.topic, first_ms=FIRST_MS).write(
                FIRST_NEW + 8, step_ms=2 * HOUR_MS
            )
        for name in of("ingest_table"):
            self._write_source(name, first=FIRST_NEW + 4 if name in grown else FIRST_NEW)
        self._change(name for name, (a, _) in pairs.items() if a == "repair_state")

    def run(self, job: str, names: Sequence[TopicName], run_id: str) -> None:
        if job == "repair_state":  # as B: another tool changes the topic at A's commit point
            self._change(names)
        super().run(job, names, run_id)

    def _change(self, names: Iterable[TopicName]) -> None:
        """Delete a record, as no tool but ebbtide may."""
        for name in names:
            self.spark.sql(f"DELETE FROM {name.records_table} WHERE offset = {CHANGED_BY_OTHERS}")

    def calls(self, job: str, names: Sequence[TopicName]) -> list[list[str]]:
        if job == "ingest_table" or job == "erase_keys":  # they take one topic
            return [asked(job, [name]) for name in names]
        if job == "export_segments":  # it fills a directory of its own
            out = self._folder / "out"
            return [[*topics([topic]), "--target", str(out / str(next(_tags)))] for topic in names]
        return [asked(job, names, log=self._log, offset=DELETED, held=HELD, undone=BEFORE)]

    def _run_of(self, job: str, names: Sequence[TopicName], *more: str) -> None:
        self._succeed(job, [*topics(names), *more])

    def _ingest(self, names: Sequence[TopicName], *more: str) -> None:
        where = ["--source", str(self._log), "--cluster", self.kind]
        self._succeed("ingest_segments", [*where, *topics(names), *more])

    def _mark(self, names: Iterable[TopicName]) -> None:
        if names := list(names):
            self._run_of("mark_tombstones", names)

    def _grow(self, names: Sequence[TopicName], *times: int) -> None:
        """Write segments that the source has from then on."""
        known = [segment for time in range(max(times, default=0) + 1) for segment in MORE[time]]
        messages = log_of([*SEGMENTS, *known])
        for name in names:
            for i, segment in enumerate(messages):
                path = self._log / f"{name.topic}-0" / f"{2 * i:020}.log"
                if not path.exists():
                    path.write_bytes(batch_of(segment, 2 * i))

    def _write_source(self, name: TopicName, first: int) -> None:
        """A table that others write, which has what the topic lacks."""
        source = str(TopicName("source", name.topic))
        spark_table(self.spark, source)
        append(self.spark, source, [Record(first + i, f"k{i}") for i in range(3)])


class AdoptedTopics(Topics):
    """Topics of tables that others write, as Spark's Kafka source has them."""

    kind = "adopted"
    jobs = ADOPTED_JOBS

    def fill(self, pairs: Mapping[TopicName, tuple[str, str]]) -> None:
        names = list(pairs)
        for name in names:
            spark_table(self.spark, str(name))
        self._append(names, 0, 4)
        self._succeed("adopt_table", [*topics(names), *settings_of(ADOPTED_SETTINGS)])
        self._append(names, 4, 8)
        self._succeed("clean_log", topics(names))
        self._append(names, 8, FIRST_NEW)
        if undone := [name for name in names if "undo_run" in pairs[name]]:
            self._succeed("delete_records", deletion(undone, DELETED_BEFORE), BEFORE)

    def run(self, job: str, names: Sequence[TopicName], run_id: str) -> None:
        if job != OWNER:
            super().run(job, names, run_id)
            return
        self._append(names, FIRST_NEW, FIRST_NEW + 4)

    def calls(self, job: str, names: Sequence[TopicName]) -> list[list[str]]:
        if job == "erase_keys":
            return [[*topics([name]), *ASKED] for name in names]
        if job == "adopt_table":
            return [[*topics(names), *settings_of(ADOPTED_SETTINGS), "--set", ADOPTED_AGAIN]]
        return [asked(job, names, offset=DELETED, held=HELD, undone=BEFORE)]

    def _append(self, names: Sequence[TopicName], first: int, end: int) -> None:
        """Append these offsets of the log as the table's owner does."""
        log = [message for segment in log_of([*SEGMENTS, *MORE[0]]) for message in segment]
        records = [
            Record(offset, entry.key, entry.value, timestamp_ms=FIRST_MS + entry.at_ms)
            for offset, entry in enumerate(log)
            if first <= offset < end
        ]
        for name in names:
            append(self.spark, str(name), records)
