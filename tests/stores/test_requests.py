"""How often jobs ask a store for data files that are too large to be read whole."""

from __future__ import annotations

import base64
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from ebbtide.iceberg import file_changes
from ebbtide.iceberg.data_files import read_segment
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records import segment_reader
from ebbtide.settings.names import TopicName
from ebbtide.stores import store
from ebbtide.stores.store import WHOLE_BYTES
from tests.lake_sandbox import LakeSandbox
from tests.services.cells import CellSandbox
from tests.services.faulty_s3 import Asked, FaultyS3
from tests.services.s3_api import BUCKET, S3Api
from tests.stores.nights import COMPACT, NIGHT_MS
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import clean, expire, ingest, mark, set_properties

pytestmark = pytest.mark.long

MOST_REQUESTS = 6  # for a data file that a job reads
BATCH_RECORDS, VALUE_BYTES = 100, 6000


class Read(NamedTuple):
    """A request for a part of a file, or for its size."""

    path: str
    range: str | None


class OnS3(NamedTuple):
    """A lake in a store, and the proxy that sees what the store is asked for."""

    lake: LakeSandbox
    proxy: FaultyS3

    def reads(self, work: Callable[[], object], suffix: str) -> list[Read]:
        """What the work reads of data files, or vectors, whose names end so."""
        reads: list[Read] = []

        def keep(asked: Asked) -> None:
            path = unquote(asked.path)
            if asked.method in ("GET", "HEAD") and "/data/" in path and path.endswith(suffix):
                reads.append(Read(path, asked.headers.get("Range")))

        with self.proxy.having(keep):
            work()
        return reads


@pytest.fixture
def on_s3(s3: S3Api, tmp_path: Path) -> Iterator[OnS3]:
    with FaultyS3(s3.endpoint) as proxy:
        settings = {"warehouse": f"s3://{BUCKET}/{tmp_path.name}", **s3.settings()}
        lake = CellSandbox(tmp_path / "lake", {**settings, "s3.endpoint": proxy.endpoint})
        yield OnS3(lake, proxy)


@pytest.fixture
def large_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two segments of 10 MB in several row groups, superseded in part, and two small ones."""
    for limit in ((file_changes, "GROUP_BYTES"), (segment_reader, "CHUNK_BYTES")):
        monkeypatch.setattr(*limit, 2 * 1024 * 1024)
    log = write_log(tmp_path / "log", "t", [], COMPACT)
    offset = 0
    for keys in (range(1600), range(1000, 2600), range(2500, 2600), range(9999, 10_000)):
        _write_segment(log, offset, [_message(key) for key in keys])
        offset += len(keys)
    return log


def _message(key: int) -> Message:
    value = random.Random(key).randbytes(VALUE_BYTES)
    return Message(f"k{key}", base64.b64encode(value).decode())


def _write_segment(log: Path, offset: int, messages: list[Message]) -> None:
    path = log / "t-0" / f"{offset:020}.log"
    with path.open("wb") as file:
        for start in range(0, len(messages), BATCH_RECORDS):
            batch = messages[start : start + BATCH_RECORDS]
            file.write(batch_of(batch, offset + start))
    os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))


def test_a_job_asks_little_of_a_large_file_and_an_idle_one_nothing(
    on_s3: OnS3, s3: S3Api, cluster: str, large_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, spark = f"{cluster}.t", on_s3.lake.session
    ingest(spark, name, large_log, FIRST_MS)
    listed = spark.sql(f"SELECT file_path, file_size_in_bytes FROM lake.{name}.data_files")
    large = [path for path, size in listed.collect() if size > WHOLE_BYTES]
    assert len(large) == 2
    for path in large:
        footer = pq.read_metadata(path.removeprefix("s3://"), filesystem=s3.file_system())
        assert footer.num_row_groups > 3

    assert_few(on_s3.reads(lambda: mark(spark, name), ".parquet"), 0)
    removed = []
    cleaning = partial(clean, spark, name, NIGHT_MS)
    assert_few(on_s3.reads(lambda: removed.append(cleaning().rows_removed), ".parquet"), 8)
    monkeypatch.setattr(store, "REFUSAL_BYTES", 1)  # these vectors are smaller
    assert_one_range_each(on_s3.reads(lambda: read_records(on_s3.lake, name), ".puffin"), 2)
    assert on_s3.reads(lambda: mark(spark, name), "") == []
    assert on_s3.reads(cleaning, "") == []
    policy = {"kafka.cleanup.policy": "compact,delete", "kafka.retention.bytes": "1"}
    set_properties(spark, name, policy)
    expiring = partial(expire, spark, name, NIGHT_MS)
    assert_few(on_s3.reads(lambda: removed.append(expiring().rows_removed), ".parquet"), 2)
    assert removed == [700, 2600]


def read_records(lake: LakeSandbox, name: str) -> None:
    table = TopicName.parse(name).records_table
    snapshot = current_snapshot(lake.session, table)
    assert snapshot is not None
    for unit in plan_segments(lake.session, table, snapshot, {0: MAX_OFFSET}):
        read_segment(unit, ("offset",))


def assert_one_range_each(reads: list[Read], vectors: int) -> None:
    """All vectors lie in one Puffin file, of which each read takes another part."""
    assert len({read.path for read in reads}) == 1
    ranges = [read.range for read in reads if read.range]
    assert len(ranges) == len(set(ranges)) == vectors


def assert_few(reads: list[Read], files: int) -> None:
    """So many files are read, none of them by many requests."""
    asked = Counter(read.path for read in reads)
    assert len(asked) >= files
    assert max(asked.values(), default=0) <= MOST_REQUESTS, asked
