"""What Kafka's own classes wrote (WriteGoldenSegments.java), read as Kafka reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebbtide.records.arrays import record_size
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from tests.records.builders import Row, record_rows, walk_rows

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir())
SEGMENT = "00000000000000000000.log"


def kafka_batches(case: str) -> list[dict[str, Any]]:
    batches: list[dict[str, Any]] = json.loads((GOLDEN / case / "kafka.json").read_text())
    return batches


def as_kafka_says(row: Row) -> Row:
    attributes = row["attributes"]
    horizon_ms = row["base_timestamp_ms"] if attributes & DELETE_HORIZON else -1
    is_v2 = row["magic"] == 2
    flags = {
        "codec": attributes & COMPRESSION_MASK,
        "is_append_time": bool(attributes & LOG_APPEND_TIME),
        "is_transactional": is_v2 and bool(attributes & TRANSACTIONAL),
        "is_control": is_v2 and bool(attributes & CONTROL),
        "delete_horizon_ms": horizon_ms,
    }
    return {**row, **flags}


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


@pytest.mark.parametrize("case", CASES)
def test_every_header_field_is_what_kafka_reads(case: str) -> None:
    kafka = kafka_batches(case)
    ours = [as_kafka_says(row) for row in walk_rows(str(GOLDEN / case / SEGMENT))]
    for batch in kafka:
        batch["record_count"] = len(batch.pop("records"))
    assert [{name: row[name] for name in kafka[0]} for row in ours] == kafka


@pytest.mark.parametrize("case", CASES)
def test_every_record_is_what_kafka_reads(case: str) -> None:
    expected = [
        {
            "offset": record["offset"],
            "batch": batch["base_offset"],
            "timestamp": None if record["timestamp_ms"] == -1 else record["timestamp_ms"],
            "key": unhex(record["key"]),
            "value": unhex(record["value"]),
            "headers": [(bytes.fromhex(k).decode(), unhex(v)) for k, v in record["headers"]],
        }
        for batch in kafka_batches(case)
        if not batch["is_control"]
        for record in batch["records"]
    ]
    ours = record_rows(str(GOLDEN / case / SEGMENT))
    assert [{name: row[name] for name in expected[0]} for row in ours] == expected


@pytest.mark.parametrize("case", ["magic-2", "cleaned", "cleaned-magic-1"])
def test_size_bytes_gives_kafkas_record_size(case: str) -> None:
    path = str(GOLDEN / case / SEGMENT)
    kafka = [
        record["record_bytes"]
        for batch in kafka_batches(case)
        if not batch["is_control"] and batch["magic"] == 2
        for record in batch["records"]
    ]
    batches = {row["base_offset"]: row for row in walk_rows(path)}
    ours = []
    for row in record_rows(path):
        batch = batches[row["batch"]]
        if batch["magic"] == 2 and row["producer_timestamp"] is not None:
            delta_ms = row["producer_timestamp"] - batch["base_timestamp_ms"]
            offset_delta = row["offset"] - batch["base_offset"]
            ours.append(record_size(delta_ms, offset_delta, row["size_bytes"]))
    assert ours == kafka[: len(ours)]
    assert len(kafka) - len(ours) <= 2  # the batch without a base timestamp


def test_control_records_are_kept_and_emptied_ones_are_null() -> None:
    rows = walk_rows(str(GOLDEN / "magic-2" / SEGMENT))
    control = [row for row in rows if row["attributes"] & CONTROL]
    assert [row["control_type"] for row in control] == ["COMMIT", "ABORT", "LEADER_CHANGE", None]
    assert [row["control_key"] for row in control[:2]] == [b"\0\0\0\1", b"\0\0\0\0"]
    assert control[0]["control_value"].endswith(b"\0\0\0\x09")  # the coordinator's epoch
    assert (control[3]["control_key"], control[3]["control_value"]) == (None, None)


def test_a_cleaned_file_has_what_cleaning_leaves() -> None:
    rows = walk_rows(str(GOLDEN / "cleaned" / SEGMENT))
    horizons = [row for row in rows if row["attributes"] & DELETE_HORIZON]
    emptied = [row for row in rows if not row["record_count"]]
    assert {row["base_timestamp_ms"] for row in horizons} == {1_700_000_000_000 + 88_400_000}
    assert any(not row["attributes"] & CONTROL for row in emptied)
    assert {row["size_bytes"] for row in emptied} == {61}
