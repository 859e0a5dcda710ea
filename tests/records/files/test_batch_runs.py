"""Batches read in runs are those read one by one, sound or not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from crc32c import crc32c
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ebbtide.errors import SourceError
from ebbtide.records import batch as batch_runs
from ebbtide.records import segment_reader
from ebbtide.records.attributes import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from ebbtide.records.batch import CRC_COVERS_FROM, CRC_START, HEADER, find_run
from ebbtide.records.compression import Codec
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.records.segment_reader import read_records, walk_segment

NEVER, ALWAYS = 10**9, 1
T0 = 1_795_000_000_000


@st.composite
def batches(draw: st.DrawFn, base: int) -> tuple[bytes, int]:
    """A batch of some records from an offset on, and the offset after it."""
    deltas = draw(st.lists(st.integers(0, 9), max_size=12, unique=True).map(sorted))
    after = base + (deltas[-1] if deltas else 0) + 1
    flags = (0, TRANSACTIONAL, LOG_APPEND_TIME, DELETE_HORIZON, 1 << 9, CONTROL)
    attributes = draw(st.sampled_from((0, *flags)))
    if attributes == CONTROL:
        marker = Record(base, T0, b"\0\0\0\1", b"\0\0\0\0\0\0")
        return write_batch(BatchFields(attributes=CONTROL | TRANSACTIONAL), [marker]), base + 1
    if not deltas:
        fields = BatchFields(base_offset=base, last_offset=base, max_timestamp_ms=T0)
        return write_batch(fields, []), after
    records = [
        Record(
            base + delta,
            T0 + draw(st.integers(-500, 500)),
            draw(st.none() | st.binary(max_size=5)),
            draw(st.none() | st.binary(max_size=200)),
            draw(st.lists(st.tuples(st.just(b"h"), st.none() | st.binary(max_size=3)), max_size=2)),
        )
        for delta in deltas
    ]
    codec = draw(st.sampled_from([Codec.NONE, Codec.NONE, *Codec]))
    return write_batch(BatchFields(attributes=attributes), records, codec), after


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches one after another, now and then with a byte changed, CRC and all, or torn off."""
    chunks, base = list[bytes](), 0
    for _ in range(draw(st.integers(0, 12))):
        base += draw(st.sampled_from([0, 0, 3]))
        batch, base = draw(batches(base))
        chunks.append(batch)
    change = draw(st.sampled_from(["none", "a byte", "a byte and the CRC"]))
    if chunks and change != "none":
        number = draw(st.integers(0, len(chunks) - 1))
        chunks[number] = draw(changed(chunks[number], has_new_crc=change != "a byte"))
    log = b"".join(chunks)
    return log[: len(log) - draw(st.sampled_from([0, 0, 0, 5]))]


@st.composite
def changed(draw: st.DrawFn, batch: bytes, *, has_new_crc: bool) -> bytes:
    """The batch with another byte; with a CRC that fits, only rules on fields can notice."""
    start = draw(st.sampled_from([0, CRC_COVERS_FROM, HEADER.size]))
    at = draw(st.integers(min(start, len(batch) - 1), len(batch) - 1))
    batch = batch[:at] + bytes([batch[at] ^ draw(st.integers(1, 255))]) + batch[at + 1 :]
    if has_new_crc:
        crc = crc32c(batch[CRC_COVERS_FROM:]).to_bytes(4, "big")
        batch = batch[:CRC_START] + crc + batch[CRC_COVERS_FROM:]
    return batch


def told(path: Path, first_offset: int, least: int, rows: int, window: int) -> list[object]:
    """What reading says, or its error."""
    import pyarrow as pa

    with (
        patch.object(batch_runs, "LEAST_BATCHES", least),
        patch("ebbtide.records.segment_reader.CHUNK_BYTES", window),
        patch("ebbtide.stores.store.WINDOW_BYTES", window),
    ):
        try:
            walk = walk_segment(str(path), max_batch_bytes=10_000)
            chunks = list(
                read_records(
                    str(path), 0, walk.valid_bytes, first_offset=first_offset, rows_per_chunk=rows
                )
            )
        except SourceError as error:
            return [type(error), str(error)]
    records = pa.Table.from_batches(chunks).to_pylist() if chunks else []
    return [walk.batches.to_pylist(), walk.valid_bytes, walk.torn, records]


@pytest.mark.parametrize("examples", [60, pytest.param(400, marks=pytest.mark.long)])
def test_runs_say_what_batches_one_by_one_say(examples: int) -> None:
    @settings(max_examples=examples)
    @given(logs(), st.integers(0, 40), st.integers(1, 30), st.sampled_from([100, 1_000, 100_000]))
    def compare(log: bytes, first_offset: int, rows: int, window: int) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, f"{0:020}.log")
            path.write_bytes(log)
            expected = told(path, first_offset, NEVER, 16_384, 100_000)
            event("refused" if len(expected) == 2 else "read")
            assert told(path, first_offset, ALWAYS, rows, window) == expected

    compare()


def single(offset: int) -> bytes:
    return write_batch(BatchFields(), [Record(offset, T0, b"k", b"v")])


def patched(at: int, value: bytes) -> bytes:
    """The batch at offset 20 with other bytes, and the CRC that fits them."""
    batch = single(20)
    batch = batch[:at] + value + batch[at + len(value) :]
    crc = crc32c(batch[CRC_COVERS_FROM:]).to_bytes(4, "big")
    return batch[:CRC_START] + crc + batch[CRC_COVERS_FROM:]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(single(20)[:-1] + b"w", id="another CRC"),
        pytest.param(single(19), id="an offset that was there"),
        pytest.param(single(2**31), id="an offset beyond the index"),
        pytest.param(patched(0, (2**63 - 1).to_bytes(8, "big")), id="the largest offset"),
        pytest.param(patched(12, b"\xff\xff\xff\xfe"), id="a leader epoch of -2"),
        pytest.param(patched(22, b"\x05"), id="a codec that is none"),
        pytest.param(patched(57, b"\x00\x00\x00\x02"), id="more records than offsets"),
        pytest.param(patched(57, b"\xff\xff\xff\xff"), id="a negative count"),
        pytest.param(patched(61, b"\x0a"), id="a record too short"),
        pytest.param(patched(61, b"\x12"), id="a record longer than its batch"),
        pytest.param(patched(61, b"\x0f"), id="a record of negative length"),
    ],
)
def test_what_is_refused_one_by_one_is_refused_in_a_run(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / f"{0:020}.log"
    sound = [single(offset) for offset in range(20)]
    path.write_bytes(b"".join([*sound, bad, single(2**31 + 1)]))
    expected = told(path, 0, NEVER, 16_384, 100_000)
    assert len(expected) == 2
    assert told(path, 0, ALWAYS, 16_384, 100_000) == expected


def test_a_run_ends_before_a_batch_that_others_read(tmp_path: Path) -> None:
    sound = [write_batch(BatchFields(), [Record(i, T0, b"k", b"v")]) for i in range(20)]
    marker = write_batch(BatchFields(attributes=CONTROL), [Record(20, T0, b"\0\0\0\1", b"")])
    run = find_run(memoryview(b"".join([*sound, marker])), 7, 1_000, CONTROL)
    assert run is not None
    assert run.column("base_offset").tolist() == list(range(20))
    assert run.end == 7 + sum(map(len, sound))
    assert find_run(memoryview(b"".join(sound[:15])), 0, 1_000, CONTROL) is None


def test_a_log_of_single_records_is_read_in_runs_and_by_chunks(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(
        b"".join(write_batch(BatchFields(), [Record(i, T0, b"k", b"v")]) for i in range(100))
    )
    with patch.object(segment_reader, "_check_frame", side_effect=AssertionError("one by one")):
        walk = walk_segment(str(path), max_batch_bytes=1_000)
    assert walk.batches.num_rows == 100
    chunks = list(read_records(str(path), 0, walk.valid_bytes, rows_per_chunk=30))
    assert [chunk.num_rows for chunk in chunks] == [30, 30, 30, 10]


def test_a_chunk_has_whole_batches_and_no_remainder(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.log"
    bases = range(0, 30, 3)
    path.write_bytes(
        b"".join(
            write_batch(BatchFields(), [Record(base + i, T0, b"k", b"v") for i in range(3)])
            for base in bases
        )
    )
    with patch.object(batch_runs, "LEAST_BATCHES", ALWAYS):
        chunks = list(read_records(str(path), 0, path.stat().st_size, rows_per_chunk=10))
    assert [chunk.num_rows for chunk in chunks] == [9, 9, 9, 3]
