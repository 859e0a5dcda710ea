"""A topic of a test's own, and the stages of a night on it, called as jobs call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ebbtide.iceberg.topics import PropertyChanges, Topic, load
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.delete_request import TopicRequest
from ebbtide.specs.erase_request import FromOffset
from tests.lake_sandbox import LakeSandbox
from tests.tables.kafka_view import View, offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import answer_request, clean, expire, ingest, mark, set_properties


class Bench:
    """The topic `t` of the test's own cluster, its log directory, and the jobs on it."""

    def __init__(self, sandbox: LakeSandbox, name: TopicName, home: Path) -> None:
        self.sandbox, self.spark, self.name, self.home = sandbox, sandbox.session, name, home

    @property
    def tables(self) -> tuple[str, str]:
        return self.name.records_table, self.name.batches_table

    def log(
        self,
        segments: Sequence[Sequence[Message]],
        config: Mapping[str, str],
        now_ms: int = FIRST_MS,
        folder: str = "log",
    ) -> Path:
        """Write a log directory and ingest it; the directory."""
        directory = write_log(self.home / folder, "t", segments, config)
        self.ingest(directory, now_ms)
        return directory

    def ingest(self, directory: Path, now_ms: int, *, accept_gap: bool = False) -> JobOutcome:
        return ingest(self.spark, str(self.name), directory, now_ms, accept_gap=accept_gap)

    def mark(self, again: Sequence[FromOffset] = (), now_ms: int = 0) -> JobOutcome:
        return mark(self.spark, str(self.name), again, now_ms)

    def clean(self, now_ms: int) -> JobOutcome:
        return clean(self.spark, str(self.name), now_ms)

    def expire(self, now_ms: int) -> JobOutcome:
        return expire(self.spark, str(self.name), now_ms)

    def answer(self, asked: TopicRequest, now_ms: int, **options: Any) -> JobOutcome:
        """Answer a DeleteRecords request."""
        return answer_request(self.spark, self.name, asked, now_ms, **options)

    def delete(self, requested: dict[int, int], now_ms: int = FIRST_MS) -> JobOutcome:
        """Delete records up to these offsets, by partition."""
        return execute_delete(plan_delete(self.load(), requested, now_ms))

    def set(self, changes: PropertyChanges) -> None:
        """Set settings and state as they are asked for, without any check."""
        set_properties(self.spark, str(self.name), changes)

    def load(self) -> Topic:
        return load(self.spark, self.name)

    def view(self, partition: int = 0) -> View:
        return view_of_table(self.spark, self.name, partition)

    def left(self, partition: int = 0) -> list[int]:
        """The offsets of the records that are left."""
        return offsets(self.view(partition))


@pytest.fixture
def empty(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> Bench:
    """A bench without a log."""
    return Bench(sandbox, TopicName(cluster, "t"), tmp_path)


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A file of tests may ingest its log."""
    return empty
