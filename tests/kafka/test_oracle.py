import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kafka.oracle import (
    LogState,
    OracleError,
    OracleResult,
    Round,
    manifest_logs,
    run_oracle,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FLIGHTS = ("flights-0", "flights-1", "flights-2")


@pytest.fixture(scope="module")
def first_night_ms(sample_log: Path) -> int:
    """The first 01:00 UTC after the day of the sample's last append."""
    manifest = json.loads((sample_log / "ebbtide-manifest.json").read_text())
    last_append_ms: int = manifest["last_append_ms"]
    return (last_append_ms // DAY_MS + 1) * DAY_MS + HOUR_MS


@pytest.fixture(scope="module")
def nights(sample_log: Path, kafka_jars: Path, first_night_ms: int) -> dict[str, OracleResult]:
    """Every partition of the sample through three nights."""
    rounds = [Round(now_ms=first_night_ms + night * DAY_MS, retention=True) for night in range(3)]
    logs = manifest_logs(sample_log, rounds)
    results = run_oracle(logs, kafka_jars)
    return {log.directory.name: result for log, result in zip(logs, results, strict=True)}


def tombstones(state: LogState) -> int:
    """Null values below the first uncleanable offset."""
    return sum(
        record.value is None and not record.is_control
        for record in state.records
        if record.offset < state.first_uncleanable_offset
    )


def horizons(state: LogState) -> set[int]:
    return {b.delete_horizon_ms for b in state.batches if b.delete_horizon_ms is not None}


def empty_batches(state: LogState) -> int:
    return sum(batch.record_count == 0 for batch in state.batches)


def markers(state: LogState) -> int:
    return sum(batch.is_control for batch in state.batches)


@pytest.mark.parametrize("partition", FLIGHTS)
def test_the_first_night_keeps_tombstones_and_sets_their_horizon(
    nights: dict[str, OracleResult], partition: str, first_night_ms: int
) -> None:
    initial, first = nights[partition].initial, nights[partition].rounds[0]
    assert first.picked == "dirty"
    assert tombstones(first) > 0
    assert horizons(initial) == set()
    assert horizons(first) == {first_night_ms + 12 * HOUR_MS}
    assert len(first.records) < len(initial.records) / 2


@pytest.mark.parametrize("partition", FLIGHTS)
def test_the_second_night_is_idle_and_removes_the_tombstones(
    nights: dict[str, OracleResult], partition: str
) -> None:
    first, second, _ = nights[partition].rounds
    assert second.picked == "idle"
    assert tombstones(second) == 0
    kept = {
        record.offset
        for record in first.records
        if record.value is not None or record.offset >= first.first_uncleanable_offset
    }
    assert {record.offset for record in second.records} == kept


@pytest.mark.parametrize("partition", FLIGHTS)
def test_batches_without_records_outlive_one_night_and_markers_two(
    nights: dict[str, OracleResult], partition: str
) -> None:
    first, second, third = nights[partition].rounds
    assert empty_batches(first) > 0
    assert empty_batches(second) == 0
    assert markers(first) == markers(second) > markers(third)


@pytest.mark.parametrize("partition", FLIGHTS)
def test_each_key_keeps_its_newest_committed_record(
    nights: dict[str, OracleResult], partition: str
) -> None:
    initial, first = nights[partition].initial, nights[partition].rounds[0]
    end = first.first_uncleanable_offset
    kept = [(r.key, r.offset) for r in first.records if r.offset < end and not r.is_control]
    aborted = initial.aborted_batches()
    newest = {
        record.key: record.offset
        for record in initial.records
        if record.offset < end and not record.is_control and record.batch not in aborted
    }
    assert aborted
    assert len(kept) == len(newest)
    assert dict(kept) == newest


def test_retention_expires_audit_segments_night_by_night(
    nights: dict[str, OracleResult], first_night_ms: int
) -> None:
    audit = nights["audit-0"]
    starts = [state.log_start_offset for state in (audit.initial, *audit.rounds)]
    assert starts == sorted(set(starts))
    for night, state in enumerate(audit.rounds):
        assert state.picked == "none"
        oldest_ms = first_night_ms + (night - 14) * DAY_MS
        assert all(segment.largest_timestamp_ms >= oldest_ms for segment in state.segments)


def test_file_times_come_from_the_manifest(
    sample_log: Path, nights: dict[str, OracleResult]
) -> None:
    manifest = json.loads((sample_log / "ebbtide-manifest.json").read_text())
    for partition, result in nights.items():
        for segment in result.initial.segments:
            facts = manifest["files"][f"{partition}/{segment.base_offset:020}.log"]
            assert segment.last_modified_ms == facts["modified_ms"]
            assert segment.size_bytes == facts["size_bytes"]


def test_delete_records_moves_the_log_start_and_retention_then_drops_segments(
    sample_log: Path, kafka_jars: Path, first_night_ms: int
) -> None:
    rounds = [
        Round(now_ms=first_night_ms, delete_records=10_000, idle=False, retention=True),
        Round(now_ms=first_night_ms, delete_records=-1, idle=False, retention=True),
    ]
    unpicked = {"min.cleanable.dirty.ratio": "1"}
    (log,) = [log for log in manifest_logs(sample_log, rounds) if log.directory.name == FLIGHTS[0]]
    log = replace(log, config={**log.config, **unpicked})
    (result,) = run_oracle([log], kafka_jars)
    some, everything = result.rounds
    assert some.log_start_offset == 10_000
    assert some.segments[0].base_offset <= 10_000 < some.segments[1].base_offset
    assert everything.log_start_offset == everything.log_end_offset
    assert len(everything.segments) == 1


def test_a_round_that_kafka_refuses_names_the_log(
    sample_log: Path, kafka_jars: Path, first_night_ms: int
) -> None:
    too_far = Round(now_ms=first_night_ms, delete_records=10**9)
    log = manifest_logs(sample_log, [too_far])[0]
    with pytest.raises(OracleError, match=r"(?s)audit-0.*OffsetOutOfRange"):
        run_oracle([log], kafka_jars)
