from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.broker import BrokerError, KafkaBroker
from tests.kafka.consume import Consumed, ConsumedRecord, consume_log
from tests.kafka.oracle import LogState, Record, manifest_logs, run_oracle

pytestmark = pytest.mark.broker


@pytest.mark.long
def test_a_broker_serves_until_it_is_stopped_and_starts_again(
    kafka_jars: Path, tmp_path: Path
) -> None:
    broker = KafkaBroker(kafka_jars, tmp_path / "broker")
    for _ in range(2):
        with broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            assert len(admin.list_topics(timeout=10).brokers) == 1
    assert (broker.log_dir / ".kafka_cleanshutdown").exists()


def test_a_broker_that_cannot_start_says_why(kafka_jars: Path, tmp_path: Path) -> None:
    broker = KafkaBroker(kafka_jars, tmp_path / "broker", **{"log.retention.ms": "never"})
    with pytest.raises(BrokerError, match=r"(?s)log\.retention\.ms"):
        broker.start()


@pytest.mark.long
def test_consumers_of_the_sample_read_what_kafka_holds(
    sample_log: Path, kafka_jars: Path, tmp_path: Path
) -> None:
    consumed = consume_log(sample_log, kafka_jars, tmp_path / "broker")
    logs = manifest_logs(sample_log, [])
    states = [result.initial for result in run_oracle(logs, kafka_jars)]
    held: Consumed = {}
    committed: Consumed = {}
    for log, state in zip(logs, states, strict=True):
        topic, _, partition = log.directory.name.rpartition("-")
        held[topic, int(partition)] = [as_consumed(record) for record in data_records(state)]
        aborted = state.aborted_batches()
        committed[topic, int(partition)] = [
            as_consumed(record) for record in data_records(state) if record.batch not in aborted
        ]
    assert consumed["read_uncommitted"] == held
    assert consumed["read_committed"] == committed


def data_records(state: LogState) -> list[Record]:
    return [record for record in state.records if not record.is_control]


def as_consumed(record: Record) -> ConsumedRecord:
    return ConsumedRecord(
        record.offset, record.timestamp_ms, record.key, record.value, record.headers
    )
