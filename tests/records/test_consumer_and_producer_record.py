"""Records that were built, written and read again; KIP-87's tombstones on both sides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import CorruptSegmentError, RequestError
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.compression import Codec
from ebbtide.records.consumer_record import (
    ConsumerRecord,
    TimestampType,
    is_tombstone,
    read_segment,
    read_topic,
)
from ebbtide.records.log_directory_writer import BatchFields, partition_name
from ebbtide.records.producer_record import ProducerRecord, build_batch, write_segment
from tests.kafka.conftest import kafka_jars as kafka_jars
from tests.kafka.oracle import SourceLog, run_oracle
from tests.records.builders import T0, batch_of, segment
from tests.records.test_legacy import message_set, resealed

BYTES = st.none() | st.binary(max_size=8)
RECORDS = st.lists(
    st.builds(
        lambda value, tombstone, **fields: ProducerRecord(
            topic="t", value=value, tombstone=None if value is None else tombstone, **fields
        ),
        value=BYTES,
        tombstone=st.none() | st.booleans(),
        key=BYTES,
        timestamp_ms=st.none() | st.integers(0, 2**63 - 1),
        headers=st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=3),
    ),
    min_size=1,
    max_size=5,
)


def read(path: str, **options: bool) -> list[ConsumerRecord]:
    return list(read_segment(path, "t", 0, **options))


@given(records=RECORDS, codec=st.sampled_from(Codec), base_offset=st.integers(0, 2**40))
def test_what_was_built_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[ProducerRecord],
    codec: Codec,
    base_offset: int,
) -> None:
    fields = BatchFields(leader_epoch=3)
    batch = build_batch(records, base_offset, now_ms=T0, codec=codec, fields=fields)
    path = write_segment(str(tmp_path_factory.mktemp("log") / "t-0"), base_offset, [batch])
    assert read(path, is_explicit=True) == [
        ConsumerRecord(
            topic="t",
            partition=0,
            offset=base_offset + i,
            timestamp_ms=T0 if record.timestamp_ms is None else record.timestamp_ms,
            timestamp_type=TimestampType.CREATE_TIME,
            key=record.key,
            value=record.value,
            headers=tuple(record.headers),
            leader_epoch=3,
            is_tombstone=record.is_tombstone,
        )
        for i, record in enumerate(records)
    ]


@pytest.mark.parametrize(
    ("value", "tombstone", "expected"),
    [
        pytest.param(b"v", None, False, id="a value is no tombstone"),
        pytest.param(b"", None, False, id="nor is an empty one"),
        pytest.param(None, None, True, id="a null value is, as it always was"),
        pytest.param(None, True, True, id="a null value may say so"),
        pytest.param(b"v", True, True, id="a tombstone may carry a value"),
        pytest.param(b"v", False, False, id="a value may say that it is none"),
    ],
)
def test_a_tombstone_to_be(value: bytes | None, tombstone: bool | None, expected: bool) -> None:
    assert ProducerRecord(topic="t", value=value, tombstone=tombstone).is_tombstone is expected


def test_a_null_value_that_is_no_tombstone_is_refused() -> None:
    message = (
        "expected a value in a record of t with tombstone=False, found null: a consumer before "
        "KIP-87 would read it as a tombstone. Give it a value, which may be empty, or leave "
        "`tombstone` off"
    )
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        ProducerRecord(topic="t", key=b"k", value=None, tombstone=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"topic": ""}, "expected a topic", id="no topic"),
        pytest.param({"partition": -1}, "expected a partition of 0 or more", id="partition"),
        pytest.param({"timestamp_ms": -1}, "expected a timestamp_ms of 0 or more", id="time"),
    ],
)
def test_what_kafkas_producer_refuses_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}"):
        ProducerRecord(**{"topic": "t", **fields})  # type: ignore[arg-type]


def test_a_batch_is_of_one_partition() -> None:
    two = [ProducerRecord(topic="t", partition=p, value=b"v") for p in (0, 1)]
    with pytest.raises(RequestError, match="found 2 partitions"):
        build_batch(two, 0, now_ms=T0)
    with pytest.raises(RequestError, match="found 0 partitions"):
        build_batch([], 0, now_ms=T0)


@pytest.mark.parametrize(
    ("magic", "attributes", "value", "explicit", "expected"),
    [
        pytest.param(0, 0x20, b"v", False, False, id="magic 0 has no such bit"),
        pytest.param(1, 0, None, True, True, id="magic 1: null, whatever the topic says"),
        pytest.param(2, 0x20, b"v", False, True, id="magic 2: bit 5"),
        pytest.param(2, 0x20, b"v", True, True, id="magic 2: bit 5, explicit"),
        pytest.param(2, 0xDF, b"v", False, False, id="magic 2: every other bit"),
        pytest.param(2, 0, None, False, True, id="magic 2: null, from producers of today"),
        pytest.param(2, 0, None, True, False, id="magic 2: null is none where only the bit says"),
    ],
)
def test_a_record_says_whether_it_is_a_tombstone(
    magic: int, attributes: int, value: bytes | None, explicit: bool, expected: bool
) -> None:
    assert is_tombstone(magic, attributes, value, is_explicit=explicit) is expected


def test_records_of_old_formats(tmp_path: Path) -> None:
    stamped = message_set(1, 0, [(2, T0, b"k", None)], 2)
    path = segment(
        tmp_path,
        message_set(0, 0, [(0, -1, b"k", None)], 0),
        message_set(1, 0, [(1, T0, b"k", b"v")], 1),
        resealed(stamped, 17, bytes([LOG_APPEND_TIME])),
    )
    records = read(path, is_explicit=True)
    assert [(r.timestamp_type.name, r.timestamp_ms, r.is_tombstone) for r in records] == [
        ("NO_TIMESTAMP_TYPE", -1, True),
        ("CREATE_TIME", T0, False),
        ("LOG_APPEND_TIME", T0, True),
    ]
    assert {r.leader_epoch for r in records} == {None}


def test_a_broker_that_stamps_records_says_so(tmp_path: Path) -> None:
    stamped = batch_of(0, attributes=LOG_APPEND_TIME, max_timestamp_ms=T0 + 9)
    (record,) = read(segment(tmp_path, stamped))
    assert record.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert record.timestamp_ms == T0 + 9


def test_a_log_directory_is_read_from_its_start_to_its_high_watermark(tmp_path: Path) -> None:
    for partition in (0, 1):
        directory = tmp_path / partition_name("t", partition)
        directory.mkdir()
        segment(directory, batch_of(0, 1, 2))
        segment(directory, batch_of(3, 4), batch_of(5), base_offset=3)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n2\nt 0 5\nt 1 6\n")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 1 4\n")
    places = [(record.partition, record.offset) for record in read_topic(str(tmp_path), "t")]
    assert places == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (1, 5)]
    with pytest.raises(RequestError, match=r"^expected partitions of other in .*, found none"):
        list(read_topic(str(tmp_path), "other"))


def test_only_the_last_file_may_end_in_a_torn_batch(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    segment(directory, batch_of(0), batch_of(1)[:-1])
    assert [record.offset for record in read_topic(str(tmp_path), "t")] == [0]
    segment(directory, base_offset=1)
    with pytest.raises(CorruptSegmentError, match="in a segment that is not the log's last"):
        list(read_topic(str(tmp_path), "t"))


def test_kafkas_classes_read_a_tombstone_with_a_value(tmp_path: Path, kafka_jars: Path) -> None:
    records = [
        ProducerRecord(topic="t", key=b"a", value=b"why", tombstone=True, headers=[("by", b"me")]),
        ProducerRecord(topic="t", key=b"b", value=b"v"),
        ProducerRecord(topic="t", key=b"c"),
    ]
    batch = build_batch(records, 0, now_ms=T0, codec=Codec.ZSTD)
    write_segment(str(tmp_path / "t-0"), 0, [batch])
    log = SourceLog(directory=tmp_path / "t-0", config={"cleanup.policy": "compact"}, rounds=[])
    (result,) = run_oracle([log], kafka_jars)
    assert [(r.key, r.value, r.headers, r.attributes) for r in result.initial.records] == [
        (b"a", b"why", (("by", b"me"),), 0x20),
        (b"b", b"v", (), 0),
        (b"c", None, (), 0x20),
    ]
