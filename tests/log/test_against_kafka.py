"""Hand-made little logs through Kafka's own cleaner and retention, and through `ebbtide.log`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.settings.config import TopicConfig, parse_config
from tests.kafka.oracle import OracleResult, SourceLog, run_oracle
from tests.kafka.scenarios import (
    Partition,
    Topic,
    TopicRound,
    Written,
    WrittenBatch,
    WrittenSegment,
)
from tests.log.comparison import batches_of, described, described_by_kafka
from tests.log.kafka_cases import (
    CASES,
    HOUR_MS,
    LARGEST,
    NOW_MS,
    ORDINARY,
    T0,
    Case,
    data,
    dirty,
    idle,
)
from tests.log.log_files import read_log, write_log
from tests.log.plain_cleaner import Log, clean, offer, producers_of, retain, truncate
from tests.log.replay import measured, replay_topics

MODIFIED_MS = T0 + HOUR_MS


def config_at(case: Case, number: int) -> TopicConfig:
    """The topic's configuration in one of the case's rounds."""
    texts = dict(case.config)
    for a_round in case.rounds[: number + 1]:
        texts |= a_round.config
    segment_bytes = int(texts.pop("internal.segment.bytes", 2**30))
    config = parse_config({f"kafka.{name}": value for name, value in texts.items()})
    return replace(config, segment_bytes=segment_bytes)


def after(log: Log, case: Case, number: int) -> Log:
    """What `ebbtide.log` leaves after one of the case's rounds."""
    this, config = case.rounds[number], config_at(case, number)
    if this.delete_records is not None:
        log = truncate(log, this.delete_records)
    if config.is_compacted:
        if offer(log, config, this.now_ms).is_picked(config.min_cleanable_dirty_ratio):
            log = clean(log, config, this.now_ms)
        elif this.force_idle:
            log = clean(log, config, this.now_ms, is_idle=True)
    return retain(log, config, this.now_ms, case.high_watermark) if this.retention else log


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("logs")
    return {
        name: write_log(root / str(number) / "topic-0", case.segments)
        for number, (name, case) in enumerate(CASES.items())
    }


@pytest.fixture(scope="module")
def by_kafka(directories: dict[str, Path], kafka_jars: Path) -> dict[str, OracleResult]:
    """Every case after each of its rounds; one JVM does them all."""
    logs = [
        SourceLog(
            directory=directories[name],
            config=case.config,
            rounds=case.rounds,
            log_start_offset=case.log_start_offset,
            high_watermark=case.high_watermark,
            modified_ms=dict.fromkeys(case.segments, MODIFIED_MS),
        )
        for name, case in CASES.items()
    ]
    return dict(zip(CASES, run_oracle(logs, kafka_jars), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kafka_leaves_the_same(
    name: str, by_kafka: dict[str, OracleResult], directories: dict[str, Path]
) -> None:
    case = CASES[name]
    log = read_log(directories[name], MODIFIED_MS, log_start_offset=case.log_start_offset)
    assert described(log) == described_by_kafka(by_kafka[name].initial, log)
    for number, state in enumerate(by_kafka[name].rounds):
        before, log = log, after(log, case, number)
        # What a codec makes of a batch is an estimate here.
        log = replace(measured(log, batches_of(state.batches), before)[0], measured=None)
        assert described(log).differences(described_by_kafka(state, log)) == [], f"round {number}"
        if "compact" in case.config["cleanup.policy"]:
            first_dirty = max(log.state.first_dirty_offset, log.state.log_start_offset)
            assert first_dirty == max(state.first_dirty_offset, state.log_start_offset)


@pytest.mark.parametrize("name", CASES)
def test_kafka_knows_the_same_producers(
    name: str, by_kafka: dict[str, OracleResult], directories: dict[str, Path]
) -> None:
    case = CASES[name]
    log = read_log(directories[name], MODIFIED_MS, log_start_offset=case.log_start_offset)
    ours = producers_of(log, config_at(case, 0), case.rounds[0].now_ms)
    theirs = by_kafka[name].rounds[0].producers
    assert {
        producer: (last.producer_epoch, last.last_data_offset) for producer, last in ours.items()
    } == {p.producer_id: (p.producer_epoch, p.last_data_offset) for p in theirs}


def test_kafka_sets_no_horizon_where_its_sum_leaves_64_bits(
    kafka_jars: Path, tmp_path: Path
) -> None:
    """docs/exactness.md: the tombstone stays in both; ours has the last horizon that there is."""
    case = Case(
        segments={0: [data(0, ("a", "1")), data(1, ("a", None)), data(2, ("b", "1"))], 3: []},
        config={"cleanup.policy": "compact", "delete.retention.ms": LARGEST},
        rounds=(
            dirty(),
            idle(NOW_MS + 1),
            idle(NOW_MS + 2, config={"delete.retention.ms": "1"}),
            idle(NOW_MS + 3, config={"delete.retention.ms": "1"}),
        ),
    )
    directory = write_log(tmp_path / "topic-0", case.segments)
    source = SourceLog(directory=directory, config=case.config, rounds=case.rounds)
    (result,) = run_oracle([source], kafka_jars)
    log = read_log(directory, MODIFIED_MS)
    for number, horizon_ms in enumerate((None, None, NOW_MS + 3)):
        (theirs,) = [b for b in result.rounds[number].batches if b.base_offset == 1]
        assert (theirs.record_count, theirs.delete_horizon_ms) == (1, horizon_ms)
        log = after(log, case, number)
        (ours,) = [batch for batch in log.batches if batch.base_offset == 1]
        assert (ours.record_count, ours.delete_horizon_ms) == (1, int(LARGEST))
    assert 1 not in {batch.base_offset for batch in result.rounds[3].batches}


def test_kafka_too_stops_where_a_batch_of_an_old_format_would_end_a_round_empty(
    kafka_jars: Path,
) -> None:
    keyless = Written(1, T0, None, "2")
    segments = (
        WrittenSegment(
            0, T0, (WrittenBatch((Written(0, T0, "a", "1"),)), WrittenBatch((keyless,), magic=1))
        ),
        WrittenSegment(2, T0, ()),
    )
    topic = Topic(
        config=ORDINARY,
        rounds=(TopicRound(now_ms=NOW_MS),),
        partitions=(Partition(grown=(segments,), delete_records=(None,)),),
    )
    ((outcome,),) = replay_topics([topic], kafka_jars)
    assert outcome.differences == []
    assert outcome.is_refused
