"""The jobs that meet, what they are asked, and topics on which each of them has work to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from ebbtide.errors import ExitCode
from ebbtide.log.adopted.support import JOBS as JOBS_ON_ADOPTED
from ebbtide.log.adopted.support import OnAdopted
from ebbtide.log.requests.erase_request import KEYS
from ebbtide.log.settings.names import TopicName
from ebbtide.stages.unfinished import JOBS
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox
from tests.stages.ingest_topic.live import CONNECTION, Writer, create
from tests.tables.adopted import Record, append, spark_table
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, at

CLUSTER, COPIES = "own", "copies"
NOW = at(FIRST_MS + 10 * DAY_MS).isoformat()
# On topics whose tables ebbtide writes; the two others refuse such, or pass by.
OWN_JOBS = tuple(JOBS)
ADOPTED_JOBS = tuple(job for job, of in JOBS_ON_ADOPTED.items() if of.does is OnAdopted.WORKS)
SETTINGS = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.segment.ms": str(HOUR_MS),
    "kafka.min.cleanable.dirty.ratio": "0.01",
    # Ends two segments.
    "kafka.retention.ms": str(10 * DAY_MS - 3 * HOUR_MS),
    "ebbtide.max.delete.ratio": "1",
}
# Two hours apart. A round removes offsets 0, 4 and 5.
SEGMENTS = (
    (("k0", "a"), ("k1", "a")),
    (("k2", "a"), ("k3", "a")),
    (("k4", "a"), ("k5", "a")),
    (("k0", "b"), ("k4", "b")),
    (("k5", None), ("k7", "a")),
    (("k8", "a"), ("k6", "a")),
)
# The source grows by these, twice.
MORE = (
    ((("k9", "a"), ("k2", "b")), (("k10", "a"), ("k6", "b"))),
    ((("k11", "a"), ("k7", "b")), (("k12", "a"), ("k9", "b"))),
)
ERASED = "k8"
HELD = ("--partition", "0", "--first-offset", "0", "--end-offset", "6")
WHY = ("--case-id", "7", "--reason", "asked", "--owner", "ann")
ASKED = ("--requested-by", "privacy office", "--reason", "17")
DELETED_BEFORE, DELETED = 2, 3
CHANGED_BY_OTHERS = 6
BEFORE = "before"  # the run to undo


def log_of(segments: Sequence[Sequence[tuple[str, str | None]]]) -> list[list[Message]]:
    return [
        [Message(key, value, 2 * HOUR_MS * i) for key, value in records]
        for i, records in enumerate(segments)
    ]


class OwnTopics:
    """Topics whose tables ebbtide writes, in one lake."""

    kind = "own"
    jobs = OWN_JOBS

    def __init__(self, sandbox: LakeSandbox, folder: Path, broker: Callable[[], KafkaBroker]):
        self.spark = sandbox.session
        self._folder = folder
        self._log = folder / "log"
        self._broker = broker

    def environment(self) -> dict[str, str]:
        """What jobs read there."""
        return {KEYS: ERASED}

    def fill(self, pairs: Mapping[TopicName, frozenset[str]]) -> None:
        """Create the topics, so that the jobs of each topic's pair have work to do on it."""
        names = list(pairs)
        for name in names:
            write_log(self._log, name.topic, log_of(SEGMENTS), {})
        settings = [word for of in SETTINGS.items() for word in ("--set", "=".join(of))]
        self._ingest(names, *settings)
        self._run_of("configure_topic", names, "--unset", "ebbtide.source")

        def of(*jobs: str) -> list[TopicName]:
            return [name for name in names if pairs[name] & set(jobs)]

        unmarked = of("mark_tombstones")
        self._mark(name for name in names if name not in unmarked)
        if replicated := of("replicate_log"):
            self._run_of(
                "configure_topic", replicated, "--set", f"ebbtide.replicas=lake.{COPIES}"
            )
        if merged := of("expire_snapshots"):
            self._run_of("clean_log", merged)
        if grown := of("expire_snapshots"):
            self._grow(grown, 0)
            self._ingest(grown)
            self._run_of("configure_topic", grown, "--unset", "ebbtide.source")
            self._mark(name for name in grown if name not in unmarked)
        if undone := of("undo_run"):
            self.run("delete_records", self._deletion(undone, DELETED_BEFORE), BEFORE)
        self._grow(of("ingest_segments"), 0, 1)
        for name in of("ingest_topic"):
            create(self._broker(), name.topic)
            Writer(self._broker(), name.topic, first_ms=FIRST_MS).write(20, step_ms=2 * HOUR_MS)
        for name in of("ingest_table"):
            self._write_source(name, first=16 if name in grown else 12)
        for name in of("repair_state"):
            self.spark.sql(
                f"DELETE FROM {name.records_table} WHERE offset = {CHANGED_BY_OTHERS}"
            )

    def run(self, job: str, arguments: Sequence[str], run_id: str) -> None:
        """Run a job that has to succeed."""
        code = import_module(f"jobs.{job}").main([*arguments, "--now", NOW, "--run-id", run_id])
        assert code == ExitCode.DONE, job

    def calls(self, job: str, names: Sequence[TopicName]) -> list[list[str]]:
        """The arguments of each call by which the job works on all of the topics."""
        topics = words_of(names)
        if job == "ingest_segments":
            return [["--source", str(self._log), "--cluster", CLUSTER, *topics]]
        if job == "ingest_topic":
            return [["--connection", CONNECTION, "--cluster", CLUSTER, *topics]]
        if job == "ingest_table":  # it takes a table for one topic
            return [["--source", f"source.{name.topic}", *words_of([name])] for name in names]
        if job == "delete_records":
            return [self._deletion(names, DELETED)]
        more = {
            "erase_keys": (*ASKED, "--append"),
            "export_segments": ("--target", str(self._folder / "out")),
            "configure_topic": ("--set", "kafka.retention.ms=-1"),
            "hold_records": ("--action", "make", *HELD, *WHY),
            "undo_run": ("--run", BEFORE),
        }
        return [[*topics, *more.get(job, ())]]

    def _run_of(self, job: str, names: Sequence[TopicName], *more: str) -> None:
        self.run(job, [*words_of(names), *more], "fill")

    def _ingest(self, names: Sequence[TopicName], *more: str) -> None:
        where = ["--source", str(self._log), "--cluster", CLUSTER]
        self.run("ingest_segments", [*where, *words_of(names), *more], "fill")

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

    def _deletion(self, names: Sequence[TopicName], offset: int) -> list[str]:
        partitions = [{"partition": 0, "offset": offset}]
        topics = [{"topic": str(name), "partitions": partitions} for name in names]
        return ["--request", json.dumps({"topics": topics, "timeout_ms": 1})]

    def _write_source(self, name: TopicName, first: int) -> None:
        """A table that others write, which has what the topic lacks."""
        source = str(TopicName("source", name.topic))
        spark_table(self.spark, source)
        append(self.spark, source, [Record(first + i, f"k{i}") for i in range(3)])


def words_of(names: Iterable[TopicName]) -> list[str]:
    return [word for name in names for word in ("--topic", str(name))]
