"""A topic that nights clean, and its twin that gets the same log and that no night touches."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.ledger.undo_points import points_to_undo
from ebbtide.runner.undo_points import read_points
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import PartitionState
from jobs import clean_log, delete_records, expire_segments, expire_snapshots, undo_run
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark, set_properties
from tests.tables.planned import Jobs

# Where a job may leave work to a retry.
KILLS = [
    *(Step.ROUND_RECORDS, Step.ROUND_BATCHES, Step.ROUND_STATE),
    *(Step.LOG_START_OFFSET, Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_BATCHES),
    *(Step.MERGE_BATCHES, Step.MERGE_STATE, Step.EXPIRE_SNAPSHOTS),
]
CONFIG = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}


class Twins:
    """Both topics, and what happens to them by a seed."""

    def __init__(
        self,
        sandbox: LakeSandbox,
        jobs: Jobs,
        cluster: str,
        log: Path,
        seed: int,
        kill_at: list[Step],
        partitions: int = 2,
    ) -> None:
        self.spark, self.jobs, self.log, self.kill_at = sandbox.session, jobs, log, kill_at
        self.name, self.twin = TopicName(cluster, "t"), TopicName(f"{cluster}_twin", "t")
        self.random = random.Random(seed)
        self.now_ms = FIRST_MS + 20 * DAY_MS
        self.ends: dict[int, int] = {}
        # Where nights emptied a partition: the log has a segment from there on, as in Kafka.
        self.rolled: set[tuple[int, int]] = set()
        for partition in range(partitions):
            segments = [self._messages() for _ in range(self.random.randint(2, 6))]
            write_log(log, "t", segments, CONFIG, partition=partition)
            self.ends[partition] = sum(map(len, segments))
        self.ingest()
        self.mark()

    @property
    def both(self) -> tuple[TopicName, TopicName]:
        return self.name, self.twin

    def grow(self) -> None:
        """More in the active segments, and some new ones."""
        for partition in self.ends:
            folder = self.log / f"t-{partition}"
            for _ in range(self.random.randint(0, 3)):
                messages, end = self._messages(), self.ends[partition]
                is_new = self.random.random() < 0.6
                path = folder / f"{end:020}.log" if is_new else max(folder.glob("*.log"))
                held = path.read_bytes() if path.exists() else b""
                path.write_bytes(held + batch_of(messages, end))
                os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
                self.ends[partition] += len(messages)
        self.ingest()

    def ingest(self) -> None:
        for name in self.both:
            ingest(self.spark, str(name), self.log, self.now_ms)

    def mark(self) -> None:
        for name in self.both:
            mark(self.spark, str(name))

    def set_limits(self) -> None:
        days = self.random.randint(0, 12) * DAY_MS
        changes = {
            "kafka.retention.ms": self.random.choice([None, str(10 * DAY_MS + days)]),
            "kafka.retention.bytes": self.random.choice([None, "100", "300"]),
            "kafka.retention.max.eventtime.ms": self.random.choice([None, str(days)]),
            "kafka.delete.retention.ms": self.random.choice(["0", str(DAY_MS)]),
            "ebbtide.retention.granularity": self.random.choice(["record", "segment"]),
            "history.expire.max-snapshot-age-ms": self.random.choice([None, "0"]),
            "ebbtide.rewrite.deleted.ratio": self.random.choice([None, "0"]),
        }
        for name in self.both:
            set_properties(self.spark, str(name), changes)

    def night(self, *names: TopicName) -> str:
        """Mark both, and run some removing jobs on the named topics; the run's id."""
        self.set_limits()
        self.mark()
        self.now_ms += self.random.randint(1, 2 * DAY_MS)
        self.jobs.run_number += 1
        run_id = self.jobs.run_id
        for job in self._stages():
            asked = self._request() if job is delete_records else None
            for name in names:
                arguments = ("--topic", str(name)) if asked is None else of_request(name, asked)
                is_killed = names == (self.name,) and self.random.random() < 0.25
                self.run(job, run_id, *arguments, is_killed=is_killed)
                for partition, state in load(self.spark, self.name).partitions.items():
                    if state.log_start_offset == state.log_end_offset:
                        self.rolled.add((partition, state.log_end_offset))
        return run_id

    def run(self, job: ModuleType, run_id: str, *arguments: str, is_killed: bool = False) -> None:
        """Run a job; one that is killed at some commit, if it comes there, is run again."""
        given = [*arguments, "--now", at(self.now_ms).isoformat(), "--run-id", run_id]
        if is_killed:
            self.kill_at.append(self.random.choice(KILLS))
            job.main(given)
            self.kill_at.clear()
        assert job.main(given) == 0, (job.__name__, arguments)

    def undo(self, run_id: str) -> None:
        """Plan it and execute the plan."""
        plan = self.jobs.plan(undo_run, self.now_ms, "--topic", str(self.name), "--run", run_id)
        assert self.jobs.run(undo_run, "--plan", plan.plan_id, "--approved-by", "bob") == 0

    def still_stands(self, run_id: str) -> bool:
        """Whether the run removed from some partition and is not undone there."""
        return bool(points_to_undo(read_points(self.spark, self.name), run_id))

    def change(self) -> None:
        """Something between two nights."""
        actions: list[Callable[[], Any]] = [self.grow, self.grow, self.mark]
        self.random.choice(actions)()

    def assert_alike(self) -> None:
        """Both have the same rows, whatever segments these lie in, and the same state."""
        self.mark()
        tables = (
            (self.name.records_table, self.twin.records_table),
            (self.name.batches_table, self.twin.batches_table),
        )
        for table, twin in tables:
            assert rows_of(self.spark, table) == rows_of(self.spark, twin)
        for partition, of_twin in states_of(self.spark, self.twin).items():
            state = states_of(self.spark, self.name)[partition]
            state["segments"] = tuple(
                segment
                for segment in state["segments"]
                if segment in of_twin["segments"]
                or (partition, segment.base_offset) not in self.rolled
            )
            assert state == of_twin, partition
        assert_counted(self.spark, self.name)
        assert_in_one_segment(self.spark, self.name)

    def _stages(self) -> list[ModuleType]:
        stages = [clean_log, expire_segments, delete_records, expire_snapshots]
        chosen = [job for job in stages if self.random.random() < 0.7]
        return chosen or [clean_log]

    def _request(self) -> list[dict[str, int]]:
        return [
            {"partition": p, "offset": self.random.randint(0, end)}
            for p, end in self.ends.items()
            if self.random.random() < 0.5
        ] or [{"partition": 0, "offset": 1}]

    def _messages(self) -> list[Message]:
        return [
            Message(
                self.random.choice("abcd"),
                self.random.choice(["1", "2", None]),
                self.random.randrange(10 * DAY_MS),
            )
            for _ in range(self.random.randint(1, 4))
        ]


def of_request(name: TopicName, partitions: list[dict[str, int]]) -> tuple[str, str]:
    asked = {"topic": str(name), "partitions": partitions}
    return "--request", json.dumps({"topics": [asked]})


def rows_of(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    """Return a data table's rows in order, without the segments that they lie in."""
    rows: list[dict[str, Any]] = spark.table(table).drop("segment").toArrow().to_pylist()
    by = "offset" if "offset" in rows[0] else "base_offset" if rows else ""
    return sorted(rows, key=lambda row: (row["partition"], row[by]))


def states_of(spark: SparkSession, name: TopicName) -> dict[int, dict[str, Any]]:
    """Return the state, without what retention noted of its next run."""
    states = load(spark, name).partitions
    noted = ("next_expiry_ms", "expiry_basis", "place")
    fields = [name for name in PartitionState.__dataclass_fields__ if name not in noted]
    return {p: {name: getattr(state, name) for name in fields} for p, state in states.items()}


def assert_in_one_segment(spark: SparkSession, name: TopicName) -> None:
    """A batch's row and its records lie in the same segment, and segments do not overlap."""
    lost = spark.sql(
        f"SELECT count(*) FROM {name.records_table} r JOIN {name.batches_table} b "
        "ON r.partition = b.partition AND r.batch = b.base_offset WHERE r.segment != b.segment"
    ).first()
    assert lost is not None
    assert lost[0] == 0
    spans = spark.sql(
        "SELECT `partition`, segment, min(base_offset), max(last_offset) "
        f"FROM {name.batches_table} GROUP BY 1, 2 ORDER BY 1, 2"
    ).collect()
    for before, after in pairwise(spans):
        if before[0] == after[0]:
            assert before[3] < after[2], (before, after)
