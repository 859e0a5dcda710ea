"""One byte of a batch is another, and its CRC is right: no broker wrote it, and no check tells.

What an ingest makes of it is what Kafka's classes read there, or an error that names the file.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from ebbtide.errors import SourceError
from ebbtide.jobs.ingest_segments.source import SourceLog, first_offsets, records_of
from ebbtide.jobs.ingest_segments.stage import ingest_segments, records_to_read
from ebbtide.kafka.batch_header import COMMIT
from ebbtide.records.arrays import to_ms
from ebbtide.records.compression import Codec
from ebbtide.records.decoding import with_own_keys
from ebbtide.records.log_directory_writer import (
    BatchFields,
    Record,
    header_pairs,
    with_crc,
    without_kept_time,
    write_batch,
)
from ebbtide.records.segment_reader import MAX_BATCH_BYTES, BatchLimits
from ebbtide.state.topic_state import parse_states, to_properties
from ebbtide.stores.store import AMBIENT
from tests.fresh_seed import seeds
from tests.jobs.ingest_segments.conftest import NOW_MS, SmallLog
from tests.jobs.ingest_segments.taken_logs import COMPACT, take
from tests.kafka.oracle import OracleResult, try_oracle
from tests.kafka.oracle import SourceLog as LogForKafka
from tests.log.log_files import marker, transactional
from tests.records.test_legacy import message_set
from tests.tables.nights import DAY_MS, clean, expire, mark, source_of
from tests.tables.partition_log import T0, batch, partition_path, segment_path, write_segments

HEADERS = [(b"a", b"1"), ("é".encode(), None)]
RECORDS = [
    Record(0, T0, b"k0", b"v"),
    Record(1, T0 + 7, None, b"", HEADERS),
    Record(3, T0 - 5, b"k1", None),
    Record(4, T0 + 9, b"", b"v" * 70, HEADERS[:1]),
]
OLD = [(0, T0, b"k", b"v"), (1, T0 + 1, None, b"x"), (2, T0 + 2, b"l", None)]
LOGS = {
    **{f"of codec {codec.name}": write_batch(BatchFields(), RECORDS, codec) for codec in Codec},
    "two batches": batch(0, 3) + batch(3, 2),
    "of a transaction": transactional(0, "a", producer=1, at_ms=T0)
    + marker(1, COMMIT, producer=1, at_ms=T0)
    + batch(2),
    "of magic 0": message_set(0, 0, OLD, 2),
    "of magic 1": message_set(1, 0, OLD, 2),
    "of magic 1, compressed": message_set(1, 1, OLD, 2) + batch(3),
}
FLIPS = 40  # of each log
HEADER_BYTES = 61
LIMITS = BatchLimits(MAX_BATCH_BYTES, 1 << 24)
NOW = pa.scalar(datetime.fromtimestamp(T0 / 1000, UTC), pa.timestamp("us", "UTC"))

# Every rule applies, and each batch is dirty.
COMPACTED = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.retention.ms": "1",
    "kafka.retention.max.eventtime.ms": str(2**62),
    "ebbtide.max.delete.ratio": "1",
}

Row = tuple[object, ...]


def resealed(data: bytes) -> bytes:
    """The batches with right CRCs, as far as their lengths lead from one to the next."""
    sealed, at = bytearray(data), 0
    while at + HEADER_BYTES <= len(data) or at + 17 < len(data):
        end = at + 12 + int.from_bytes(sealed[at + 8 : at + 12], "big", signed=True)
        if not at + 17 < end <= len(data):
            break
        if sealed[at + 16] == 2 and end - at >= HEADER_BYTES:
            sealed[at:end] = with_crc(bytes(sealed[at:end]))
        elif sealed[at + 16] in (0, 1):
            sealed[at + 12 : at + 16] = zlib.crc32(sealed[at + 16 : end]).to_bytes(4, "big")
        at = end
    return bytes(sealed)


def flipped(seed: int, name: str, flips: int = FLIPS) -> Iterator[bytes]:
    """Copies of a log with one byte changed, at the same places for the same seed."""
    chosen, data = random.Random(f"{seed} {name}"), LOGS[name]
    for _ in range(flips):
        changed = bytearray(data)
        changed[chosen.randrange(len(data))] ^= chosen.choice([1, 0x80, 0xFF, 1 << 6, 1 << 3])
        yield resealed(bytes(changed))


def rows_of(log: SourceLog) -> list[Row]:
    """The records as an ingest appends them."""
    rows: list[Row] = []
    for wanted in records_to_read(0, log):
        for table in records_of(NOW, LIMITS, AMBIENT, wanted):
            table.validate(full=True)
            names = ("offset", "batch", "key", "value", "attributes")
            columns = [table[name].to_pylist() for name in names]
            times_ms = to_ms(table["timestamp"]).tolist()
            for row, kept, column_ms in zip(
                zip(*columns, strict=True), table["headers"].to_pylist(), times_ms, strict=True
            ):
                headers, time_ms = without_kept_time(header_pairs(kept), column_ms)
                # A consumer shows keys that are not UTF-8 as Java decodes them.
                own = with_own_keys(headers)
                named = tuple((name.decode(errors="replace"), value) for name, value in own)
                rows.append((*row, time_ms, named))
    return rows


def taken(directory: Path) -> list[Row] | SourceError:
    """What an ingest appends of partition 0, or why it takes nothing of it.

    What it writes to the state can be read again.
    """
    log = take(directory, rule=COMPACT)
    first_offsets(log, {})
    state = log.state_after(None, -1)
    assert state is None or parse_states(to_properties(0, state)) == {0: state}
    try:
        rows = rows_of(log)
    except SourceError as error:
        return error
    (error,) = log.errors or (None,)
    assert error is None or isinstance(error, SourceError)
    return rows if error is None else error


@pytest.mark.parametrize("seed", seeds(__file__, 1))
@pytest.mark.parametrize("name", LOGS)
def test_a_byte_with_a_right_crc_is_an_error_of_the_file_or_rows(
    tmp_path: Path, name: str, seed: int
) -> None:
    for data in flipped(seed, name):
        write_segments(tmp_path, {0: [data]})
        found = taken(tmp_path)
        if isinstance(found, SourceError):
            assert str(found).startswith(f"{segment_path(tmp_path, 0)}: expected ")


def test_rows_of_such_a_byte_are_those_that_kafkas_classes_read(
    kafka_jars: Path, tmp_path: Path
) -> None:
    """All that Kafka reads otherwise, or not at all, an ingest refuses."""
    rows: dict[Path, list[Row]] = {}
    for name in LOGS:
        for number, data in enumerate(flipped(1, name, 12)):
            directory = tmp_path / name.replace(" ", "_") / str(number)
            write_segments(directory, {0: [data], 10: []})
            found = taken(directory)
            if not isinstance(found, SourceError):
                rows[directory] = found
    assert len(rows) > 30
    logs = [
        LogForKafka(directory=partition_path(path), config={"cleanup.policy": "compact"}, rounds=())
        for path in rows
    ]
    for (path, found), result in zip(rows.items(), try_oracle(logs, kafka_jars), strict=True):
        assert isinstance(result, OracleResult), (path, result)
        by_kafka = [
            (r.offset, r.batch, r.key, r.value, r.attributes, r.timestamp_ms, r.headers)
            for r in result.initial.records
            if not r.is_control
        ]
        assert found == by_kafka, path


@pytest.mark.long
def test_an_ingest_takes_such_rows_and_names_each_file_that_it_refuses(
    empty: SmallLog, tmp_path: Path
) -> None:
    """Two flips of each log, each in a partition of its own."""
    found: dict[int, list[Row] | SourceError] = {}
    for name in LOGS:
        for data in flipped(1, name, 2):
            partition = len(found)
            empty.write({0: [data], 10: []}, partition)
            write_segments(tmp_path / str(partition), {0: [data], 10: []})
            found[partition] = taken(tmp_path / str(partition))
    source = replace(source_of(empty.source, NOW_MS), settings=COMPACTED)
    error = ingest_segments(empty.spark, empty.name, source).error
    assert isinstance(error, SourceError)
    refused = {p for p, rows in found.items() if isinstance(rows, SourceError)}
    assert 2 < len(refused) < len(found) - 2
    held = empty.spark.table(empty.name.records_table).orderBy("partition", "offset")
    offsets: dict[int, list[int]] = {partition: [] for partition in found}
    for row in held.select("partition", "offset").collect():  # some of their years have no date
        offsets[row["partition"]].append(row["offset"])
    for partition, rows in found.items():
        assert (f"{empty.path(0, partition)}: expected " in str(error)) == (partition in refused)
        if not isinstance(rows, SourceError):
            assert offsets[partition] == [row[0] for row in rows]
    mark(empty.spark, str(empty.name))
    for now_ms in (NOW_MS, NOW_MS + 10 * DAY_MS):
        clean(empty.spark, str(empty.name), now_ms)
        expire(empty.spark, str(empty.name), now_ms)
