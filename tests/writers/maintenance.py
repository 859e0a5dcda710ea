"""Iceberg's own procedures on tables, at random moments, while others write and delete there."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Self
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import ADOPTED_SEEN
from tests.tables.other_tools import REWRITE_ALL

REWRITING, MANIFESTS = "rewrite_data_files", "rewrite_manifests"
EXPIRY, ORPHANS = "expire_snapshots", "remove_orphan_files"
PROCEDURES = (REWRITING, MANIFESTS, EXPIRY, ORPHANS)
# Sinks find their offsets in snapshots: whoever expires the youngest makes them write twice.
SPARED_SECONDS = 20
PAUSE_SECONDS = (0.2, 3.0)
# A tool that another commit has overtaken; it does the same in its next run.
OVERTAKEN = ("ValidationException", "CommitFailedException")


class Maintenance:
    """Calls procedures on topics' tables between `with` and `stop`, all of them again and again.

    `done` counts the calls by procedure, `overtaken` those whose commit came too late. `orphans`
    are files that nobody needs, as old as the procedure wants them.
    """

    def __init__(self, spark: SparkSession, names: Sequence[str], seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.overtaken: Counter[str] = Counter()
        self._spark = spark
        self._names = [TopicName.parse(name) for name in names]
        self.orphans = [_orphan(spark, name) for name in self._names]
        self._rng = random.Random(f"maintenance {seed}")
        self._errors: list[Exception] = []
        self._ended = Event()
        self._thread = Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def stop(self) -> None:
        """End, once each procedure was called; none may have failed otherwise than overtaken."""
        while self._thread.is_alive() and self.done.keys() != set(PROCEDURES):
            time.sleep(0.2)
        self._ended.set()
        self._thread.join()
        assert not self._errors, self._errors

    def _work(self) -> None:
        try:
            while True:
                for procedure in self._rng.sample(PROCEDURES, len(PROCEDURES)):
                    for name in self._rng.sample(self._names, len(self._names)):
                        if self._ended.wait(self._rng.uniform(*PAUSE_SECONDS)):
                            return
                        self._call(procedure, name)
        except Exception as error:
            self._errors.append(error)

    def _call(self, procedure: str, name: TopicName) -> None:
        arguments: dict[str, Callable[[TopicName], str]] = {
            REWRITING: lambda _: f", options => {REWRITE_ALL}",
            EXPIRY: self._expiry,
        }
        more = arguments.get(procedure, lambda _: "")(name)
        try:
            self._spark.sql(f"CALL lake.system.{procedure}(table => '{name}'{more})").collect()
        except Py4JJavaError as error:
            if not any(words in str(error) for words in OVERTAKEN):
                raise
            self.overtaken[procedure] += 1
        self.done[procedure] += 1

    def _expiry(self, name: TopicName) -> str:
        """Expire what is older than the last night's look, and not of the last seconds."""
        until = datetime.now(UTC) - timedelta(seconds=SPARED_SECONDS)
        seen = load(self._spark, name).properties.get(ADOPTED_SEEN)
        snapshot = seen and java_table(self._spark, name.records_table).snapshot(int(seen))
        if snapshot:
            at = datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)
            until = min(until, at)
        return f", older_than => TIMESTAMP '{until:%Y-%m-%d %H:%M:%S.%f}', retain_last => 1"


def _orphan(spark: SparkSession, name: TopicName) -> Path:
    """Put a file of last week beside the table's own."""
    location = Path(urlsplit(java_table(spark, name.records_table).location()).path)
    file = location / "data" / "orphan.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"of a writer that died")
    week_ago = time.time() - 7 * 86_400
    os.utime(file, (week_ago, week_ago))
    return file
