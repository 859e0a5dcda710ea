"""Whatever comes between a plan and its execution, nothing leaves but what the plan has."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from jobs import clean_log, delete_records, expire_segments
from tests.fresh_seed import seeds
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, clean, expire, ingest, mark, set_properties
from tests.tables.planned import Jobs
from tests.tables.planned import jobs as jobs

pytestmark = pytest.mark.long

PARTITIONS = (0, 1)
CONFIG = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
TOPICS = 3


class RandomTopic:
    """A topic that grows and changes by a seed."""

    def __init__(self, sandbox: LakeSandbox, name: TopicName, log: Path, seed: int) -> None:
        self.spark, self.name, self.log = sandbox.session, name, log
        self.random = random.Random(seed)
        self.now_ms = FIRST_MS + 20 * DAY_MS
        self.ends: dict[int, int] = {}
        for partition in PARTITIONS:
            segments = [self._messages() for _ in range(self.random.randint(2, 6))]
            write_log(log, name.topic, segments, CONFIG, partition=partition)
            self.ends[partition] = sum(map(len, segments))
        self._ingest()
        self._mark()
        self._set_limits()

    def change(self) -> None:
        """Do something that others may do between a plan and its execution."""
        actions: list[Callable[[], object]] = [
            *(self._grow, self._mark, self._set_limits),
            lambda: clean(self.spark, str(self.name), self._about_now()),
            lambda: expire(self.spark, str(self.name), self._about_now()),
        ]
        self.random.choice(actions)()

    def rows(self) -> set[tuple[int, int]]:
        """Partition and offset of each record at or above its log start offset."""
        starts = {p: s.log_start_offset for p, s in load(self.spark, self.name).partitions.items()}
        rows = self.spark.table(self.name.records_table).select("partition", "offset").collect()
        return {(p, offset) for p, offset in rows if offset >= starts[p]}

    def request(self) -> tuple[str, str]:
        """A DeleteRecords request for somewhere in each partition."""
        partitions = [
            {"partition": p, "offset": self.random.randint(-1, end)}
            if self.random.random() < 0.5
            else {"partition": p, "timestamp": FIRST_MS + self.random.randrange(11 * DAY_MS)}
            for p, end in self.ends.items()
        ]
        asked = {"topic": str(self.name), "partitions": partitions}
        return "--request", json.dumps({"topics": [asked]})

    def _about_now(self) -> int:
        return self.now_ms + self.random.randint(-DAY_MS, DAY_MS)

    def _messages(self) -> list[Message]:
        return [
            Message(
                self.random.choice("abcd"),
                self.random.choice(["1", "2", None]),
                self.random.randrange(10 * DAY_MS),
            )
            for _ in range(self.random.randint(1, 4))
        ]

    def _grow(self) -> None:
        """More in the active segments, and some new ones."""
        for partition in PARTITIONS:
            folder = self.log / f"{self.name.topic}-{partition}"
            for _ in range(self.random.randint(0, 3)):
                messages, end = self._messages(), self.ends[partition]
                is_new = self.random.random() < 0.6
                path = folder / f"{end:020}.log" if is_new else max(folder.glob("*.log"))
                held = path.read_bytes() if path.exists() else b""
                path.write_bytes(held + batch_of(messages, end))
                os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
                self.ends[partition] += len(messages)
        self._ingest()

    def _ingest(self) -> None:
        ingest(self.spark, str(self.name), self.log, self.now_ms)

    def _mark(self) -> None:
        mark(self.spark, str(self.name))

    def _set_limits(self) -> None:
        days = self.random.randint(0, 12) * DAY_MS
        changes = {
            "kafka.retention.ms": self.random.choice([None, str(10 * DAY_MS + days)]),
            "kafka.retention.bytes": self.random.choice([None, "100", "300"]),
            "kafka.retention.max.eventtime.ms": self.random.choice([None, str(days)]),
            "kafka.delete.retention.ms": self.random.choice(["0", str(DAY_MS)]),
            "ebbtide.retention.granularity": self.random.choice(["record", "segment"]),
        }
        set_properties(self.spark, str(self.name), changes)


@pytest.mark.parametrize(
    "job", [clean_log, expire_segments, delete_records], ids=["clean", "expire", "delete"]
)
@pytest.mark.parametrize("seed", seeds(__file__, *range(1, TOPICS)))
def test_an_execution_removes_nothing_beyond_its_plan(
    sandbox: LakeSandbox, jobs: Jobs, cluster: str, tmp_path: Path, job: ModuleType, seed: int
) -> None:
    topic = RandomTopic(sandbox, TopicName(cluster, "t"), tmp_path / "log", seed)
    asked = topic.request() if job is delete_records else ("--topic", str(topic.name))
    kept = jobs.plan(job, topic.now_ms, *asked)
    assert kept.removes is not None
    planned = {(p, offset) for p, offsets in kept.removes.items() for offset in offsets}
    changes = topic.random.randint(0, 3)
    for _ in range(changes):
        topic.change()
    before = topic.rows()
    code = jobs.run(job, "--plan", kept.plan_id, "--approved-by", "bob")
    gone = before - topic.rows()
    assert gone <= planned
    if not changes:
        assert (code, gone) == (ExitCode.DONE, planned & before)
    if code != ExitCode.DONE:
        failed = jobs.last_run()
        # It would remove more than its plan, or a changed setting keeps what the plan removes.
        cut_short = "found fewer, because the topic has changed" in failed.error
        assert failed.error_class == ("PlanError" if cut_short else "PlanExceededError")
        assert not gone
